/* Gradients of the current step: where backward writes them, and when they are complete. From then on the step owns
 * them: see longshore/step.h. */
#ifndef SHORE_TRAIN_GRADIENTS_H
#define SHORE_TRAIN_GRADIENTS_H

#include "longshore/step.h"
#include "pass/pieces.h"
#include "plan/regions.h"

struct trainer;
struct gradients;

/* A piece of gradient (see pieces.h), which is a unit of the step. */
struct piece {
    uint32_t unit;
    struct shore__page_id page; /* its first page; the last slice's tail follows it */
    uint32_t segment, count;    /* count 0: it is never made */
    shore__buf there;           /* where backward writes it, on the device */
    float *gradient;            /* where it lands in host memory */
    bool in_buffer;             /* gradient lies in a buffer that belongs to the step once the piece is complete */
};

/* Moments of backward: the number of units whose lookups have been added, or all of them. */
#define ALL_LOOKED_UP UINT32_MAX

/* Whether a segment of a tied table held in memory becomes complete at this moment. All other gradients are complete
 * with their piece. due: the units whose lookups it waits for; early: it was complete before the last unit's
 * lookups. */
static inline bool shore__segment_is_new(uint32_t due, bool early, uint32_t looked_up) {
    return looked_up == ALL_LOOKED_UP ? !early : due == looked_up;
}

int shore__gradients_open(struct trainer *t, struct shore_diag *diag);
void shore__gradients_close(struct gradients *g);
int shore__gradients_begin_step(struct trainer *t, struct shore_diag *diag);
struct piece *shore__gradients_layer(struct trainer *t, uint32_t layer);
struct piece *shore__gradients_slice(struct trainer *t, uint32_t block, uint32_t slice);
struct piece *shore__gradients_tail(struct trainer *t, uint32_t block); /* NULL: the embedding has none */
/* Gets memory for a piece, with arbitrary contents; waits for a buffer. Like all that lands gradients, it returns
 * SHORE_STEP_AGAIN once the norm has passed the limit and not all gradients fit in memory: the step is recomputed. */
int shore__gradients_begin(struct trainer *t, struct piece *p, struct shore_diag *diag);
/* For a tied table that is not held in memory: sends the head's part of a slice to scratch, and frees its memory. After
 * shore_step_land_all(), the slice can be fetched back into other memory. */
int shore__gradients_to_scratch(struct trainer *t, struct piece *p, struct shore_diag *diag);
int shore__gradients_from_scratch(struct trainer *t, struct piece *p, struct shore_diag *diag);
/* Ends a piece that is complete on the device: starts its copy to the host, and the step lands it. */
int shore__gradients_end(struct trainer *t, struct piece *p, struct shore_diag *diag);
/* For an embedding whose gradient leaves as rows: adds up those of all lookups of the batch, and ends its slices. */
int shore__gradients_rows(struct trainer *t, struct shore_diag *diag);
/* For a slice of a tied table held in memory, if the step speculates: hands over the segments that are complete after
 * the head and the lookups of so many units (not the last unit's). This leaves less to do when backward ends. Called
 * once for each number. */
int shore__gradients_early(struct trainer *t, struct piece *p, uint32_t looked_up, struct shore_diag *diag);
/* Decides once all pieces are complete. *finite false: the step is refused, and nothing more is submitted. *replay: the
 * gradients are gone, and the step must be recomputed without speculation. Otherwise all updates are submitted. */
int shore__gradients_finish(struct trainer *t, bool *finite, bool *replay, struct shore_diag *diag);

#endif
