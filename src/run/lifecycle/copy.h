/* Copies state from one fleet of a run to another, with the files that belong to it. */
#ifndef SHORE_RUN_LIFECYCLE_COPY_H
#define SHORE_RUN_LIFECYCLE_COPY_H

#include "run/run.h"

/* Options for a fleet of this run on these drives, with this generation of the placement. */
void shore__run_fleet(const struct shore__run *run, const struct shore__addresses *drives, uint64_t generation,
                      struct shore_fleet_options *options);

/* Copies the committed state of an open fleet to another one, which is not sealed yet, or into its slot of base_step +
 * 1. Memory: 16 MiB; tight: four segments. progress in bytes; nonzero stops with -ECANCELED. The caller seals or
 * commits. */
int shore__fleet_copy(struct shore_fleet *from, struct shore_fleet *to, const struct shore_layout *layout,
                      uint64_t base_step, bool tight, shore__progress_fn progress, void *ctx, struct shore_diag *diag);
/* Commits the step of `from` on `to`, which holds its state by then, with its metrics and blobs. */
int shore__fleet_commit_like(struct shore_fleet *to, struct shore_fleet *from, uint64_t step, enum shore_commit_how how,
                             struct shore_diag *diag);

int shore__digest_text(struct shore_fleet *fleet, char out[33], struct shore_diag *diag);

/* Whether two fleets with at most so many drives, and copying between them at full speed, need more than the budget. */
bool shore__copy_is_tight(const struct shore__run *run, struct shore_fleet_options *fleet);

#endif
