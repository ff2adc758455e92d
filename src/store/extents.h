/* Free ranges of a room. Taking uses the first range that is long enough; giving back joins neighbours. */
#ifndef SHORE_STORE_EXTENTS_H
#define SHORE_STORE_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shore__free_range {
    uint64_t at, bytes;
};

struct shore__extents {
    struct shore__free_range *free; /* in order */
    size_t nfree, capacity;
    uint64_t total_bytes, used_bytes;
};

/* Reserves for so many free ranges: one more than the ranges taken and added together. Errors: -ENOMEM. */
int shore__extents_reserve(struct shore__extents *x, size_t ranges);
/* Adds free room. */
void shore__extents_add(struct shore__extents *x, uint64_t at, uint64_t bytes);
/* false: no free range is long enough. */
bool shore__extents_take(struct shore__extents *x, uint64_t bytes, uint64_t *at);
void shore__extents_give(struct shore__extents *x, uint64_t at, uint64_t bytes);

#endif
