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

/* Raises *field, up to most, to the largest value with which bytes(ctx) fits the room. bytes grows with it, but may
 * drop at `most`: pages that all stay share no buffers. */
static inline void shore__carve_raise(size_t *field, size_t most, uint64_t room, uint64_t (*bytes)(void *ctx),
                                      void *ctx) {
    size_t least = *field;
    if (most <= least) return;
    *field = most;
    if (bytes(ctx) <= room) return;
    most--;
    while (least < most) {
        *field = least + (most - least + 1) / 2;
        if (bytes(ctx) <= room)
            least = *field;
        else
            most = *field - 1;
    }
    *field = least;
}

#endif
