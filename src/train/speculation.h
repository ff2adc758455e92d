/* A step that speculates hands its updates over while gradients still come, as if nothing will be clipped. Whether the
 * norm so far lets it go on, what the whole norm decides, and whether the next step had better wait. */
#ifndef SHORE_TRAIN_SPECULATION_H
#define SHORE_TRAIN_SPECULATION_H

#include <stdbool.h>

#include "longshore/clip.h"

#define RECENT_NORMS 4u

struct speculation {
    bool on;     /* this step speculates */
    bool broken; /* and the norm passed the limit */
    double norm; /* of the step, once decided */
    /* private */
    struct shore_clip clip;
    double recent[RECENT_NORMS];
    uint32_t nrecent;
};

/* Gradients begin; sums: one of each segment of the layout. */
void shore__speculation_begin(struct speculation *s, const struct shore_layout *layout, double limit, double *sums);
/* Gradients of these segments, or the sums of their squares, are complete: once for each segment. */
void shore__speculation_add(struct speculation *s, uint32_t block, uint32_t segment, uint32_t count,
                            const float *gradient);
void shore__speculation_add_sums(struct speculation *s, uint32_t block, uint32_t segment, uint32_t count,
                                 const double *sums);
static inline bool shore__speculation_goes_on(const struct speculation *s) {
    return s->on && !s->broken;
}
/* All are there. What was handed over counts if the speculation goes on still and nothing is clipped. */
struct shore_clipping shore__speculation_decide(struct speculation *s);
/* The norm of a step that is over; not finite: it was skipped. */
void shore__speculation_remember(struct speculation *s, double norm);
/* Speculating pays while norms stay below the limit: all of the last few, with room to spare. */
bool shore__speculation_pays(const struct speculation *s, double limit);

#endif
