/* Where the volumes of a run that is being made come to lie. */
#ifndef SHORE_RUN_LIFECYCLE_PLACES_H
#define SHORE_RUN_LIFECYCLE_PLACES_H

#include "run/lifecycle/making.h"

/* Where a run is, for what follows, in run->private->home. */
int shore__run_find_home(struct shore__run *run, struct shore_diag *diag);
/* The path that a run which was made at `home` gives the volume of a new drive: in a directory, under the run's own
 * name, so that several runs lie there. *out is malloc'ed; NULL where it fails. SHORE_EEXISTS where the state of
 * another run stands: which, and at what step. Nobody overwrites that. */
int shore__volume_place(const struct shore__address *drive, const char *home, const uint64_t fleet_id[2],
                        struct shore__address **out, struct shore_diag *diag);
/* Turns a run's drives into the paths of its volumes, notes which of these are new or replaced, and finds out whether
 * what is there is what a killed making left: volumes of its fleet, or such files without a header. Changes nothing on
 * the drives. */
int shore__making_place(struct shore__run *run, const struct shore__draft *before, const struct shore__run *overwritten,
                        struct shore_diag *diag);

#endif
