/* What forward leaves for backward: the input of each layer (its boundary), and inner activations of a unit of a layer.
 * Either stays in memory, or goes to the drives' scratch and comes back; inner ones may also be computed again. */
#ifndef SHORE_TRAIN_ACTIVATIONS_H
#define SHORE_TRAIN_ACTIVATIONS_H

#include "model/model.h"

struct trainer;
struct activations;
struct shore__fate;

/* The inner activations of a unit of a layer. */
struct unit_inner {
    const struct shore__fate *fate; /* what the plan says becomes of them */
    size_t nth;                     /* of all pairs, in the order in which backward takes them */
    size_t rows;
    struct shore__inner at; /* what they are computed with */
    shore__buf place;       /* what keeps them until backward, or passes them on; none: they are computed again */
    bool kept;              /* there is such a place */
    bool cheap;             /* the cheap ones are there too */
    bool offloaded;         /* it passes them on to scratch */
};

int shore__activations_open(struct trainer *t, struct shore_diag *diag); /* when fleet and memory are there */
void shore__activations_close(struct activations *a);
void shore__activations_begin_step(struct trainer *t);
/* A step is reported, which waited so long for drives, scratch apart. */
void shore__activations_weigh(struct trainer *t, uint64_t waited_elsewhere_ns);
/* The step has ended, however: nothing of it is left, or under way. */
int shore__activations_settle(struct trainer *t, struct shore_diag *diag);

/* Where a layer's input is kept, or passes on its way to scratch; and what it is computed in. Forward enters it, leaves
 * it for backward, and releases it when the layer is computed; backward fetches it, waits for it and loads it unit by
 * unit. */
shore__buf shore__boundary(const struct trainer *t, uint32_t layer);
shore__buf shore__boundary_working(const struct trainer *t, uint32_t layer);
int shore__boundary_enter(struct trainer *t, uint32_t layer, struct shore_diag *diag);
int shore__boundary_leave(struct trainer *t, uint32_t layer, struct shore_diag *diag);
int shore__boundary_release(struct trainer *t, uint32_t layer, struct shore_diag *diag);
int shore__boundary_fetch(struct trainer *t, uint32_t layer, struct shore_diag *diag); /* nothing for layer 0 */
int shore__boundary_wait(struct trainer *t, uint32_t layer, struct shore_diag *diag);
int shore__boundary_load(struct trainer *t, uint32_t layer, size_t u, shore__buf *in);

/* Of the inner activations of a unit. Forward enters i->at, computes there, and leaves them for backward. */
int shore__train_inner_enter(struct trainer *t, uint32_t layer, size_t u, struct unit_inner *i,
                             struct shore_diag *diag);
int shore__train_inner_leave(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag);
/* Backward wants those that it takes first (nth 0), fetches each, loads what was kept into i->at, and releases it when
 * it has used it up: the next ones then follow. */
int shore__train_inner_want(struct trainer *t, size_t nth, struct shore_diag *diag); /* from the nth pair on */
int shore__train_inner_fetch(struct trainer *t, uint32_t layer, size_t u, struct unit_inner *i,
                             struct shore_diag *diag);
int shore__train_inner_load(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag);
int shore__train_inner_release(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag);

/* What the head leaves of a tied table's gradient until the lookups are added: slices that are not held go to scratch,
 * and come back. Returns when it is done. */
int shore__train_scratch_move(struct trainer *t, uint32_t slice, bool put, void *gradient, uint64_t bytes,
                              struct shore_diag *diag);

#endif
