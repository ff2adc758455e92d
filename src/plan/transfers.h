/* The memory of what moves state without training on it: import, export, copies between drives, digests.
 */
#ifndef SHORE_PLAN_TRANSFERS_H
#define SHORE_PLAN_TRANSFERS_H

#include "longshore/state.h"

/* Nothing is updated, so the least rings will do: small spans go at the speed of what they come from. */
void shore__transfer_rings(struct shore_fleet_options *options);
/* What such a fleet takes: rings and tables, threads and a queue for each drive. */
uint64_t shore__transfer_fleet_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options);

/* The least budget of an import of a model with so many tokens. */
uint64_t shore__import_bytes(const struct shore_layout *layout, uint32_t tokens, uint32_t threads,
                             const struct shore_fleet_options *options);

/* The least budget of a copy from drives to others of which `more` are added, in a process that has held `peak` bytes;
 * and what one takes that copies in so many spans. */
uint64_t shore__copy_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options, uint32_t more,
                           uint64_t peak);
uint64_t shore__copy_in_spans_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options,
                                    uint64_t spans_bytes, uint64_t peak);

/* An export: segments that are fetched at once, and elements of a tile of a tensor that is transposed (and of its
 * columns, put together). widest: row of one as it is stored; bytes: of all three. */
struct shore__export_plan {
    uint32_t segments;
    uint64_t tile_elems;
};
struct shore__export_plan shore__plan_export(uint64_t widest, uint64_t bytes);
/* What a process needs that has held so much: beside the buffers, and with the least of them. */
uint64_t shore__export_beside_bytes(uint64_t resident, uint64_t peak);
#define SHORE__EXPORT_LEAST_BYTES (UINT64_C(8) << 20)

#endif
