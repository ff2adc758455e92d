/* The front of a drive of this process, in files or in memory: what it is asked becomes jobs, in line for its two
 * lanes. The update lane runs UPDATE, initial state, begin and commit; the fetch lane fetches and calls. */
#ifndef SHORE_DRIVE_LOCAL_FRONT_H
#define SHORE_DRIVE_LOCAL_FRONT_H

#include <stdatomic.h>

#include "drive/chunk.h"
#include "drive/function.h"
#include "drive/lane.h"

struct shore__cache;

/* A drive in memory knows of some only. */
enum shore__local_kind {
    /* streams of chunks through the update ring */
    SHORE__LOCAL_UPDATE,
    SHORE__LOCAL_STORE,
    SHORE__LOCAL_INIT,
    SHORE__LOCAL_VERIFY,
    /* between them */
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
    unsigned slot;           /* that is read (initial state: that is written) */
    uint32_t block, segment; /* first one */
    uint32_t local, count;   /* in segments of this volume */
    uint64_t next;           /* segments (scratch: bytes) that have been started */
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
            void *to; /* NULL: it is only compared with its hash */
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

/* Such a drive begins with it. */
struct shore__front {
    struct shore__drive drive;
    struct shore__drive_config config;
    bool aligned;         /* buffers of fetches and calls have to be */
    _Atomic bool created; /* and not begun yet; read where requests come in */
    struct shore__slots slots;
    struct shore__lane fetches, updates;
    struct shore__cache *cache;
    unsigned char *spilled; /* by local segment: 1 + the form; NULL: no room for spilled gradients */
    /* of the update lane: */
    unsigned char *written; /* by local segment: in this attempt */
    int attempt_rc;         /* first failure of this attempt */
    struct shore_diag attempt_diag;
    uint64_t epoch;
    /* the ledger's: */
    atomic_uint_fast64_t moved[SHORE__FUNCTIONS];
    atomic_uint_fast64_t read_state, write_state, read_fetch, read_spill, write_commit, io_wait_ns, compute_ns;
};

/* NULL: out of memory. The lane frees it, once it is pushed. */
struct shore__local_job *shore__front_job(enum shore__local_kind kind, struct shore_completion done);
/* Fills in which segments the job is about. -EINVAL: the drive has not all of them. */
int shore__front_locate(const struct shore__front *f, struct shore__local_job *job, uint32_t block, uint32_t segment,
                        uint32_t count);
/* Puts it in line on the update lane, and waits. */
int shore__front_ask(struct shore__front *f, struct shore__local_job *job, struct shore_diag *diag);
/* LOAD or BEGIN. */
int shore__front_ask_step(struct shore__front *f, enum shore__local_kind kind, uint64_t epoch, uint64_t step,
                          struct shore_diag *diag);

/* The job is over: tells who asked for it, and frees it. */
void shore__front_finish(struct shore__front *f, struct shore__lane *lane, struct shore__local_job *job);

/* For the update lane. Whether the job writes the slot of the next step. */
bool shore__front_is_of_attempt(const struct shore__front *f, const struct shore__local_job *job);
/* Its attempt was given up, or it came behind the commit of its step: what it would write is the committed slot. */
bool shore__front_is_discarded(struct shore__front *f, const struct shore__local_job *job);
/* Nothing is written yet, and nothing has failed. */
void shore__front_begin_attempt(struct shore__front *f);
/* Whether every segment is written; what: how, for the message. */
int shore__front_check_written(const struct shore__front *f, const char *what, struct shore_diag *diag);
/* Whether the attempt can be committed. */
int shore__front_check_attempt(const struct shore__front *f, struct shore_diag *diag);

/* As of drive.h. */
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
