/* Runs: a directory RUN that describes a fleet: its tensors, the drives that hold it, and its step. With it, `longshore
 * inspect`, `drive`, `snapshot`, `rollback`, `export` and `remove` know the run, and a program can go on with it.
 *
 *     shore_run_create(path, layout, shapes, ...)     once: then shore_fleet_init_block() for each block,
 *     shore_run_seal(run, 0, ...)                     and RUN is there
 *     shore_run_open(path, ...)                       later: at the last committed step
 *     each step:  shore_fleet_update(shore_run_fleet(run), ...) ... shore_run_commit(run, ...),
 *                 shore_run_commit_wait(run, ...)
 *     shore_run_close(run)
 *
 * Several processes may share a run, see the end of this page.
 *
 * Paths and names are UTF-8. Threading: one thread at a time calls the functions of a run; for its fleet, see state.h.
 * Another process, also a forked one, opens the run itself.
 */
#ifndef LONGSHORE_RUN_H
#define LONGSHORE_RUN_H

#include "longshore/metrics.h"
#include "longshore/state.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shore_run;

#define SHORE_RANK_MOST 8u
#define SHORE_PROGRAM_BYTES (1u << 20) /* the most that a run keeps for the program that made it */

/* A tensor as the program that owns the model has it. */
struct shore_shape {
    const char *name; /* "conv1.weight": no other tensor of the run has it */
    uint32_t rank;    /* 0: a scalar */
    uint64_t dims[SHORE_RANK_MOST];
    enum shore_dtype dtype; /* the dtype that is computed with and that export writes */
    uint32_t ntied;
    const char *const *tied; /* other names of the same tensor, which is stored once */
    /* Where it lies; create ignores these. In a run that `longshore train` made, several tensors may lie in one tensor
     * of the layout, each in rows of its own, and some transposed. */
    uint32_t block, tensor;
    uint64_t offset_elems; /* of its first element, within the block */
    bool transposed;       /* of rank 2: it lies there as [dims[1], dims[0]] */
    /* In such a run: files have one tensor [nslices, dims...], of which this is one slice (an expert's weights). 0:
     * they have this one. */
    uint32_t nslices, slice;
};

/* How a run is made. Zero-initialise. */
struct shore_run_making {
    size_t size; /* sizeof(struct shore_run_making) */
    /* Options for shore_fleet_create(). A drive that is a directory gets a volume under the run's own name, beside
     * those of other runs. overwrite: also replaces a run at this path, which stays whole until the new run's files
     * take its place or one of its volumes is made anew; never the state of another run. identity, fleet_id,
     * generation, epoch: zero. mine: this process has a part of the run; each volume then has a path of its own, a
     * whole one where its directory is not seen here. */
    const struct shore_fleet_options *fleet;
    /* A JSON object of the program: its "name", and anything else that it needs to go on. SHORE_PROGRAM_BYTES at most.
     * Whole numbers have 64 bits with a sign; write larger ones as text. */
    const char *program;
    uint64_t memory_bytes; /* budget: recorded, and respected when the state is moved or put back; 0: none */
    bool not_a_copy;       /* the directory of a killed creation is the original, and no copy */
    bool keeps;            /* with mine: this process keeps the run, and the others join it */
};

/* How a run is opened. Zero-initialise; NULL for all of it is allowed. */
struct shore_run_opening {
    size_t size;    /* sizeof(struct shore_run_opening) */
    bool read_only; /* others may read at the same time; commits, records, snapshots: -EROFS */
    bool not_a_copy;
    const char *const *moved; /* "OLD=NEW": the new places of drives that were moved by hand; recorded */
    uint32_t nmoved;
    uint32_t chunk_segments; /* this and the next members: as in struct shore_fleet_options */
    uint64_t ring_bytes;
    const uint64_t *accept_step;
    struct shore_arena *arena;
    void (*note)(void *ctx, const char *text); /* also about interrupted work that is mended */
    void *note_ctx;
    const char *snapshot; /* opens the snapshot of this name in place of the run's state; only with read_only. A process
                             that works on the run is not disturbed */
    bool without_drives; /* opens no drive, and shore_run_fleet() is NULL: for what the run itself records, at any step.
                            Only with read_only. (A stopped move or rollback is finished first, as by any opening, and
                            that opens the drives) */
    /* This process has a part of the run: as in struct shore_fleet_options. Ownership: mine is borrowed during the
     * call. The order of the fleet is that of shore_run_drive(). */
    const bool *mine;
    bool keeps; /* with mine: this process keeps the run, and the others join it */
    int (*fetch_elsewhere)(void *ctx, const struct shore_elsewhere *request, struct shore_completion done);
    void *elsewhere_ctx;
};

/* Work that takes time and reports its progress. Zero-initialise; NULL for all of it is allowed. */
struct shore_work {
    size_t size;           /* sizeof(struct shore_work) */
    uint64_t memory_bytes; /* of buffers; 0: as the run's budget allows, or little */
    bool not_a_copy;       /* for a run that is not open: as in struct shore_run_making */
    void (*note)(void *ctx, const char *text);
    void *note_ctx;
    int (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes); /* nonzero: stop, with -ECANCELED */
    void *progress_ctx;
};

/* ---- making, opening --------------------------------------------------------------------------------------------- */

/* Checks whether shore_run_create() may begin there, for a program with much to do before. Refuses what it can see of
 * the directory and the drives. how: as it will be given; program and the fleet's contents are ignored. Creates and
 * changes nothing. Errors: as of shore_run_create(), as far as they show by then. */
int shore_run_check(const char *path, const struct shore_run_making *how, struct shore_diag *diag);

/* Begins a run: the directory and its fleet. The caller fills the fleet (shore_fleet_init_block(), or images by
 * shore_fleet_store()). shapes: one for each tensor of the layout, in its order. Until it is sealed it is no run: after
 * a kill at any instant, the same call makes it again, and `longshore remove` removes it. Ownership: the run is the
 * caller's, for shore_run_close(); everything else is borrowed during the call, except the arena. Durable: nothing
 * before seal. Errors: as of shore_fleet_create(); SHORE_EEXISTS (a run, or files of one, are there), SHORE_EBUSY
 * (another process works on it), SHORE_EUSAGE (a copy of a run), SHORE_EINPUT (shapes that do not fit the layout, a
 * name twice, program). */
int shore_run_create(const char *path, const struct shore_layout *layout, const struct shore_shape *shapes,
                     uint32_t nshapes, const struct shore_run_making *how, struct shore_run **out,
                     struct shore_diag *diag);

/* Seals the fleet at `step` (0 for a new model): RUN is a run from then on. Durable: on return. Errors: as of
 * shore_fleet_seal(); -EIO, -ENOSPC of the directory. */
int shore_run_seal(struct shore_run *run, uint64_t step, struct shore_diag *diag);

/* Opens a run with its fleet, at the committed step; also a run that `longshore train` made. Interrupted work is
 * finished or undone first. Ownership: as of shore_run_create(). Durable: as of shore_fleet_open(). Errors: as of
 * shore_fleet_open(); SHORE_EMISSING (no run, or its creation was killed), SHORE_EFORMAT (another version),
 * SHORE_EINPUT, SHORE_ECORRUPT (run.json), SHORE_EBUSY (another process works on it), SHORE_EUSAGE (moved; a copy; no
 * such snapshot, or a snapshot without read_only). */
int shore_run_open(const char *path, const struct shore_run_opening *how, struct shore_run **out,
                   struct shore_diag *diag);

/* Closes a run and its fleet. If it was not sealed, its volumes and the new parts of its directory are removed. Waits
 * for a pending commit, and writes its metrics. Ownership: nobody uses the run or its fleet. NULL is allowed. */
void shore_run_close(struct shore_run *run);

/* Call it in a forked child instead of shore_run_close(), if the run was open at the fork. It closes the child's
 * descriptors of the run and its fleet, so the child neither holds the drives nor keeps them locked when its parent is
 * gone. The parent's run goes on, under its lock; other descriptors stay as they are. Ownership: the child may do
 * nothing else with the run; its memory stays with the process. NULL is allowed. Threading: as at a fork, with no other
 * thread. */
void shore_run_forked(struct shore_run *run);

/* ---- what it is -------------------------------------------------------------------------------------------------- */

/* The run's fleet. Ownership: the run's. NULL: the run was opened without_drives. */
struct shore_fleet *shore_run_fleet(const struct shore_run *run);

/* Path or address of a drive, as the run records it. NULL: no such drive. Ownership: the run's. Threading: any. */
const char *shore_run_drive(const struct shore_run *run, uint32_t drive);

/* The run's layout. Ownership: the run's. Threading: any. */
const struct shore_layout *shore_run_layout(const struct shore_run *run);

/* All tensors, in the order of their blocks, and within a block in the order in which they begin. Ownership: the run's.
 * Threading: any. */
const struct shore_shape *shore_run_shapes(const struct shore_run *run, uint32_t *count);

/* The program's object: the text of a JSON object that the program left. NULL: `longshore train` made the run.
 * Ownership: the run's, until the next shore_run_record(). */
const char *shore_run_program(const struct shore_run *run);

struct shore_run_info {
    size_t size; /* set by the caller: sizeof(struct shore_run_info) */
    enum shore_optimizer optimizer;
    enum shore_moments moments;
    bool with_momentum, fp32_params, residual; /* as in struct shore_fleet_options */
    uint64_t memory_bytes;                     /* as recorded; 0: none */
};
/* Threading: any. Errors: -EINVAL (out->size). */
int shore_run_info(const struct shore_run *run, struct shore_run_info *out);

/* Records a change from a step on ("torch 2.15 instead of 2.14"), which `longshore inspect` shows, and a new object of
 * the program, unless program is NULL. Durable: on return. Errors: SHORE_EINPUT (program), -EROFS, -EIO, -ENOSPC. */
int shore_run_record(struct shore_run *run, uint64_t step, const char *what, const char *program,
                     struct shore_diag *diag);

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Gives the step that is committed next a line in RUN/drives.jsonl, where the meter has ended that step: what each
 * drive did in it. It is written with the line of metrics. Errors: as of shore_run_commit(). */
int shore_run_drives(struct shore_run *run, const struct shore_meter *meter, struct shore_diag *diag);

/* Commits the next step as shore_fleet_commit_with() does; commit->metrics is NULL. metrics: the step's line in
 * RUN/metrics.jsonl, beside its number: a JSON object on any number of lines, NULL for none, less than 1 MiB. It goes
 * with the commit first, so no kill loses it; above 2,048 bytes, a kill may lose the last members. Ownership: nothing
 * is borrowed. Durable: once shore_run_commit_wait() says so. Errors: -EBUSY (one is pending), SHORE_EINPUT (metrics),
 * -EINVAL (commit), -EROFS. */
int shore_run_commit(struct shore_run *run, const struct shore_commit *commit, const char *metrics,
                     struct shore_diag *diag);

/* Waits for a pending commit, and then writes its line of metrics. Errors: as of the completion of
 * shore_fleet_commit_with(); -EIO, -ENOSPC of the directory: the step is committed then, and the next commit writes the
 * line first. */
int shore_run_commit_wait(struct shore_run *run, struct shore_diag *diag);

/* After SHORE_ELINK: calls shore_fleet_reconnect(), and brings the metrics to the step that is committed now. A pending
 * commit is forgotten; it may have succeeded or not. Errors: as of shore_fleet_reconnect(). */
int shore_run_reconnect(struct shore_run *run, struct shore_diag *diag);

/* ---- a limit of writes a day ---------------------------------------------------------------------------------------
 *
 * Holds back steps, so that what the drives have written since the start, with the step that begins, is never more than
 * the limit's share of the time.
 *
 *     after a step's work is handed to its commit:  if (shore_endurance_holds(e)) wait for the commit, then
 *     while ((seconds = shore_endurance_left(e)) > 0) sleep
 *     and at the start of a run that goes on, before its first step: the same loop
 *
 * Threading: one thread at a time. */
struct shore_endurance;
/* Begins to count, in a run that goes on with its last step. most: bytes a day of each drive, in their order, then of
 * all together; 0: any. step_bytes: what a step writes at least; 0: what the metrics say of the last one. *out is NULL
 * if there is no limit. Ownership: borrows the run until shore_endurance_close(). Errors: -ENOMEM; -EINVAL (a run
 * without its drives, or in parts). */
int shore_endurance_open(struct shore_run *run, const uint64_t *most, uint64_t step_bytes, struct shore_endurance **out,
                         struct shore_diag *diag);
/* NULL is allowed, also below. */
void shore_endurance_close(struct shore_endurance *endurance);
/* Once after each step that another one follows: whether that has to wait. The commit may be under way. */
bool shore_endurance_holds(struct shore_endurance *endurance);
/* Seconds until the next step may begin; 0: now. No commit is under way. */
double shore_endurance_left(struct shore_endurance *endurance);

/* ---- snapshots --------------------------------------------------------------------------------------------------- */

/* Keeps the committed state under a name. No update or commit is under way. name NULL: an automatic snapshot named
 * after the step (step-000100), of which the newest `keep` stay; 0: all. Durable: on return. Errors: SHORE_EEXISTS,
 * SHORE_EUSAGE (an invalid name), -ENOSPC, -EIO, SHORE_ELINK, -EROFS. */
int shore_run_snapshot(struct shore_run *run, const char *name, uint64_t keep, struct shore_diag *diag);

/* Removes a snapshot. Durable: on return. Errors: SHORE_EUSAGE (no snapshot of that name; a copy of a run), -EIO,
 * -EROFS. */
int shore_run_snapshot_remove(struct shore_run *run, const char *name, struct shore_diag *diag);

struct shore_snapshot {
    const char *name, *date; /* date: when it was made, UTC: "2026-11-27T18:00:00Z" */
    const char *digest;      /* 32 hexadecimal digits */
    uint64_t step;
    bool automatic;
};
/* Lists the snapshots of a run, which need not be open, the oldest first. Ownership: the argument of `each` is valid
 * during its call. Errors: SHORE_EMISSING (no run), SHORE_EINPUT, -ENOMEM. */
int shore_run_snapshots(const char *path, void (*each)(void *ctx, const struct shore_snapshot *snapshot), void *ctx,
                        struct shore_diag *diag);

/* Puts the state back to a snapshot, with metrics and the program's object as they were then. The run is not open.
 * *step (may be NULL): its step now. Durable: on return; if interrupted, it goes on when the run is opened. Errors:
 * SHORE_EUSAGE (no such snapshot; a copy of a run), SHORE_ECORRUPT, -ECANCELED, and those of shore_run_open(). */
int shore_run_rollback(const char *path, const char *name, const struct shore_work *work, uint64_t *step,
                       struct shore_diag *diag);

/* ---- what it becomes --------------------------------------------------------------------------------------------- */

/* An extra tensor that an export writes as it is: a buffer of a module. */
struct shore_extra {
    const char *name;
    const char *type; /* as safetensors names it: "I64" */
    uint32_t rank;
    uint64_t dims[SHORE_RANK_MOST];
    const void *data;
};
struct shore_run_exporting {
    size_t size;    /* sizeof(struct shore_run_exporting) */
    bool converted; /* all tensors are written as dtype; otherwise each as its shape says */
    enum shore_dtype dtype;
    uint64_t shard_bytes; /* of a file; 0: 5 GiB */
    bool moments; /* also writes moments, in fp32, of tensors that do not rest: each in DIRECTORY/optimizer/NAME, NAME
                     as torch.optim calls it. The program adds the number of updates that they have seen to
                     DIRECTORY/optimizer/optimizer.json ("updates": an integer) */
    uint32_t nextras;
    const struct shore_extra *extras; /* borrowed during the call */
};
/* Writes the committed state as safetensors under the tensors' names, each once: model.safetensors, or shards with
 * model.safetensors.index.json. Memory does not grow with the model. FP32: the exact masters; BF16: as they are
 * fetched; FP16: rounded to nearest. The directory must not exist, or be empty; it appears whole or not at all. how:
 * may be NULL. For a run that `longshore train` made, `longshore export` also writes config.json and tokenizer. No
 * commit is pending. Errors: -EBUSY (one is), SHORE_EEXISTS, SHORE_EINPUT (a value is too large for FP16), -ECANCELED,
 * -ENOSPC, -EIO, SHORE_ECORRUPT, SHORE_ELINK. */
int shore_run_export(struct shore_run *run, const char *directory, const struct shore_run_exporting *how,
                     const struct shore_work *work, struct shore_diag *diag);

/* Deletes a run that is not open, with its volumes and snapshots; also a run whose creation was killed. If interrupted,
 * the same call goes on. Errors: SHORE_EMISSING (no run), SHORE_EBUSY, SHORE_EUSAGE (a copy of a run), SHORE_ELINK,
 * -EIO. */
int shore_run_remove(const char *path, const struct shore_work *work, struct shore_diag *diag);

/* ---- a part of a run -----------------------------------------------------------------------------------------------
 *
 * Several processes may share a run: each has a part of its fleet (see state.h), and all of them see the one directory.
 * One of them keeps the run: it has the lock, and it alone writes to the directory. The others join it:
 * shore_run_create() and shore_run_open() refuse that while nobody keeps the run.
 *
 *     the keeper: shore_run_create() or _open(), then the others
 *     each:       shore_fleet_part(), which the program sends to all, and shore_run_unite()
 *     created:    each: initial state; the others: shore_run_seal(), then the keeper, whose seal makes the run
 *     each step:  each: updates ... shore_run_commit(), shore_run_commit_wait()
 *                 all tell each other that these are done, then each: shore_run_confirm()
 *
 * The run is the same as one that a single process has, and goes from one to the other. All processes give the same
 * metrics to shore_run_commit(): after a kill, those of any of them may be found. In a process that joins,
 * shore_run_record() changes nothing on disk, and takes the program's object in memory. Only a process that has the
 * whole run moves it, rolls it back or removes it.
 *
 * After a kill at any instant all processes close and do the same again. A creation is made again; an opened run is at
 * the newest step that all parts have. */

/* shore_fleet_unite() for the run's fleet. In the keeper of a run that was opened, it also brings the metrics to the
 * committed step, and records what shore_run_open() was told of moved drives. Errors: as of shore_fleet_unite(); -EIO,
 * -ENOSPC of the directory. */
int shore_run_unite(struct shore_run *run, const void *const *parts, const size_t *bytes, uint32_t nparts,
                    struct shore_diag *diag);

/* Every process has committed `step`: shore_fleet_confirm() for the run's fleet. The keeper writes its line of metrics
 * and the hint, which so never name a step that a part lacks. Until then, the next commit is refused with -EBUSY. A run
 * that is open as a whole needs none, and returns 0. Errors: SHORE_ESTALE (not the step that was committed), -EBUSY
 * (its commit is pending); -EIO, -ENOSPC of the directory: as of shore_run_commit_wait(). */
int shore_run_confirm(struct shore_run *run, uint64_t step, struct shore_diag *diag);

/* What shore_run_snapshot() does, by all processes, with the same name in each. The committed step is confirmed, and no
 * update or commit is under way.
 *
 *     the keeper: shore_run_snapshot_begin(), then
 *     each:       shore_run_snapshot_copy(), of the own volumes; then, once all have succeeded,
 *     the keeper: shore_run_snapshot_end() with the digest of all parts (see shore_fleet_digest_of())
 *
 * If one fails, each calls shore_run_snapshot_end() without a digest, the keeper last: it removes what was made.
 * shore_run_snapshot_begin() returns 1 if there is nothing to do: name is NULL, and the step has a snapshot of that
 * name which was not made automatically. Errors: as of shore_run_snapshot(). */
int shore_run_snapshot_begin(struct shore_run *run, const char *name, struct shore_diag *diag);
/* Errors: as of shore_run_snapshot(). */
int shore_run_snapshot_copy(struct shore_run *run, const char *name, struct shore_diag *diag);
/* digest: 16 bytes, or NULL to give it up. Durable: on return. Errors: as of shore_run_snapshot(). */
int shore_run_snapshot_end(struct shore_run *run, const char *name, uint64_t keep, const unsigned char *digest,
                           struct shore_diag *diag);

#ifdef __cplusplus
}
#endif

#endif
