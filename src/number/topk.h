/* Selection of the elements of largest magnitude of a block of gradients.
 *
 * Magnitudes are compared as the 31 bits behind the sign: so denormals count, infinity is above every finite value, and
 * NaN above infinity. Among equals, the lowest index comes first. What is 0 is never selected (a missing entry means
 * 0): so the padding of a block never is, and fewer than k come out where fewer are not 0. The result depends on the
 * values and on k alone: not on threads, on the version of the code, or on where the elements were stored.
 */
#ifndef SHORE_NUMBER_TOPK_H
#define SHORE_NUMBER_TOPK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHORE__TOPK_SEGMENT 65536u /* elements; SHORE_SEGMENT_ELEMS, so that an index fits 16 bits */
#define SHORE__TOPK_MAGNITUDE 0x7FFFFFFFu

/* k of a block: ceil(ratio * elems), at most elems. ratio is taken to nine decimal places, so that 0.01 of 100 is 1. */
uint64_t shore__topk_k(double ratio, uint64_t elems);

/* What was selected of a segment, in the order of the elements. */
struct shore__topk_list {
    uint16_t *index; /* within the segment */
    uint32_t *bits;  /* of the fp32 value */
    uint32_t count;
};

/* Memory of a selection: for blocks of up to `segments` segments and up to k elements. */
struct shore__topk {
    struct shore__topk_list *list; /* [segments]: the result */
    uint16_t *index;
    uint32_t *bits, *bins;
    uint32_t *above, *equal; /* [segments] */
    uint64_t capacity;
    uint32_t segments;
    int threads;
    bool exact_only; /* never guess: for tests, and slower */
};

/* Bytes of the memory that a selection needs, and its layout in memory of that size, aligned to 64 bytes. threads: 1 or
 * more; that select() uses at most. */
size_t shore__topk_bytes(uint64_t k, uint32_t segments, int threads);
void shore__topk_lay_out(struct shore__topk *t, void *memory, uint64_t k, uint32_t segments, int threads);

/* Selects k elements of x, segments * SHORE__TOPK_SEGMENT elements, into t->list. Reads x once, at memory speed, unless
 * a guess from a sample of it was wrong. Returns how many were selected. Threading: one caller; uses OpenMP. */
uint64_t shore__topk_select(struct shore__topk *t, const float *x, uint32_t segments, uint64_t k);

/* ---- the loop of it, for tests ----------------------------------------------------------------------------------- */

#define SHORE__TOPK_FULL SIZE_MAX
#define SHORE__TOPK_GROUP 16u

/* Appends the elements of x (at most a segment; a multiple of 16) whose magnitude is at least `least` to index and
 * bits, in order. Returns their number, or SHORE__TOPK_FULL as soon as a group of 16 that has some would begin with
 * less than 16 places left: whole groups are stored, so up to 15 entries behind the last one are overwritten too. */
typedef size_t shore__topk_collect_fn(const float *x, size_t elems, uint32_t least, uint16_t *index, uint32_t *bits,
                                      size_t capacity);
struct shore__topk_version {
    const char *name;     /* NULL at the end */
    bool (*usable)(void); /* on this processor */
    shore__topk_collect_fn *collect;
};
/* The scalar one first, the best one last. */
const struct shore__topk_version *shore__topk_versions(void);
shore__topk_collect_fn shore__topk_collect;

#endif
