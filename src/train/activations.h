/* Activations that forward leaves for backward: the input of each layer (its boundary), and the inner activations of
 * each unit of a layer. Both stay in memory, or go to the drives' scratch and come back. Inner activations may also be
 * recomputed. */
#ifndef SHORE_TRAIN_ACTIVATIONS_H
#define SHORE_TRAIN_ACTIVATIONS_H

#include "model/model.h"

struct trainer;
struct activations;
struct shore__fate;

/* The inner activations of a unit of a layer. */
struct unit_inner {
    const struct shore__fate *fate; /* whether the plan keeps, offloads or recomputes them */
    size_t nth;                     /* their index among all pairs, in backward's order */
    size_t rows;
    struct shore__inner at; /* where they are computed */
    shore__buf place;       /* holds them until backward, or passes them on to scratch; none: they are recomputed */
    bool kept;              /* place is set */
    bool cheap;             /* place holds the cheap ones too */
    bool offloaded;         /* place passes them on to scratch */
};

int shore__activations_open(struct trainer *t, struct shore_diag *diag); /* after fleet and memory are open */
void shore__activations_close(struct activations *a);
void shore__activations_begin_step(struct trainer *t);
/* Cleans up after a step, whether it succeeded or failed: drops what it left, and waits for its requests. */
int shore__activations_settle(struct trainer *t, struct shore_diag *diag);

/* The boundary buffer of a layer (where its input is kept, or passes on its way to scratch), and the buffer the layer
 * computes in. Forward enters a boundary, leaves it for backward, and releases it once the layer is computed. Backward
 * fetches it, waits for it, and loads it unit by unit. */
shore__buf shore__boundary(const struct trainer *t, uint32_t layer);
shore__buf shore__boundary_working(const struct trainer *t, uint32_t layer);
int shore__boundary_enter(struct trainer *t, uint32_t layer, struct shore_diag *diag);
int shore__boundary_leave(struct trainer *t, uint32_t layer, struct shore_diag *diag);
int shore__boundary_release(struct trainer *t, uint32_t layer, struct shore_diag *diag);
int shore__boundary_fetch(struct trainer *t, uint32_t layer, struct shore_diag *diag); /* does nothing for layer 0 */
int shore__boundary_wait(struct trainer *t, uint32_t layer, struct shore_diag *diag);
int shore__boundary_load(struct trainer *t, uint32_t layer, size_t u, shore__buf *in);

/* Inner activations of a unit. Forward enters them, computes at i->at, and leaves them for backward. */
int shore__train_inner_enter(struct trainer *t, uint32_t layer, size_t u, struct unit_inner *i,
                             struct shore_diag *diag);
int shore__train_inner_leave(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag);
/* Backward first wants the pairs it takes first (nth 0). It then fetches each pair, loads what was kept into i->at, and
 * releases it when it is used up. The release starts the fetch of the next pairs. */
int shore__train_inner_want(struct trainer *t, size_t nth, struct shore_diag *diag); /* pairs from nth on */
int shore__train_inner_fetch(struct trainer *t, uint32_t layer, size_t u, struct unit_inner *i,
                             struct shore_diag *diag);
int shore__train_inner_load(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag);
int shore__train_inner_release(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag);

/* Moves a slice of a tied table's gradient to scratch (put) or back, and waits for the move. The head leaves it there
 * until the lookups are added, where the gradient is not held in memory. */
int shore__train_scratch_move(struct trainer *t, uint32_t slice, bool put, void *gradient, uint64_t bytes,
                              struct shore_diag *diag);

#endif
