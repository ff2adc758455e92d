/* Parameters that are not trained: a step carries them over unchanged. */
#ifndef SHORE_TRAIN_RESTING_H
#define SHORE_TRAIN_RESTING_H

#include "longshore/step.h"
#include "model/model.h"

struct trainer;

/* Units of a step that never have a gradient: the pages of blocks that rest. Returns their number. out: NULL: only
 * counts. */
uint32_t shore__resting_units(const struct shore__model *m, struct shore_step_unit *out);
/* Says that tails that rest are carried, which may have no unit: their segments may all be the last slice's. */
void shore__resting_tails(struct trainer *t);
/* Carries them over where the host updates, for which the step does not. */
int shore__resting_carry(struct trainer *t, struct shore_diag *diag);

#endif
