#include <stdlib.h>

#include "base/sized.h"
#include "drive/address.h"
#include "drive/fleet/fleet.h"

/* Placement depends on what is free where, and the sum of the volumes hardly on placement: taken for equal parts. */
uint64_t shore_fleet_disk_bytes(const struct shore_layout *layout, const struct shore_fleet_options *given) {
    struct shore_fleet_options options;
    const struct shore_fleet_options *o = &options;
    if (shore__sized_in(&options, sizeof options, given, "shore_fleet_options", NULL)) return 0;
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
                .layout = shore__kind_of(o->drives[d])->remote ? NULL : layout,
                .resting_planes = shore__planes_resting(o->moments),
            };
            if (!shore__kind_of(o->drives[d])->keeps ||
                shore__placement_extents(layout, ranges, o->ndrives, d, &extents, &desc.nextents, &desc.segments))
                continue;
            desc.extents = extents;
            shore__planes_make(layout, o, desc.plane_bytes);
            bytes += shore__volume_room_bytes(&desc);
            free(extents);
        }
    }
    free(ranges);
    free(weights);
    return bytes;
}
