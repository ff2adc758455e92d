/* What longshore/run.h shows of runs, for programs that know nothing else of them. */
#ifndef SHORE_RUN_DOOR_DOOR_H
#define SHORE_RUN_DOOR_DOOR_H

#include "longshore/run.h"
#include "run/run.h"

struct shore_run {
    struct shore__run *run;
    struct shore_fleet *fleet;        /* NULL: it was opened without its drives */
    struct shore__contents *of_model; /* of a run that `train` made; NULL: of another program's */
    bool read_only;
    shore__note_fn note;
    void *note_ctx;
    /* the commit that is pending */
    bool pending;
    uint64_t step;
    char *line;
    struct shore_wait commit;
    bool behind; /* the line of the step that is committed could not be written */
};

/* -EROFS; -EBUSY while a commit is pending, -EINVAL without drives. */
int shore__door_writable(const struct shore_run *r, struct shore_diag *diag);
int shore__door_idle(const struct shore_run *r, struct shore_diag *diag);
/* Says what the run noted, once. */
void shore__door_say(struct shore_run *r);
/* Metrics as of the step that is committed. */
int shore__door_recover_metrics(struct shore_run *r, struct shore_diag *diag);

#endif
