/* What the plan lends: memory that is idle from a layer's backward until its next forward. */
#ifndef SHORE_TRAIN_IDLE_H
#define SHORE_TRAIN_IDLE_H

#include "model/model.h"

struct trainer;
struct idle;

int shore__idle_open(struct trainer *t, struct shore_diag *diag);
void shore__idle_close(struct idle *idle);
bool shore__idle_lends_slice(const struct trainer *t, uint32_t slice);
void shore__idle_before_backward(struct trainer *t, uint32_t layer);
bool shore__idle_after_backward(struct trainer *t, uint32_t layer); /* true: memory is lent now */
/* The gradients of this layer's matrices wait until the lookups are added. */
bool shore__idle_waits(const struct trainer *t, uint32_t layer);
int shore__idle_before_forward(struct trainer *t, uint32_t layer, struct shore_diag *diag);
/* What a unit of such a layer leaves for then, or NULL; made with inner is changed to lie where it outlives the unit.
 */
struct shore__later *shore__idle_later(struct trainer *t, uint32_t layer, size_t u, bool kept, bool cheap_too,
                                       struct shore__inner *inner);

/* What such a layer has left. */
struct shore__later *shore__idle_left(const struct trainer *t, uint32_t layer, size_t u);
/* This layer's forward takes back what was lent. */
bool shore__idle_takes_back(const struct trainer *t, uint32_t layer);

#endif
