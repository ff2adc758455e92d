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
    bool part;     /* of several processes; all but the one that keeps the run only read its directory (run->joins) */
    char *opening; /* what is recorded once the drives are there; NULL: nothing */
    shore__note_fn note;
    void *note_ctx;
    /* the pending commit */
    bool pending;
    uint64_t step;
    char *line, *drives; /* of metrics.jsonl, and of drives.jsonl; NULL: none */
    struct shore_wait commit;
    bool behind;                          /* the committed step's line could not be written */
    bool snapshot_begun, snapshot_copied; /* a part: of one that is being made, what this process has done */
    bool unconfirmed;                     /* a part: its commit of `step` is done, and its line waits for the others' */
};

/* -EROFS; -EBUSY while a commit is pending; -EINVAL without drives. */
int shore__door_writable(const struct shore_run *r, struct shore_diag *diag);
int shore__door_idle(const struct shore_run *r, struct shore_diag *diag);
/* Forgets the lines of a step that is not committed any more. */
void shore__door_forget_lines(struct shore_run *r);
/* Says the run's note, once. */
void shore__door_say(struct shore_run *r);
/* Records what opening the run has changed, and writes the metrics of the committed step, once the fleet is there. */
int shore__door_opened(struct shore_run *r, struct shore_diag *diag);
int shore__door_recover_metrics(struct shore_run *r, struct shore_diag *diag);

#endif
