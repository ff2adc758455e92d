/* Memory of a fleet, and how it is divided into the rings of its drives. */
#include <string.h>

#include "base/sized.h"
#include "drive/address.h"
#include "drive/fleet/fleet.h"
#include "drive/local/local.h"

#define RING_BUFFERS 4u
#define RING_BUFFERS_LEAST 3u
#define CHUNK_SEGMENTS_MAX 64u
#define STAGE_SEGMENTS 4u
#define STAGE_SEGMENTS_LEAST 2u

_Static_assert((uint64_t)CHUNK_SEGMENTS_MAX *SHORE_SEGMENT_ELEMS * 4 <= UINT32_MAX, "an operation moves a chunk");

/* Drives of other processes take no memory here. */
static uint32_t own_drives(const struct shore_fleet_options *o) {
    uint32_t own = o->mine ? 0 : o->ndrives;
    for (uint32_t d = 0; o->mine && d < o->ndrives; d++)
        own += o->mine[d];
    return own;
}

/* Divides the memory of one drive's ring: 4 large buffers; fewer and smaller ones if there is little memory. Size
 * counts more than number: 3 buffers of two segments are faster than 6 of one. */
static void choose_ring(struct shore__drive_config *config, const struct shore_fleet_options *o, bool least) {
    const uint32_t own = own_drives(o);
    uint64_t bytes = o->ring_bytes ? o->ring_bytes / (own ? own : 1) : SHORE__RING_BYTES;
    uint64_t segments = bytes / shore__local_ring_segment_bytes(config->plane_bytes, true);
    if (least || segments < RING_BUFFERS_LEAST) segments = RING_BUFFERS_LEAST;
    uint64_t chunk = o->chunk_segments;
    if (!chunk) {
        chunk = segments / RING_BUFFERS;
        if (chunk < 2) chunk = segments < 2 * RING_BUFFERS_LEAST ? 1 : 2;
        if (chunk > 8) chunk = 8;
    }
    if (chunk > CHUNK_SEGMENTS_MAX) chunk = CHUNK_SEGMENTS_MAX;
    uint64_t buffers = segments / chunk;
    if (buffers < RING_BUFFERS_LEAST) buffers = RING_BUFFERS_LEAST;
    if (buffers > 16) buffers = 16;
    config->chunk_segments = (uint32_t)chunk;
    config->ring_buffers = (uint32_t)buffers;
    config->stage_segments = least ? STAGE_SEGMENTS_LEAST : STAGE_SEGMENTS;
}

struct shore__drive_config shore__fleet_config(const struct shore_layout *layout, const struct shore_fleet_options *o,
                                               bool least) {
    struct shore__drive_config config = {
        .layout = layout,
        .optimizer = o->optimizer,
        .moments = o->moments,
        .fp32_params = o->fp32_params,
        .read_only = o->read_only,
        .io = o->io,
        .arena = o->arena,
        .note = o->note,
        .note_ctx = o->note_ctx,
    };
    shore__planes_make(layout, o, config.plane_bytes);
    choose_ring(&config, o, least);
    return config;
}

/* Memory for any placement. Sizes are sums of parts rounded up to pages. So one drive that owns everything, with empty
 * drives beside it, takes as much as any other split, except for a page per part. */
static uint64_t memory_bytes(const struct shore_layout *layout, const struct shore_fleet_options *given, bool least) {
    struct shore_fleet_options options;
    const struct shore_fleet_options *o = &options;
    if (shore__sized_in(&options, sizeof options, given, "shore_fleet_options", NULL)) return 0;
    struct shore__drive_config config = shore__fleet_config(layout, o, least);
    struct shore__volume_desc desc = {
        .ndrives = o->ndrives,
        .nextents = layout->nblocks,
        .segments = (uint32_t)layout->segments,
        .scratch_bytes = shore__stripes_share(o->scratch_bytes, NULL, o->ndrives, NULL) * SHORE__SCRATCH_STRIPE_BYTES,
        .spill = o->spill,
        .identity_bytes = SHORE__IDENTITY_BYTES,
    };
    memcpy(desc.plane_bytes, config.plane_bytes, sizeof desc.plane_bytes);
    uint64_t locals = 0, rams = 0;
    for (uint32_t d = 0; d < o->ndrives; d++) {
        const struct shore__kind *kind = shore__kind_of(o->drives[d]);
        if (o->mine && !o->mine[d]) continue;
        rams += kind->id == SHORE__KIND_RAM;
        locals += kind->has_file;
        config.on_device |= kind->id == SHORE__KIND_OPENCL;
    }
    uint64_t bytes = 0;
    if (rams) bytes += shore__ram_memory_bytes(&config, &desc);
    if (locals) bytes += shore__local_memory_bytes(&config, &desc);
    desc.segments = 1;
    if (locals > 1) bytes += (locals - 1) * shore__local_memory_bytes(&config, &desc);
    return bytes;
}

uint64_t shore_fleet_memory_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options) {
    return memory_bytes(layout, options, false);
}

uint64_t shore_fleet_memory_least_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options) {
    return memory_bytes(layout, options, true);
}
