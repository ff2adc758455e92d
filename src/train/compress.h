/* Compression of gradients on their way to the drives: sends the largest elements of each block (number/topk.h), and
 * adds the rest to the next step's gradient (error feedback).
 *
 * A block's code stays in memory until its step is over. A step that speculated in vain is therefore not recomputed:
 * its code is sent again with the right coefficient. The previous step's residual also stays until the next step
 * begins, because a step that is recomputed or skipped starts from it. */
#ifndef SHORE_TRAIN_COMPRESS_H
#define SHORE_TRAIN_COMPRESS_H

#include "model/model.h"
#include "run/settings.h"

struct trainer;
struct piece;

struct compression;

/* Whether the step after base_step is compressed. */
static inline bool compress_step(const struct shore__settings *s, uint64_t base_step) {
    return s->compress > 0 && base_step >= s->compress_after;
}

/* Bytes of memory that compression takes: the plan's row "compression". Refuses settings and models whose codes do not
 * fit an offset, before anything is written. */
int shore__compress_bytes(const struct shore__settings *s, const struct shore__model *m, int threads, uint64_t *bytes,
                          struct shore_diag *diag);

/* Opens compression, after the fleet: places its memory, and finds the residual that the run continues with. */
int shore__compress_open(struct trainer *t, struct shore_diag *diag);
/* Saves the residual of the committed step in the run directory, if the host keeps it. Called at a clean stop and
 * before a snapshot, with no request under way. */
int shore__compress_save(struct trainer *t, struct shore_diag *diag);
int shore__compress_begin_step(struct trainer *t, struct shore_diag *diag);
/* Starts fetching a block's residual from the drives, if it is saved there. Called before its gradient is computed. */
int shore__compress_want(struct trainer *t, uint32_t block, struct shore_diag *diag);
/* Takes the norm of a complete piece, and adds the residual to it. */
int shore__compress_add(struct trainer *t, struct piece *p, struct shore_diag *diag);
/* Selects and encodes a block once all its segments have been added. gradient: the whole block. */
void shore__compress_block(struct trainer *t, uint32_t block, const float *gradient);
/* Ends the step: its residual becomes the base of the next one. skipped: the base stays. */
void shore__compress_end_step(struct trainer *t, bool skipped);
/* Share of the step's gradient energy that was not sent; NaN where whole gradients are sent. Notes once if it stays
 * large. */
double shore__compress_dropped(struct trainer *t);
/* Gives up the attempt: waits for its requests and ignores their result. */
void shore__compress_forget(struct trainer *t);
/* Fills an update that begins with this segment: where its code lies, and the new contents of plane R, if that is
 * stored. */
void shore__compress_fill(const struct trainer *t, uint32_t block, uint32_t segment, struct shore_update *out);

#endif
