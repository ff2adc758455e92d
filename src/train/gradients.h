/* Gradients under way: from where backward computes them to the drives. */
#ifndef SHORE_TRAIN_GRADIENTS_H
#define SHORE_TRAIN_GRADIENTS_H

#include "train/gradient_pool.h"

struct trainer;
struct gradients;

int shore__gradients_open(struct trainer *t, struct shore_diag *diag);
void shore__gradients_close(struct gradients *g);
int shore__gradients_begin_step(struct trainer *t, struct shore_diag *diag);
struct piece *shore__gradients_layer(struct trainer *t, uint32_t layer);
struct piece *shore__gradients_slice(struct trainer *t, uint32_t block, uint32_t slice);
struct piece *shore__gradients_tail(struct trainer *t);
/* Memory for a piece, with anything in it; waits for a buffer. */
int shore__gradients_begin(struct trainer *t, struct piece *p, struct shore_diag *diag);
/* The piece is complete: its norm is taken, and it goes where shore__piece_way() says. */
int shore__gradients_end(struct trainer *t, struct piece *p, struct shore_diag *diag);
/* Of a tied and held table's slice: what is complete after the head and the lookups of so many units (not the last
 * one's) is handed over now, if the step speculates, so that less is left for when backward ends. Once for each number.
 */
int shore__gradients_early(struct trainer *t, struct piece *p, uint32_t looked_up, struct shore_diag *diag);
/* All pieces are complete: decides. *finite false: the step is refused (nothing is submitted any more). *replay: the
 * gradients are gone, the step must be computed again without speculating. Otherwise all updates are submitted. */
int shore__gradients_finish(struct trainer *t, bool *finite, bool *replay, struct shore_diag *diag);
/* Ends the attempt: nothing that was submitted counts. */
void shore__gradients_discard(struct trainer *t);
/* The same where the drives have forgotten it themselves: a connection broke. Waits until no request reads a buffer. */
void shore__gradients_forget(struct trainer *t);

/* Units whose lookups the gradient of a segment of a held table waits for in this step. */
uint32_t shore__gradients_due(const struct trainer *t, uint32_t segment);
/* Of this step: SHORE__MODEL_GROUPS of them. */
const struct shore_hyper *shore__gradients_hypers(const struct trainer *t);

#endif
