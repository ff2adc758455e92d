#include <stdlib.h>
#include <sys/stat.h>

#include "base/sized.h"
#include "drive/address.h"
#include "drive/chunk.h"
#include "drive/fleet/fleet.h"

/* Whether a volume cannot have holes: it is on another host, or on a device. */
static bool takes_whole(const char *drive) {
    struct stat st;
    return shore__kind_of(drive)->served || (stat(shore__address_file(drive), &st) == 0 && S_ISBLK(st.st_mode));
}

bool shore__fleet_takes_whole(const struct shore_fleet_options *o) {
    for (uint32_t d = 0; d < o->ndrives; d++)
        if (takes_whole(o->drives[d])) return true;
    return false;
}

/* Assumes equal shares. The real placement depends on each drive's free space, and hardly changes the sum. */
uint64_t shore__fleet_disk_bytes(const struct shore_layout *layout, const struct shore_fleet_options *o, bool whole) {
    struct shore__range *ranges = calloc((size_t)layout->nblocks * o->ndrives, sizeof *ranges);
    uint64_t *weights = calloc((size_t)o->ndrives * 2, sizeof *weights), bytes = 0;
    if (ranges && weights) {
        uint64_t *stripes = weights + o->ndrives;
        shore__stripes_share(o->scratch_bytes, weights, o->ndrives, stripes);
        shore__placement_make(layout, weights, o->ndrives, ranges);
        for (uint32_t d = 0; d < o->ndrives; d++) {
            struct shore__extent *extents;
            struct shore__volume_desc desc = {
                .ndrives = o->ndrives,
                .drive = d,
                .scratch_bytes = stripes[d] * SHORE__SCRATCH_STRIPE_BYTES,
                .spill = o->spill,
                .identity_bytes = o->identity_bytes,
                .layout = whole || takes_whole(o->drives[d]) ? NULL : layout,
                .resting_planes = shore__planes_resting(o->moments),
            };
            if (!shore__kind_of(o->drives[d])->keeps ||
                shore__placement_extents(layout, ranges, o->ndrives, d, &extents, &desc.nextents, &desc.segments))
                continue;
            desc.extents = extents;
            shore__planes_make(layout, o, desc.plane_bytes);
            const uint64_t room = shore__volume_room_bytes(&desc);
            bytes = room > UINT64_MAX - bytes ? UINT64_MAX : bytes + room;
            free(extents);
        }
    }
    free(ranges);
    free(weights);
    return bytes;
}

uint64_t shore_fleet_disk_bytes(const struct shore_layout *layout, const struct shore_fleet_options *given) {
    struct shore_fleet_options options;
    if (shore__sized_in(&options, sizeof options, given, "shore_fleet_options", NULL)) return 0;
    return shore__fleet_disk_bytes(layout, &options, false);
}

void shore_fleet_update_bytes(const struct shore_layout *layout, const struct shore_fleet_options *given,
                              uint32_t block, uint64_t *read, uint64_t *written) {
    struct shore_fleet_options options;
    *read = *written = 0;
    if (shore__sized_in(&options, sizeof options, given, "shore_fleet_options", NULL)) return;
    struct shore__drive_config config = shore__fleet_config(layout, &options, false);
    uint32_t segments = layout->blocks[block].segments;
    *written = shore__stored_range_bytes(&config, block, 0, segments, true);
    *read = shore__stored_range_bytes(&config, block, 0, segments, false) +
            (uint64_t)segments * config.plane_bytes[SHORE_PLANE_R];
}
