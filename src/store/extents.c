#include "store/extents.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int shore__extents_reserve(struct shore__extents *x, size_t ranges) {
    if (ranges <= x->capacity) return 0;
    struct shore__free_range *larger = realloc(x->free, 2 * ranges * sizeof *larger);
    if (!larger) return -ENOMEM;
    x->free = larger;
    x->capacity = 2 * ranges;
    return 0;
}

static void insert(struct shore__extents *x, uint64_t at, uint64_t bytes) {
    size_t i = 0;
    while (i < x->nfree && x->free[i].at < at)
        i++;
    struct shore__free_range *next = x->free + i, *before = next - 1;
    bool meets_next = i < x->nfree && at + bytes == next->at, meets_before = i && before->at + before->bytes == at;
    assert((i == x->nfree || at + bytes <= next->at) && (!i || before->at + before->bytes <= at));
    if (meets_before) {
        before->bytes += bytes + (meets_next ? next->bytes : 0);
    } else if (meets_next) {
        next->at = at;
        next->bytes += bytes;
    } else {
        assert(x->nfree < x->capacity);
        memmove(next + 1, next, (x->nfree - i) * sizeof *next);
        *next = (struct shore__free_range){at, bytes};
        x->nfree++;
    }
    if (meets_before && meets_next) memmove(next, next + 1, (--x->nfree - i) * sizeof *next);
}

void shore__extents_add(struct shore__extents *x, uint64_t at, uint64_t bytes) {
    x->total_bytes += bytes;
    if (bytes) insert(x, at, bytes);
}

bool shore__extents_take(struct shore__extents *x, uint64_t bytes, uint64_t *at) {
    for (size_t i = 0; i < x->nfree; i++) {
        struct shore__free_range *e = &x->free[i];
        if (e->bytes < bytes) continue;
        *at = e->at;
        e->at += bytes;
        e->bytes -= bytes;
        if (!e->bytes) memmove(e, e + 1, (--x->nfree - i) * sizeof *e);
        x->used_bytes += bytes;
        assert(x->used_bytes <= x->total_bytes);
        return true;
    }
    return false;
}

void shore__extents_give(struct shore__extents *x, uint64_t at, uint64_t bytes) {
    assert(bytes <= x->used_bytes);
    x->used_bytes -= bytes;
    insert(x, at, bytes);
}
