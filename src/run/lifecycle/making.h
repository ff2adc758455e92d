/* A run that is being made, in what may be the place of another: RUN/making. */
#ifndef SHORE_RUN_LIFECYCLE_MAKING_H
#define SHORE_RUN_LIFECYCLE_MAKING_H

#include "run/directory/draft.h"

/* What is common to the making of all runs. begin: the directory, the draft of its volumes, and the fleet's id; what it
 * is to hold goes into RUN/making. finish: moves that into place and makes it a run. */
int shore__making_begin(struct shore__run *run, bool overwrite, struct shore_diag *diag);
/* Refuses what begin would refuse, and changes nothing. The run is only for this. */
int shore__making_check(struct shore__run *run, bool overwrite, bool not_a_copy, struct shore_diag *diag);
int shore__making_finish(struct shore__run *run, const uint64_t fleet_id[2], shore__note_fn note, void *ctx,
                         struct shore_diag *diag);
/* Undoes a preparation. */
void shore__run_undo(struct shore__run *run);

void shore__making_remove(const char *run_path);
/* Ends a making that was killed: after its last step but one, or while the run stands that it was to overwrite. */
void shore__making_settle(const struct shore__run *run, shore__note_fn note, void *ctx);
/* Opens the way back to a run that is half replaced: its volumes may still be whole. */
int shore__run_recall(const char *path, struct shore_diag *diag);
/* The run that is overwritten, once it is no run any more; NULL: none that can be read. Freed by shore__run_free(). */
struct shore__run *shore__run_overwritten(const char *run_path);
/* Removes its volumes, once the run that takes its place stands; what stays is said. overwritten: may be NULL. */
void shore__run_drop(const struct shore__run *overwritten, shore__note_fn note, void *ctx);
#endif
