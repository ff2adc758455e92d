/* State of a tied table that is read ahead of its gradient, updated by the processors and stored again. */
#ifndef SHORE_TRAIN_AHEAD_H
#define SHORE_TRAIN_AHEAD_H

#include "model/model.h"

struct trainer;
struct ahead;

int shore__ahead_open(struct trainer *t, struct shore_diag *diag);
void shore__ahead_close(struct ahead *ahead);
void shore__ahead_begin(struct trainer *t);                            /* the layers' backward begins: chooses */
void shore__ahead_fetch(struct trainer *t, uint32_t layer, size_t u);  /* a part of it, before the unit's backward */
bool shore__ahead_has(const struct trainer *t, struct shore__slice s); /* any of it is chosen */
bool shore__ahead_takes(struct trainer *t, uint32_t segment); /* it is updated here, not handed to the drives */
/* All gradients of the table are complete, and the rest has been handed over: updates what was chosen, hands it to its
 * pages, and begins to store it. */
int shore__ahead_update(struct trainer *t, struct shore_diag *diag);
/* What is stored lies in memory that the layer's forward takes; or in pages that it takes back, so that what they held
 * will be fetched. */
bool shore__ahead_is_in_the_way(const struct trainer *t, uint32_t layer);
int shore__ahead_settle(struct trainer *t,
                        struct shore_diag *diag); /* waits until nothing is fetched or stored any more */
void shore__ahead_drop(struct trainer *t);        /* the attempt is discarded */

#endif
