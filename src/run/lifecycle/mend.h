/* Mends a run after a kill: undoes or finishes an interrupted move, snapshot or rollback when the run is opened again.
 *
 *   RUN/moving.json              a move is under way: its old and new volumes; and files that earlier moves could not
 *                                remove yet
 *   RUN/rollback.json            a rollback to a snapshot is under way
 *   RUN/snapshots/NAME.json      a snapshot: step, digest, drives, settings; written last
 *   RUN/snapshots/NAME.partial   a snapshot that is being made or removed; its files are to be removed
 *   RUN/snapshots/NAME.files/    its files from the run directory: metrics.jsonl, residuals
 */
#ifndef SHORE_RUN_LIFECYCLE_MEND_H
#define SHORE_RUN_LIFECYCLE_MEND_H

#include "run/run.h"

/* Writers remove what a move could not remove. */
bool shore__move_is_interrupted(const char *run_path, bool for_writing);
int shore__move_mend(struct shore__run *run, shore__note_fn note, void *ctx, struct shore_diag *diag);
void shore__move_forget(const char *run_path);

bool shore__rollback_is_interrupted(const char *run_path);
int shore__rollback_mend(struct shore__run *run, shore__note_fn note, void *ctx, struct shore_diag *diag);
void shore__rollback_forget(const char *run_path);

/* Mends what stops even readers. Writers mend the rest: unfinished snapshots, and remains of moves. */
bool shore__run_is_interrupted(const char *run_path);
/* For a run that replaces another: removes the old one's snapshots and interrupted changes. drives: the old one's; may
 * be NULL. Notes what stays. */
void shore__run_forget(const char *run_path, const struct shore__addresses *drives, shore__note_fn note, void *ctx);
/* Called with the run locked. Says what it did in run->note. */
int shore__run_mend(struct shore__run *run, bool roll_back, struct shore_diag *diag);

#endif
