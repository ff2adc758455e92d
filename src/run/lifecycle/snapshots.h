/* Named copies of a run's state: their descriptions, and the parts that lie on drives. */
#ifndef SHORE_RUN_LIFECYCLE_SNAPSHOTS_H
#define SHORE_RUN_LIFECYCLE_SNAPSHOTS_H

#include "run/run.h"

struct shore__snapshot {
    char name[72], date[32], digest[33];
    bool automatic;
    uint64_t step, generation, fleet_id[2];
    struct shore__addresses volumes; /* the copies, by place in their fleet */
    json_t *json;                    /* all of NAME.json: settings, changes, processor */
};

/* Of the fleet's committed step: no update is under way. Durable: on return. SHORE_EEXISTS, SHORE_EUSAGE. */
int shore__snapshot_make(struct shore__run *run, struct shore_fleet *fleet, const char *name, bool automatic,
                         struct shore_diag *diag);
int shore__snapshot_read(const char *run_path, const char *name, struct shore__snapshot *out, struct shore_diag *diag);
void shore__snapshot_free(struct shore__snapshot *snapshot);
int shore__snapshot_names(const char *run_path, struct shore__strings *out, struct shore_diag *diag);
/* Oldest first. */
int shore__snapshots_read(const char *run_path, struct shore__snapshot **out, size_t *count, struct shore_diag *diag);
void shore__snapshots_free(struct shore__snapshot *list, size_t count);
/* What cannot be removed from a drive is said and left, and so is what a damaged description named. drives: of the run
 * now, where parts may have gone; may be NULL.
 */
int shore__snapshot_remove(const char *run_path, const char *name, const struct shore__addresses *drives,
                           shore__note_fn note, void *ctx, struct shore_diag *diag);
/* The fleet of one, for reading only; what the program has left becomes as it was then. SHORE_EUSAGE: no such one. */
int shore__snapshot_open(struct shore__run *run, const char *name, struct shore_fleet **out, struct shore_diag *diag);
bool shore__snapshot_is_interrupted(const char *run_path);
int shore__snapshots_mend(const char *run_path, const struct shore__addresses *drives, shore__note_fn note, void *ctx,
                          struct shore_diag *diag);
void shore__snapshots_forget(const char *run_path);
/* Whether the i-th part of a snapshot lies there. */
bool shore__snapshot_part_is_at(const struct shore__snapshot *s, size_t i, const struct shore__address *at);
/* Whose parts are to go. */
struct shore__parts {
    uint64_t fleet_id[2], generation;
    const struct shore__addresses *drives; /* where they may have gone; NULL: nowhere */
    bool unopened;                         /* the drives, by us */
    struct shore__address *away;           /* whose server does not answer: that is not waited for again */
    struct shore_diag why;
};
/* true: it may come to lie there, or lies there still, and cannot be removed now; held: why, of the first such. */
bool shore__part_discard(struct shore__parts *p, size_t i, const struct shore__address *part, struct shore_diag *held,
                         shore__note_fn note, void *ctx);
/* Parts that lie beside these drives now, where they were moved by hand: the descriptions follow them, so that they are
 * found once the state has left those drives. */
int shore__snapshots_follow(const char *run_path, const struct shore__addresses *drives, struct shore_diag *diag);

#endif
