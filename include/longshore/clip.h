/* Clipping by the global norm. Gradients come range by range, in any order; the bits do not depend on the order,
 * because the segments' sums of squares are added in the order of the layout. While gradients still come, the running
 * sum says whether updates may go on as if nothing will be clipped.
 *
 *     shore_clip_begin(&clip, layout, limit, sums)          each step
 *     shore_clip_add(&clip, block, segment, count, g)       each range, once; true: it may be updated now, with
 *                                                           coefficient 1
 *     shore_clip_decide(&clip)                              all are there: the norm and the coefficient
 *
 * If the coefficient is below 1, discard the updates (shore_fleet_discard()) and update again with the coefficient. If
 * the result is not finite, discard them.
 */
#ifndef LONGSHORE_CLIP_H
#define LONGSHORE_CLIP_H

#include "longshore/state.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shore_clip {
    /* private */
    const struct shore_layout *layout;
    double limit, running_sum;
    double *sums; /* sums of squares, by segment of all blocks */
};

struct shore_clipping {
    double norm;       /* sqrt of the sum of squares of all gradients */
    float coefficient; /* to multiply gradients with: 1 if nothing is clipped */
    bool finite;       /* false: a NaN or infinity came, or the norm is beyond fp32; the coefficient means nothing */
};

/* Begins a step. Units: limit is the largest norm that is not clipped; 0: nothing is clipped. Ownership: layout and
 * sums (layout->segments of them, overwritten) are borrowed as long as clip is used. Threading: one. */
void shore_clip_begin(struct shore_clip *clip, const struct shore_layout *layout, double limit, double *sums);

/* Adds the gradient of segments [segment, segment + count) of a block: fp32, canonical order, gaps zero. Segments that
 * are never added count as zeros. Returns whether the gradients so far are finite and below the limit. Once false, it
 * stays false. Threading: one at a time; computes with OpenMP's threads. */
bool shore_clip_add(struct shore_clip *clip, uint32_t block, uint32_t segment, uint32_t count, const float *gradient);

/* The same for a gradient that lies where it was made (see struct shore_gather), with the same bits. Threading: as
 * shore_clip_add(). */
bool shore_clip_add_gathered(struct shore_clip *clip, uint32_t block, uint32_t segment, uint32_t count,
                             const struct shore_gather *gather, uint32_t ngather);

/* Sum of squares of one segment's gradient, SHORE_SEGMENT_ELEMS elements: in double, in 16 lanes (element i goes to
 * lane i mod 16) and a fixed tree over them, so it has the same bits on every processor. Threading: any. */
double shore_clip_sum(const float *gradient);

/* Decides as torch.nn.utils.clip_grad_norm_ does: min(1, limit / (norm + 1e-6)), in fp32. Threading: one, after the
 * last add. */
struct shore_clipping shore_clip_decide(const struct shore_clip *clip);

#ifdef __cplusplus
}
#endif

#endif
