/* Gradients made smaller on their way to the drives: the largest elements of each block (number/topk.h), with what is
 * left out added to the next step's gradient (error feedback).
 *
 * A block's code stays in memory until its step is over, so that a step that speculated in vain is never computed
 * again: it is sent once more, with the right coefficient. The residual of the step before stays as well, until the
 * step after: a step that is computed again, or skipped, begins with it.
 */
#ifndef SHORE_TRAIN_COMPRESS_H
#define SHORE_TRAIN_COMPRESS_H

#include "model/model.h"
#include "run/settings.h"

struct trainer;
struct piece;

struct compression;

/* Is the step after base_step compressed? */
static inline bool compress_step(const struct shore__settings *s, uint64_t base_step) {
    return s->compress > 0 && base_step >= s->compress_after;
}

/* What has no place in a code, or in an offset: said before anything is made. */
int shore__compress_check(const struct shore__settings *s, const struct shore__model *m, struct shore_diag *diag);
/* What it takes of memory, in the row "compression" of the plan. */
uint64_t shore__compress_bytes(const struct shore__settings *s, const struct shore__model *m, int threads);

/* Once the fleet is open: says where everything lies, and which residual the run goes on with. */
int shore__compress_open(struct trainer *t, struct shore_diag *diag);
/* Keeps the residual of the committed step in the run directory, if it is kept on the host: at a clean stop, and before
 * a snapshot. Nothing may be under way. */
int shore__compress_save(struct trainer *t, struct shore_diag *diag);
int shore__compress_begin_step(struct trainer *t, struct shore_diag *diag);
/* The block's gradient is about to be computed: its residual is on its way from the drives, where it is saved there. */
int shore__compress_want(struct trainer *t, uint32_t block, struct shore_diag *diag);
/* Takes the norm of a piece whose gradient is complete, and adds the residual to it. */
int shore__compress_add(struct trainer *t, struct piece *p, struct shore_diag *diag);
/* All segments are: selects and codes. gradient: the whole block. */
void shore__compress_block(struct trainer *t, uint32_t block, const float *gradient);
/* The step is over: its residual is the base of the next. skipped: it is what it was. */
void shore__compress_end_step(struct trainer *t, bool skipped);
/* Share of the step's gradient energy that was not sent; NaN where whole gradients are. Says once if it stays large. */
double shore__compress_dropped(struct trainer *t);
/* The attempt is given up: waits for what is under way, whatever comes of it. */
void shore__compress_forget(struct trainer *t);
/* Fills an update that begins with this segment: where its code lies, and what plane R will hold, if that is stored. */
void shore__compress_fill(const struct trainer *t, uint32_t block, uint32_t segment, struct shore_update *out);

#endif
