/* A local drive inside: a volume, and two lanes with a queue each.
 *
 * The update lane runs UPDATE, initial state, deep checks, begin and commit; the fetch lane all else. Each queue
 * belongs to its lane's thread.
 */
#ifndef SHORE_DRIVE_LOCAL_LOCAL_H
#define SHORE_DRIVE_LOCAL_LOCAL_H

#include <stdatomic.h>

#include "drive/chunk.h"
#include "drive/function.h"
#include "drive/lane.h"
#include "storage/blockio.h"

struct shore__pipeline;
struct shore__cache;

#define SHORE__FETCH_PIECES 8u
#define SHORE__FETCH_PIECE_SEGMENTS 4u

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
    /* pieces on the fetch lane */
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
    uint32_t under_way;      /* chunks or pieces */
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
        struct {
            enum shore_fetch_kind kind;
            unsigned char *dst;
        } fetch;
        struct shore_store store;
        struct shore__call call;
    };
};

struct shore__local {
    struct shore__drive drive;
    struct shore__drive_config config;
    struct shore__volume volume;
    _Atomic bool created; /* and not begun yet; read where requests come in */
    uint64_t epoch;
    struct shore__slots slots;
    struct shore__lane fetches, updates;
    struct shore__io *fetch_io, *update_io;
    struct shore__pipeline *pipeline; /* the update lane's */
    struct shore__cache *cache;
    unsigned char *ring, *stage;
    size_t ring_bytes, stage_bytes;
    unsigned char *written;         /* by local segment: in this attempt. Update lane */
    unsigned char *spilled;         /* by local segment: 1 + the form; NULL: no room for spilled gradients */
    struct shore__leaf *spill_leaf; /* the same */
    int attempt_rc;                 /* first failure of this attempt */
    struct shore_diag attempt_diag;
    atomic_uint_fast64_t read_state, write_state, read_fetch, read_spill, write_commit;
    atomic_uint_fast64_t moved[SHORE__FUNCTIONS];
    atomic_uint_fast64_t io_wait_ns, compute_ns;
};

/* The update lane's work in hand; free() gives it back. Needs the ring. NULL: out of memory. */
struct shore__pipeline *shore__pipeline_new(struct shore__local *l);

/* The lanes' threads; ctx: the drive. */
void *shore__local_update_lane(void *ctx);
void *shore__local_fetch_lane(void *ctx);

/* local_commit.c: on the update lane, with no I/O under way. */
int shore__local_load(struct shore__local *l, struct shore__local_job *job);
int shore__local_begin(struct shore__local *l, struct shore__local_job *job);
int shore__local_commit(struct shore__local *l, struct shore__local_job *job);
int shore__local_snapshot(struct shore__local *l, struct shore__local_job *job);
int shore__local_blob(struct shore__local *l, struct shore__local_job *job);

/* An operation failed: says where. The first failure of a job stays. */
void shore__local_io_failed(struct shore__local *l, struct shore__local_job *job, const struct shore__io_op *op);

/* Spilled gradients of [local, local + count), `each` bytes a segment, against the checksums of when they came. */
int shore__local_check_spilled(const struct shore__local *l, struct shore__local_job *job, uint32_t local,
                               uint32_t count, const unsigned char *gradient, size_t each);

/* Bytes of a buffer of the update ring for one segment, and the most operations of a chunk. */
size_t shore__local_ring_segment_bytes(const uint32_t plane_bytes[SHORE_PLANE_COUNT], bool spill);
unsigned shore__local_chunk_ops(const struct shore__drive_config *config);

#endif
