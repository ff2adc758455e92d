/* Snapshots: named copies of a run's state, with their descriptions and their parts on drives. */
#ifndef SHORE_RUN_LIFECYCLE_SNAPSHOTS_H
#define SHORE_RUN_LIFECYCLE_SNAPSHOTS_H

#include "files/atomic.h"
#include "run/run.h"

#define SHORE__BEST "best" /* the snapshot of --keep-best */

struct shore__snapshot {
    char name[72], date[32], digest[33];
    char files[72];  /* what its files are called: as it is, or of `best` another name than those of the one before */
    bool automatic;  /* of --snapshot-every */
    double val_loss; /* of `best`, as --keep-best made it; NaN: of no other */
    uint64_t step, generation, fleet_id[2];
    struct shore__addresses volumes; /* the copies, by place in their fleet */
    json_t *json;                    /* the whole NAME.json: settings, changes, processor */
};

/* Makes a snapshot of the fleet's committed step, with no update under way. Durable: on return. SHORE_EEXISTS,
 * SHORE_EUSAGE. */
int shore__snapshot_make(struct shore__run *run, struct shore_fleet *fleet, const char *name, bool automatic,
                         struct shore_diag *diag);
/* The same in pieces, for several processes: begin lists the copies in a journal, then all drives make theirs, then
 * finish describes them. Where that fails, also in finish, give_up removes them. */
int shore__snapshot_begin(struct shore__run *run, struct shore_fleet *fleet, const char *name, struct shore_diag *diag);
int shore__snapshot_finish(struct shore__run *run, struct shore_fleet *fleet, const char *name, bool automatic,
                           const char digest[33], struct shore_diag *diag);
void shore__snapshot_give_up(const struct shore__run *run, const char *name);
/* An automatic snapshot: its name; makes room for it under that name (1: the user's own is there); removes the oldest
 * beyond `keep` (0: none). */
void shore__snapshot_name_of_step(uint64_t step, char name[32]);
int shore__snapshot_replace(struct shore__run *run, const char *name, shore__note_fn note, void *ctx,
                            struct shore_diag *diag);
int shore__snapshots_prune(const struct shore__run *run, uint64_t keep, shore__note_fn note, void *ctx,
                           struct shore_diag *diag);
int shore__snapshot_read(const char *run_path, const char *name, struct shore__snapshot *out, struct shore_diag *diag);
void shore__snapshot_free(struct shore__snapshot *snapshot);
/* The directory of the run's files that belong to the snapshot's state. files: see above. */
struct shore__path shore__snapshot_files(const char *run_path, const char *files);
/* Whether NAME.json is there. */
bool shore__snapshot_is_made(const char *run_path, const char *name);
int shore__snapshot_names(const char *run_path, struct shore__strings *out, struct shore_diag *diag);
/* Oldest first. */
int shore__snapshots_read(const char *run_path, struct shore__snapshot **out, size_t *count, struct shore_diag *diag);
void shore__snapshots_free(struct shore__snapshot *list, size_t count);
/* Removes a snapshot. Notes and leaves parts that cannot be removed from a drive, and those that a damaged description
 * named. drives: the run's current ones, where parts may be; may be NULL. */
int shore__snapshot_remove(const char *run_path, const char *name, const struct shore__addresses *drives,
                           shore__note_fn note, void *ctx, struct shore_diag *diag);
/* Opens a snapshot's fleet, only for reading, and restores what the program had stored then. SHORE_EUSAGE: there is
 * none of that name. */
int shore__snapshot_open(struct shore__run *run, const char *name, struct shore_fleet **out, struct shore_diag *diag);
bool shore__snapshot_is_interrupted(const char *run_path);
int shore__snapshots_mend(const char *run_path, const struct shore__addresses *drives, shore__note_fn note, void *ctx,
                          struct shore_diag *diag);
/* Removes all snapshots, and says which. despite: goes on after a failure, and says only what stays. */
int shore__snapshots_remove(const char *run_path, const struct shore__addresses *drives, bool despite,
                            shore__note_fn note, void *ctx, struct shore_diag *diag);
void shore__snapshots_forget(const char *run_path);
/* Whether the i-th part of a snapshot lies there. */
bool shore__snapshot_part_is_at(const struct shore__snapshot *s, size_t i, const struct shore__address *at);
/* A snapshot whose parts are to be removed. */
struct shore__parts {
    uint64_t fleet_id[2], generation;
    const struct shore__addresses *drives; /* where they may be; NULL: nowhere else */
    bool unopened;                         /* we have not opened the drives */
    struct shore__address *away;           /* its server does not answer: do not wait for it again */
    struct shore_diag why;
};
/* Removes the files that NAME.partial lists, and then NAME.partial. Notes what it cannot remove: a drive that is gone
 * must not block us. If a file is left, NAME.partial stays for the next opening of the run. */
int shore__snapshot_clear(const char *run_path, const char *name, struct shore__parts *parts, bool *left,
                          shore__note_fn note, void *ctx, struct shore_diag *diag);
/* The same for one that was interrupted. Of one that is made, or whose files are those of `best`, all stays. */
int shore__snapshot_mend(const char *run_path, const char *name, struct shore__parts *parts, shore__note_fn note,
                         void *ctx, struct shore_diag *diag);
/* true: the part lies there or may come to, and cannot be removed now; held: why, for the first one. */
bool shore__part_discard(struct shore__parts *p, size_t i, const struct shore__address *part, struct shore_diag *held,
                         shore__note_fn note, void *ctx);
/* Records parts that were moved by hand beside these drives, so that they are found once the state has left the
 * drives. */
int shore__snapshots_follow(const char *run_path, const struct shore__addresses *drives, struct shore_diag *diag);

#endif
