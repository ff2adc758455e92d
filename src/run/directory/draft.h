/* RUN/making/plan.json: the fleet and the volume files that a killed making may have left. */
#ifndef SHORE_RUN_DIRECTORY_DRAFT_H
#define SHORE_RUN_DIRECTORY_DRAFT_H

#include "run/internal.h"

struct shore__draft {
    uint64_t fleet_id[2];
    struct shore__addresses fresh;
    struct shore__origin origin;
    char *maker; /* another program's name; NULL: train or import */
};
/* SHORE_EMISSING: there is none. */
int shore__draft_read(const char *run_path, struct shore__draft *out, struct shore_diag *diag);
void shore__draft_free(struct shore__draft *draft);
/* For the current directory, whatever the draft says about it. */
int shore__draft_write(const char *run_path, const struct shore__draft *draft, struct shore_diag *diag);
/* standing.c. SHORE_EUSAGE: they are not this directory's to remove. */
int shore__draft_refuse_copy(const char *run_path, const struct shore__draft *draft, struct shore_diag *diag);

#endif
