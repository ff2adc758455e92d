/* What a process does with a run that another process keeps: it has a part of the drives, and only reads the directory.
 */
#ifndef SHORE_RUN_LIFECYCLE_JOINING_H
#define SHORE_RUN_LIFECYCLE_JOINING_H

#include "run/run.h"

/* SHORE_EUSAGE unless another process keeps the run that is there. */
int shore__run_ask_keeper(const char *path, struct shore_diag *diag);
/* Opens a run that another process keeps, which has opened it. */
int shore__run_join(const char *path, const struct shore__strings *moved, struct shore__run **out,
                    struct shore_diag *diag);
/* Instead of shore__making_begin(), once the keeper's is done: takes the fleet's id and the places of the volumes from
 * its journal. SHORE_EMISSING: nothing is being made there. SHORE_EMISMATCH: an own drive is another one there. */
int shore__making_join(struct shore__run *run, struct shore_diag *diag);
#endif
