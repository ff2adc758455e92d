/* The rows that memory is opened with, as lines of a trace: over the src/plan of this commit, as plan_of.c is. */
#include "plan/regions.h"
#include "tools/trace.h"

int __real_shore__memory_open(struct shore__memory *memory, const struct shore__region_list *regions,
                              struct shore__compute *c, struct shore_diag *diag);
int __wrap_shore__memory_open(struct shore__memory *memory, const struct shore__region_list *regions,
                              struct shore__compute *c, struct shore_diag *diag);

int __wrap_shore__memory_open(struct shore__memory *memory, const struct shore__region_list *regions,
                              struct shore__compute *c, struct shore_diag *diag) {
    for (uint32_t i = 0; i < regions->count; i++) {
        const struct shore__region *r = &regions->item[i];
        if (r->bytes)
            trace("row %s %u, kind %u: %llu bytes, phases %u to %u, at %llu", r->name, r->index, (unsigned)r->place,
                  (unsigned long long)r->bytes, r->live.from, r->live.to, (unsigned long long)r->offset);
    }
    return __real_shore__memory_open(memory, regions, c, diag);
}
