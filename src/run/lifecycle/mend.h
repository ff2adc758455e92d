/* Mends a run after a kill: undoes or finishes an interrupted move, snapshot or rollback when the run is opened again.
 * run/directory/journal.h lists the journals that say so; making.h ends an interrupted making.
 *
 *   RUN/snapshots/NAME.json      a snapshot: step, digest, drives, settings; written last
 *   RUN/snapshots/NAME.files/    its files from the run directory: metrics.jsonl, residuals
 */
#ifndef SHORE_RUN_LIFECYCLE_MEND_H
#define SHORE_RUN_LIFECYCLE_MEND_H

#include "run/run.h"

/* Bit mask (1 << enum shore__change) of the changes that were interrupted, or are under way. */
unsigned shore__run_interrupted(const char *run_path);
/* Whether one of them stops even readers. Writers mend the rest: unfinished snapshots, and remains of moves. */
bool shore__run_blocks_readers(const char *run_path);

int shore__move_mend(struct shore__run *run, shore__note_fn note, void *ctx, struct shore_diag *diag);
int shore__rollback_mend(struct shore__run *run, shore__note_fn note, void *ctx, struct shore_diag *diag);

/* For a run that replaces another: removes the old one's snapshots and interrupted changes. drives: the old one's; may
 * be NULL. Notes what stays. */
void shore__run_forget(const char *run_path, const struct shore__addresses *drives, shore__note_fn note, void *ctx);
/* Removes the journals and the descriptions of snapshots of a run that goes. */
void shore__changes_forget(const char *run_path, shore__note_fn note, void *ctx);
/* Called with the run locked. Says what it did in run->note. */
int shore__run_mend(struct shore__run *run, bool roll_back, struct shore_diag *diag);

#endif
