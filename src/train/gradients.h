/* Gradients under way: where backward makes them, and when they are complete. What becomes of them then is the step's:
 * see longshore/step.h. */
#ifndef SHORE_TRAIN_GRADIENTS_H
#define SHORE_TRAIN_GRADIENTS_H

#include "longshore/step.h"
#include "pass/pages.h"
#include "plan/regions.h"

struct trainer;
struct gradients;

/* A piece is what one part of backward finishes at once: a layer, a slice of a table (the last one with the tail of its
 * block), or the tail of a tied head. It is a unit of the step. */
struct piece {
    uint32_t unit;
    struct shore__page_id page; /* its first page; the last slice is followed by its tail */
    uint32_t segment, count;
    shore__buf there; /* where backward makes it, on the device */
    float *gradient;  /* where it comes to */
    bool in_buffer;   /* which is the step's, until it is complete */
};

/* A moment of backward: the lookups of so many units have been added; or all has. */
#define ALL_LOOKED_UP UINT32_MAX

/* Whether a segment of a tied table that is held in memory is complete since this moment; all other gradients are
 * complete with their piece. due: units whose lookups it waits for; early: it was complete before. */
static inline bool shore__segment_is_new(uint32_t due, bool early, uint32_t looked_up) {
    return looked_up == ALL_LOOKED_UP ? !early : due == looked_up;
}

int shore__gradients_open(struct trainer *t, struct shore_diag *diag);
void shore__gradients_close(struct gradients *g);
int shore__gradients_begin_step(struct trainer *t, struct shore_diag *diag);
struct piece *shore__gradients_layer(struct trainer *t, uint32_t layer);
struct piece *shore__gradients_slice(struct trainer *t, uint32_t block, uint32_t slice);
struct piece *shore__gradients_tail(struct trainer *t);
/* Memory for a piece, with anything in it; waits for a buffer. None, if the step is given up meanwhile (t->abandoned).
 */
int shore__gradients_begin(struct trainer *t, struct piece *p, struct shore_diag *diag);
/* Of a tied table that is not held: what the head has made of a slice goes to scratch, and its memory is given back;
 * when all that go have come from the device (settled), it can be had from there again, in other memory. */
int shore__gradients_to_scratch(struct trainer *t, struct piece *p, struct shore_diag *diag);
int shore__gradients_from_scratch(struct trainer *t, struct piece *p, struct shore_diag *diag);
/* The piece is complete on the device: it comes from there, and once it is here, which is looked at in any of these,
 * its norm is taken, and the step says where it goes. */
int shore__gradients_end(struct trainer *t, struct piece *p, struct shore_diag *diag);
/* Of a tied and held table's slice: what is complete after the head and the lookups of so many units (not the last
 * one's) is handed over now, if the step speculates, so that less is left for when backward ends. Once for each number.
 */
int shore__gradients_early(struct trainer *t, struct piece *p, uint32_t looked_up, struct shore_diag *diag);
/* Waits until all have come that were called to. */
int shore__gradients_settle(struct trainer *t, struct shore_diag *diag);
/* All pieces are complete: decides. *finite false: the step is refused (nothing is submitted any more). *replay: the
 * gradients are gone, the step must be computed again without speculating. Otherwise all updates are submitted. */
int shore__gradients_finish(struct trainer *t, bool *finite, bool *replay, struct shore_diag *diag);

#endif
