/* Derives a fleet's options from settings. */
#include "run/run.h"

void shore__run_fleet_options(const struct shore__settings *s, uint64_t scratch_bytes, bool spill,
                              struct shore_fleet_options *out) {
    bool momentum = shore__optimizer(s->optimizer)->takes_momentum && s->momentum > 0;
    unsigned planes = shore_optimizer_planes(s->optimizer, momentum);
    uint64_t moment = s->moments == SHORE_MOMENTS_8BIT ? 1 : 4;
    uint64_t element_bytes =
        4 + (planes & 1u << SHORE_PLANE_M ? moment : 0) + (planes & 1u << SHORE_PLANE_V ? moment : 0);
    uint64_t segments =
        (s->chunk_bytes + SHORE_SEGMENT_ELEMS * element_bytes / 2) / (SHORE_SEGMENT_ELEMS * element_bytes);
    if (segments > UINT32_MAX) segments = UINT32_MAX;
    *out = (struct shore_fleet_options){
        .size = sizeof *out,
        .drives = s->drives.text,
        .ndrives = (uint32_t)s->drives.count,
        .optimizer = s->optimizer,
        .with_momentum = momentum,
        .moments = s->moments,
        .fp32_params = s->fp32,
        .chunk_segments = s->chunk_bytes == 0 ? 0
                          : segments == 0     ? 1
                                              : (uint32_t)segments,
        .scratch_bytes = scratch_bytes,
        .spill = spill,
        .drive_speeds = s->drive_speeds,
        .residual = s->residual_saved,
        .io = s->io,
    };
}
