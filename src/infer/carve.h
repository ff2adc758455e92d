/* Laying pieces out in one stretch of memory: the same code measures (base 0) and places, so that a plan's sum and what
 * is used cannot differ.
 */
#ifndef SHORE_INFER_CARVE_H
#define SHORE_INFER_CARVE_H

#include "base/arena.h"
#include "compute/compute.h"

struct shore__carve {
    uintptr_t base; /* 0: only measure */
    uint64_t used;
};

/* Aligned to SHORE__ARENA_ALIGN. None when measuring. */
static inline shore__buf shore__carve_take(struct shore__carve *c, uint64_t bytes) {
    uint64_t at = c->used;
    c->used += shore__arena_round(bytes);
    return (shore__buf){c->base ? c->base + at : 0};
}
static inline void *shore__carve_host(struct shore__carve *c, uint64_t bytes) {
    return (void *)shore__carve_take(c, bytes).handle;
}

#endif
