/* Selects the elements of largest magnitude in a block of gradients.
 *
 * Magnitudes are compared as the 31 bits behind the sign. So denormals count, infinity is above every finite value, and
 * NaN is above infinity. Among equals, the lowest index comes first. 0 is never selected, because a missing entry means
 * 0. The padding of a block is therefore never selected, and fewer than k elements are returned if fewer are not 0. The
 * result depends on the values and k alone: not on threads, the version of the code, or where the elements were
 * stored. */
#ifndef SHORE_NUMBER_TOPK_H
#define SHORE_NUMBER_TOPK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHORE__TOPK_SEGMENT 65536u /* elements; SHORE_SEGMENT_ELEMS, so that an index fits 16 bits */
#define SHORE__TOPK_MAGNITUDE 0x7FFFFFFFu

/* The selection from a segment, in element order. */
struct shore__topk_list {
    uint16_t *index; /* within the segment */
    uint32_t *bits;  /* of the fp32 value */
    uint32_t count;
};

/* Working memory of a selection, for blocks of up to `segments` segments and up to k elements. */
struct shore__topk {
    struct shore__topk_list *list; /* [segments]: the result */
    uint16_t *index;
    uint32_t *bits, *bins;
    uint32_t *above, *equal; /* [segments] */
    uint64_t capacity;
    uint32_t segments;
    int threads;
    bool exact_only; /* never guess: slower, for tests */
};

/* Bytes that a selection needs, and its layout in memory of that size, aligned to 64 bytes. threads: the most that
 * select() uses; at least 1. */
size_t shore__topk_bytes(uint64_t k, uint32_t segments, int threads);
void shore__topk_lay_out(struct shore__topk *t, void *memory, uint64_t k, uint32_t segments, int threads);

/* Selects k elements of x, segments * SHORE__TOPK_SEGMENT elements, into t->list. Reads x once, at memory speed, unless
 * a guess from a sample was wrong. Returns the number selected. Threading: one caller; uses OpenMP. */
uint64_t shore__topk_select(struct shore__topk *t, const float *x, uint32_t segments, uint64_t k);

/* ---- the loop of it, for tests ----------------------------------------------------------------------------------- */

#define SHORE__TOPK_FULL SIZE_MAX
#define SHORE__TOPK_GROUP 16u

/* Appends the elements of x (at most a segment; a multiple of 16) with a magnitude of at least `least` to index and
 * bits, in order. Returns their number, or SHORE__TOPK_FULL as soon as a group of 16 with such elements would start
 * with fewer than 16 places left. Whole groups are stored, so up to 15 entries behind the last one are overwritten
 * too. */
typedef size_t shore__topk_collect_fn(const float *x, size_t elems, uint32_t least, uint16_t *index, uint32_t *bits,
                                      size_t capacity);
struct shore__topk_version {
    const char *name;     /* NULL at the end */
    bool (*usable)(void); /* on this processor */
    shore__topk_collect_fn *collect;
};
/* The scalar version comes first, the best one last. */
const struct shore__topk_version *shore__topk_versions(void);
shore__topk_collect_fn shore__topk_collect;

#endif
