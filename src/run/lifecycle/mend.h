/* What a kill may interrupt of a run: another placement, copies of the state under a name, going back to one. It is
 * undone, or goes on, when the run is opened again.
 *
 *   RUN/moving.json              a placement is being changed: which volumes are new, which old; and what earlier
 *                                changes could not remove yet
 *   RUN/rollback.json            the state is being put back to a snapshot
 *   RUN/snapshots/NAME.json      a snapshot: step, digest, drives, settings; written last
 *   RUN/snapshots/NAME.partial   one that is being made or removed: whose files are to go
 *   RUN/snapshots/NAME.files/    what belongs to it of the run directory: metrics.jsonl, residuals
 */
#ifndef SHORE_RUN_LIFECYCLE_MEND_H
#define SHORE_RUN_LIFECYCLE_MEND_H

#include "run/run.h"

/* What a move could not remove yet is for those that write. */
bool shore__move_is_interrupted(const char *run_path, bool for_writing);
int shore__move_mend(struct shore__run *run, shore__note_fn note, void *ctx, struct shore_diag *diag);
void shore__move_forget(const char *run_path);

bool shore__rollback_is_interrupted(const char *run_path);
int shore__rollback_mend(struct shore__run *run, shore__note_fn note, void *ctx, struct shore_diag *diag);
void shore__rollback_forget(const char *run_path);

/* So that not even readers can go on. The rest is for those that write: snapshots that were being made, what is left of
 * moves. */
bool shore__run_is_interrupted(const char *run_path);
/* For a run that takes the place of another: snapshots of the one before, and what it had interrupted. drives: of the
 * one before, may be NULL. What stays is said. */
void shore__run_forget(const char *run_path, const struct shore__addresses *drives, shore__note_fn note, void *ctx);
/* With the run locked. Says what it did in run->note. */
int shore__run_mend(struct shore__run *run, bool roll_back, struct shore_diag *diag);

#endif
