/* The front of a drive in this process, in files or in memory: turns requests into jobs for its two lanes. The update
 * lane runs UPDATE, initial state, begin and commit. The fetch lane fetches and calls. */
#ifndef SHORE_DRIVE_LOCAL_FRONT_H
#define SHORE_DRIVE_LOCAL_FRONT_H

#include <stdatomic.h>

#include "drive/chunk.h"
#include "drive/function.h"
#include "drive/lane.h"
#include "drive/reach.h"

/* Kinds of jobs. A drive in memory has only some of them. */
enum shore__local_kind {
    /* streams of chunks through the update ring */
    SHORE__LOCAL_UPDATE,
    SHORE__LOCAL_STORE,
    SHORE__LOCAL_INIT,
    SHORE__LOCAL_VERIFY,
    /* between these */
    SHORE__LOCAL_CARRY,
    /* alone on the update lane, with no I/O under way */
    SHORE__LOCAL_LOAD,
    SHORE__LOCAL_BEGIN,
    SHORE__LOCAL_COMMIT,
    SHORE__LOCAL_DISCARD,
    SHORE__LOCAL_SNAPSHOT,
    SHORE__LOCAL_BLOB,
    /* spans on the fetch lane */
    SHORE__LOCAL_FETCH,
    SHORE__LOCAL_CALL,
};

struct shore__local_job {
    struct shore__job job;
    enum shore__local_kind kind;
    struct shore_completion done;
    unsigned slot;           /* the slot to read (initial state: to write) */
    uint32_t block, segment; /* the first one */
    uint32_t local, count;   /* in segments of this volume */
    uint64_t next;           /* segments (scratch: bytes) started */
    uint32_t under_way;      /* chunks or spans */
    int rc;
    struct shore_diag diag;
    union {
        struct shore_update update;
        struct {
            const float *master, *m, *v;
        } init;
        struct {
            uint64_t epoch, step;
        } begin;
        const struct shore_commit *commit;
        struct {
            void *to; /* NULL: only compares it with its hash */
            uint32_t *bytes;
        } blob;
        struct {
            const char *path;
        } snapshot;
        struct shore__drive_fetch fetch;
        struct shore_store store;
        struct shore__call call;
    };
};

/* The start of such a drive's object. */
struct shore__front {
    struct shore__drive drive;
    struct shore__drive_config config;
    bool aligned;         /* buffers of fetches and calls must be aligned */
    _Atomic bool created; /* and not yet begun; read on the threads that submit */
    struct shore__slots slots;
    struct shore__lane fetches, updates;
    unsigned char *spilled; /* by local segment: 1 + the form; NULL: no room for spilled gradients */
    /* the update lane's: */
    unsigned char *written; /* by local segment: written in this attempt */
    int attempt_rc;         /* first failure of this attempt */
    struct shore_diag attempt_diag;
    uint64_t epoch;
    /* the ledger's: */
    atomic_uint_fast64_t moved[SHORE__COUNTERS]; /* by calls, as their rows say */
    atomic_uint_fast64_t read_state, write_state, read_fetch, read_spill, write_commit, io_wait_ns, compute_ns;
};

/* Memory for joined fetches, which a function uses while it runs. */
static inline size_t shore__stage_bytes(const struct shore__drive_config *config) {
    return (size_t)config->stage_segments * 2 * config->plane_bytes[SHORE_PLANE_HI];
}

/* NULL: out of memory. Once pushed, the job is freed by the lane. */
struct shore__local_job *shore__front_job(enum shore__local_kind kind, struct shore_completion done);
/* Sets the job's segments. -EINVAL: the drive does not have all of them. */
int shore__front_locate(const struct shore__front *f, struct shore__local_job *job, uint32_t block, uint32_t segment,
                        uint32_t count);
/* Pushes the job to the update lane, and waits. */
int shore__front_ask(struct shore__front *f, struct shore__local_job *job, struct shore_diag *diag);
/* LOAD or BEGIN. */
int shore__front_ask_step(struct shore__front *f, enum shore__local_kind kind, uint64_t epoch, uint64_t step,
                          struct shore_diag *diag);

/* When a call's turn comes: sets the slot of its step. Refuses a step or attempt that is not the current one. */
int shore__front_call_begins(struct shore__front *f, struct shore__local_job *job);

/* Ends the job: completes the request, and frees the job. */
void shore__front_finish(struct shore__front *f, struct shore__lane *lane, struct shore__local_job *job);

/* For the update lane. Whether the job writes the next step's slot. */
bool shore__front_is_of_attempt(const struct shore__front *f, const struct shore__local_job *job);
/* Whether the job is outdated: its attempt was given up, or its step was committed, so that it would write the
 * committed slot. */
bool shore__front_is_discarded(struct shore__front *f, const struct shore__local_job *job);
/* Resets the attempt: nothing is written, nothing has failed. */
void shore__front_begin_attempt(struct shore__front *f);
/* Checks that every segment is written. what: the verb, for the message. */
int shore__front_check_written(const struct shore__front *f, const char *what, struct shore_diag *diag);
/* Checks that the attempt can be committed. */
int shore__front_check_attempt(const struct shore__front *f, struct shore_diag *diag);

/* As in drive.h. */
int shore__front_init(struct shore__drive *d, uint32_t block, uint32_t segment, uint32_t count, const float *master,
                      const float *m, const float *v, struct shore_diag *diag);
void shore__front_ledger(const struct shore__drive *d, struct shore_ledger *add_to);
int shore__front_begin(struct shore__drive *d, uint64_t epoch, uint64_t step, struct shore_diag *diag);
int shore__front_fetch(struct shore__drive *d, const struct shore__drive_fetch *fetch, struct shore_completion done);
int shore__front_update(struct shore__drive *d, const struct shore_update *update, struct shore_completion done);
int shore__front_store(struct shore__drive *d, const struct shore_store *store, struct shore_completion done);
int shore__front_carry(struct shore__drive *d, const struct shore_store *which, struct shore_completion done);
int shore__front_call(struct shore__drive *d, const struct shore__call *call, struct shore_completion done);
int shore__front_commit(struct shore__drive *d, const struct shore_commit *commit, struct shore_completion done);
void shore__front_discard(struct shore__drive *d, uint64_t attempt);

#endif
