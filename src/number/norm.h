/* Partial sums of squares for the global gradient norm: one double per segment. */
#ifndef SHORE_NUMBER_NORM_H
#define SHORE_NUMBER_NORM_H

#include <stdbool.h>
#include <stddef.h>

#include "longshore/layout.h"

/* Whether a block rests: all of its tensors rest, or none. */
static inline bool shore__block_rests(const struct shore_layout_block *block) {
    return block->tensors[0].group == SHORE_GROUP_RESTS;
}

/* Number of segments in the blocks before this one: where its sums start. */
static inline uint64_t shore__segments_before(const struct shore_layout *layout, uint32_t block) {
    uint64_t before = 0;
    for (uint32_t b = 0; b < block; b++)
        before += layout->blocks[b].segments;
    return before;
}
/* Without those of blocks that rest. */
static inline uint64_t shore__trained_before(const struct shore_layout *layout, uint32_t block) {
    uint64_t segments = 0;
    for (uint32_t b = 0; b < block; b++)
        if (!shore__block_rests(&layout->blocks[b])) segments += layout->blocks[b].segments;
    return segments;
}

/* Sum of squares of elems (at most one segment; the rest counts as zeros) in double, with 16 lanes (element i goes to
 * lane i mod 16) and a fixed tree over the lanes (i + 8, i + 4, i + 2, i + 1). Every processor gives the same bits. NaN
 * and infinity propagate. Threading: any. */
double shore__sum_squares(const float *x, size_t elems);

/* The same for elements that come in runs. Every run except the last has a multiple of 16 elements. lane starts with
 * zeros. */
#define SHORE__SQUARES_LANES 16u
void shore__squares_add(double lane[SHORE__SQUARES_LANES], const float *x, size_t elems);
double shore__squares_sum(double lane[SHORE__SQUARES_LANES]); /* overwrites lane */

#endif
