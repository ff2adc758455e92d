/* Places the volumes of a new run. */
#ifndef SHORE_RUN_LIFECYCLE_PLACES_H
#define SHORE_RUN_LIFECYCLE_PLACES_H

#include "run/lifecycle/making.h"

/* Sets run->private->home to the run's path. */
int shore__run_find_home(struct shore__run *run, struct shore_diag *diag);
/* The path of a new drive's volume, for a run made at `home`: in a directory, under the run's own name, so that several
 * runs fit there, and several volumes of a run by their number. *out is malloc'ed; NULL on failure. SHORE_EEXISTS if
 * another run's state is there: names it and its step. Nothing overwrites that. */
int shore__volume_place(const struct shore__address *drive, const char *home, const uint64_t fleet_id[2], size_t number,
                        struct shore__address **out, struct shore_diag *diag);
/* Turns a run's drives into paths of its volumes, and records which are new or replaced. Finds out whether existing
 * files are what a killed making left: volumes of its fleet, or its files without a header. Changes nothing on the
 * drives. */
int shore__making_place(struct shore__run *run, const struct shore__journal *before,
                        const struct shore__run *overwritten, struct shore_diag *diag);

#endif
