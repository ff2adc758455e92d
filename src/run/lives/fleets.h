/* The fleets of a run over time: another placement, copies of the state under a name, and going back to one. What is
 * interrupted is undone or goes on when the run is opened again: see mend.c.
 *
 *   RUN/moving.json              a placement is being changed: which volumes are new, which old; and what earlier
 *                                changes could not remove yet
 *   RUN/rollback.json            the state is being put back to a snapshot
 *   RUN/snapshots/NAME.json      a snapshot: step, digest, drives, settings; written last
 *   RUN/snapshots/NAME.partial   one that is being made or removed: whose files are to go
 *   RUN/snapshots/NAME.files/    what belongs to it of the run directory: metrics.jsonl, residuals
 */
#ifndef SHORE_RUN_LIVES_FLEETS_H
#define SHORE_RUN_LIVES_FLEETS_H

#include "run/internal.h"

/* ---- names of volumes -------------------------------------------------------------------------------------------- */

bool shore__same_path(const char *a, const char *b); /* what does not exist is told by the directory it was in */
/* The drive that a recorded path is on, as people name it: the directory, or the file without the ".gN" that a volume
 * of this generation was given. malloc'ed. */
char *shore__drive_name(const char *recorded, uint64_t generation);
/* Whether a recorded drive is what a user means by this name. */
bool shore__drive_is_named(const char *recorded, uint64_t generation, const char *name);
/* Index in the list, of a whole path before all others; its count if there is none. */
size_t shore__drive_find(const struct shore__addresses *drives, uint64_t generation, const char *name);
/* OLD=NEW. Paths may hold '=' themselves: the one counts before which a drive's name ends. */
struct shore__move {
    size_t drive;   /* of the run; their count: it has no such drive */
    const char *to; /* the end of the word; NULL: there is no '=' */
};
struct shore__move shore__move_split(const struct shore__run *run, const char *word);
/* The volume that a drive's path stands for: here, or on the host that it names, which is asked. */
struct shore__spot {
    struct shore__address *volume;
    bool exists, is_device;
};
int shore__spot_of(const struct shore__address *drive, struct shore__spot *out, struct shore_diag *diag);
/* A drive that lies elsewhere now, or is reached in another way, holds its part of a snapshot beside its volume. This
 * is the part's address there. malloc'ed. */
struct shore__address *shore__part_beside(const struct shore__address *volume, const struct shore__address *part);
/* A name for a new volume of this generation beside the one of the generation before: malloc'ed. */
struct shore__address *shore__volume_next(const struct shore__address *volume, uint64_t generation);
/* Whether a volume of this fleet and placement, or a snapshot of one, is there; drive (or NULL): the one it is of. */
bool shore__volume_is_placed(const struct shore__address *at, const uint64_t fleet_id[2], uint64_t generation,
                             uint32_t *drive);
/* Where a recorded drive is now that the user names a place: a directory holds the file of the same name, and a file's
 * name may miss what this program has added to it. malloc'ed. */
struct shore__address *shore__drive_moved(const struct shore__run *run, const char *recorded,
                                          const struct shore__address *place);

/* SHORE__BEGUN: nothing was written yet, or not whole. */
enum shore__owner { SHORE__BEGUN, SHORE__OURS, SHORE__ANOTHERS };
/* The volume of a drive and whose it is: here, or on another host, where it is known by the drive's name. to_make:
 * fails where it would be over there, and none may be made. */
int shore__volume_owner(const struct shore__address *drive, bool to_make, const uint64_t fleet_id[2],
                        struct shore__address **volume, bool *exists, enum shore__owner *owner,
                        struct shore_diag *diag);
bool shore__volume_is_at(const struct shore__address *drive, const uint64_t fleet_id[2]);

/* ---- copying ----------------------------------------------------------------------------------------------------- */

/* Copies the committed state of one open fleet to another: one that is not sealed yet, or into the slot of
 * base_step + 1. Memory: 16 MiB; tight: four segments. progress in bytes; nonzero stops with -ECANCELED. The caller
 * seals or commits. */
int shore__fleet_copy(struct shore_fleet *from, struct shore_fleet *to, const struct shore_layout *layout,
                      uint64_t base_step, bool tight, shore__progress_fn progress, void *ctx, struct shore_diag *diag);
/* Commits on `to` the step that `from` is at, with its metrics and blob; of a fleet that holds its state by then. */
int shore__fleet_commit_like(struct shore_fleet *to, struct shore_fleet *from, uint64_t step, enum shore_commit_how how,
                             struct shore_diag *diag);

int shore__digest_text(struct shore_fleet *fleet, char out[33], struct shore_diag *diag);

/* Whether two fleets, of so many drives at most, and copying between them at full speed take more than the budget. */
bool shore__copy_is_tight(const struct shore__run *run, struct shore_fleet_options *fleet);

/* ---- placements -------------------------------------------------------------------------------------------------- */

/* Options for a fleet of this run on these drives, of this generation of the placement. */
void shore__run_fleet(const struct shore__run *run, const struct shore__addresses *drives, uint64_t generation,
                      struct shore_fleet_options *options);
/* What a move could not remove yet is for those that write. */
bool shore__move_is_interrupted(const char *run_path, bool for_writing);
int shore__move_mend(struct shore__run *run, shore__note_fn note, void *ctx, struct shore_diag *diag);
void shore__move_forget(const char *run_path);

/* ---- snapshots --------------------------------------------------------------------------------------------------- */

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

/* Whole or not there, durable. */
int shore__file_copy(const char *from, const char *to, struct shore_diag *diag);
/* What of a run directory goes with the state of a step: the metrics, residuals of compression. */
int shore__files_copy(const char *from, const char *to, struct shore_diag *diag);

/* ---- going back -------------------------------------------------------------------------------------------------- */

bool shore__rollback_is_interrupted(const char *run_path);
int shore__rollback_mend(struct shore__run *run, shore__note_fn note, void *ctx, struct shore_diag *diag);
void shore__rollback_forget(const char *run_path);

/* ---- what was interrupted ---------------------------------------------------------------------------------------- */

/* So that not even readers can go on. The rest is for those that write: snapshots that were being made, what is left of
 * moves. */
bool shore__run_is_interrupted(const char *run_path);
/* For a run that takes the place of another: snapshots of the one before, and what it had interrupted. drives: of the
 * one before, may be NULL. What stays is said. */
void shore__run_forget(const char *run_path, const struct shore__addresses *drives, shore__note_fn note, void *ctx);
/* With the run locked. Says what it did in run->note. */
int shore__run_mend(struct shore__run *run, bool roll_back, struct shore_diag *diag);

#endif
