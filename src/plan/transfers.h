/* Memory of work that moves state without training: import, export, copies between drives, digests. */
#ifndef SHORE_PLAN_TRANSFERS_H
#define SHORE_PLAN_TRANSFERS_H

#include "longshore/state.h"

/* Nothing is updated, so the smallest rings are enough: small spans go at the speed of their source. */
void shore__transfer_rings(struct shore_fleet_options *options);
/* Memory of such a fleet: rings and tables, threads, and a queue per drive. */
uint64_t shore__transfer_fleet_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options);

/* The smallest budget for importing a model with so many tokens. */
uint64_t shore__import_bytes(const struct shore_layout *layout, uint32_t tokens, uint32_t threads,
                             const struct shore_fleet_options *options);

/* The smallest budget of a copy between drives, with `more` new drives, in a process that has used `peak` bytes; and
 * the memory of a copy with so many spans. */
uint64_t shore__copy_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options, uint32_t more,
                           uint64_t peak);
uint64_t shore__copy_in_spans_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options,
                                    uint64_t spans_bytes, uint64_t peak);

/* An export: segments fetched at once, and elements of a tile of a transposed tensor (and of its columns, put
 * together). widest: the widest row as stored; bytes: total. */
struct shore__export_plan {
    uint32_t segments;
    uint64_t tile_elems;
};
struct shore__export_plan shore__plan_export(uint64_t widest, uint64_t bytes);
/* Memory of a process that has used so much: beside the buffers, and with the smallest buffers. */
uint64_t shore__export_beside_bytes(uint64_t resident, uint64_t peak);
#define SHORE__EXPORT_LEAST_BYTES (UINT64_C(8) << 20)

#endif
