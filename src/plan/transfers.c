#include "plan/transfers.h"

#include "drive/address.h"
#include "plan/budget.h"

#define MIB (UINT64_C(1) << 20)

void shore__transfer_rings(struct shore_fleet_options *options) {
    options->chunk_segments = 1;
    options->ring_bytes = 1;
}

uint64_t shore__transfer_fleet_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options) {
    return (3 + options->ndrives) * MIB + shore_fleet_memory_bytes(layout, options);
}

uint64_t shore__import_bytes(const struct shore_layout *layout, uint32_t tokens, uint32_t threads,
                             const struct shore_fleet_options *options) {
    const struct shore__process process = {
        .blocks = layout->nblocks,
        .tokens = tokens,
        .threads = threads,
        .ndrives = options->ndrives,
        .opencl = shore__kinds_have(options->drives, options->ndrives, SHORE__KIND_OPENCL),
    };
    return shore__reserve_bytes(&process) + shore_fleet_memory_bytes(layout, options);
}

uint64_t shore__copy_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options, uint32_t more,
                           uint64_t peak) {
    const uint64_t each_more = 5 * MIB, spans = 4 * MIB; /* of a drive: thread, queue, the least ring */
    return shore__copy_in_spans_bytes(layout, options, spans, peak) + more * each_more;
}

uint64_t shore__copy_in_spans_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options,
                                    uint64_t spans_bytes, uint64_t peak) {
    return peak + 2 * shore__transfer_fleet_bytes(layout, options) + spans_bytes;
}

/* A third for fetched segments, the rest for tiles and their columns. The columns of a narrow tile are at most all of
 * it. */
struct shore__export_plan shore__plan_export(uint64_t widest, uint64_t bytes) {
    uint64_t third = bytes / 3;
    uint64_t segments = third / (SHORE_SEGMENT_ELEMS * sizeof(float));
    return (struct shore__export_plan){
        .segments = segments < 1     ? 1
                    : segments > 256 ? 256
                                     : (uint32_t)segments,
        .tile_elems = third / sizeof(float) > widest ? third / sizeof(float) : widest,
    };
}

/* Libraries, the fleet's rings and tables, buffers of files. */
uint64_t shore__export_beside_bytes(uint64_t resident, uint64_t peak) {
    return (peak > resident ? peak : resident) + 8 * MIB;
}
