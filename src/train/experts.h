/* Experts of a run: which rows of a step went to which, the loss that balances them, and their updates. An expert that
 * no row of a step went to has no gradient: it is frozen in that step, as a parameter without one is in PyTorch, and
 * the step does not count in the corrections of its moments. The numbers of such steps are the blob of each commit. */
#ifndef SHORE_TRAIN_EXPERTS_H
#define SHORE_TRAIN_EXPERTS_H

#include "longshore/state.h"
#include "train/activations.h"

struct trainer;
struct experts;

/* Reads the blob of the committed step, also when the committed step has changed. Nothing of this header does anything
 * for a model without experts. Errors: those of shore_fleet_blob(), SHORE_ECORRUPT. */
int shore__experts_open(struct trainer *t, struct shore_diag *diag);
void shore__experts_close(struct experts *e);

/* The batch's forward begins; a unit of a layer has passed; all layers have: *loss is what balancing adds to the loss
 * of the batch, already scaled. */
int shore__experts_begin(struct trainer *t, struct shore_diag *diag);
int shore__experts_count(struct trainer *t, uint32_t layer, const struct unit_inner *unit, struct shore_diag *diag);
int shore__experts_counted(struct trainer *t, double *loss, struct shore_diag *diag);
/* The gradient of that loss with respect to each row's probabilities, which layers take (shore__layer_call.balance). */
shore__buf shore__experts_balance(const struct trainer *t);

/* Sets the groups of a layer's experts for the step whose forward has passed. groups: the model's, of which those that
 * are not of experts are set. */
void shore__experts_groups(const struct trainer *t, uint32_t layer, struct shore_hyper *groups);
/* Adds the blob to a commit of the step in hand. skipped: nothing is updated. */
void shore__experts_commit(struct trainer *t, bool skipped, struct shore_commit *commit);

#endif
