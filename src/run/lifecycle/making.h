/* Makes a run, perhaps in place of another, with RUN/making as workplace. */
#ifndef SHORE_RUN_LIFECYCLE_MAKING_H
#define SHORE_RUN_LIFECYCLE_MAKING_H

#include "run/directory/journal.h"

/* Steps that the making of every run shares. begin: makes the directory, the journal of the volumes, and the fleet's
 * id; the caller puts the contents into RUN/making. finish: moves them into place, which makes it a run. */
int shore__making_begin(struct shore__run *run, bool overwrite, struct shore_diag *diag);
/* Refuses what begin would refuse, and changes nothing. The run serves only for this. */
int shore__making_check(struct shore__run *run, bool overwrite, bool not_a_copy, struct shore_diag *diag);
int shore__making_finish(struct shore__run *run, const uint64_t fleet_id[2], shore__note_fn note, void *ctx,
                         struct shore_diag *diag);
/* Moves run.json of an overwritten run into RUN/making: from here on it is no longer a run. */
int shore__making_retire(const struct shore__run *run, struct shore_diag *diag);
/* Undoes a preparation. */
void shore__run_undo(struct shore__run *run);

void shore__making_remove(const char *run_path);
/* Ends a killed making where a run stands: the new one, or the one that was to be overwritten. */
void shore__making_settle(const struct shore__run *run, shore__note_fn note, void *ctx);
/* Where no run.json stands: finishes a new run that is whole, or puts the old one back if its volumes are. */
int shore__run_recall(const char *path, struct shore_diag *diag);
/* The overwritten run, after its end; NULL: none that can be read. Free it with shore__run_free(). */
struct shore__run *shore__run_overwritten(const char *run_path);
/* The run that stands there, or else the overwritten one. */
struct shore__run *shore__run_before(const char *run_path);
/* Removes an overwritten run's volumes, once the new one stands; notes those that stay. overwritten: may be NULL. */
void shore__run_drop(const struct shore__run *overwritten, shore__note_fn note, void *ctx);
#endif
