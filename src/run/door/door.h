/* The runs of longshore/run.h, for programs that use nothing else of them. */
#ifndef SHORE_RUN_DOOR_DOOR_H
#define SHORE_RUN_DOOR_DOOR_H

#include "longshore/run.h"
#include "run/run.h"

struct shore_run {
    struct shore__run *run;
    struct shore_fleet *fleet;        /* NULL: opened without its drives */
    struct shore__contents *of_model; /* of a run that `train` made; NULL: another program's */
    bool read_only;
    shore__note_fn note;
    void *note_ctx;
    /* the pending commit */
    bool pending;
    uint64_t step;
    char *line;
    struct shore_wait commit;
    bool behind; /* the committed step's line could not be written */
};

/* -EROFS; -EBUSY while a commit is pending; -EINVAL without drives. */
int shore__door_writable(const struct shore_run *r, struct shore_diag *diag);
int shore__door_idle(const struct shore_run *r, struct shore_diag *diag);
/* Says the run's note, once. */
void shore__door_say(struct shore_run *r);
/* Writes the metrics of the committed step. */
int shore__door_recover_metrics(struct shore_run *r, struct shore_diag *diag);

#endif
