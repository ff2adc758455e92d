/* A local drive as its files share it: a volume, and an I/O queue per lane, which belongs to the lane's thread. */
#ifndef SHORE_DRIVE_LOCAL_LOCAL_H
#define SHORE_DRIVE_LOCAL_LOCAL_H

#include "drive/local/front.h"
#include "near/engine.h"
#include "storage/blockio.h"

struct shore__pipeline;

#define SHORE__FETCH_SPANS 8u
#define SHORE__FETCH_SPAN_SEGMENTS 4u
#define SHORE__FETCH_OPS (SHORE_PLANE_COUNT * SHORE__FETCH_SPANS)

struct shore__local {
    struct shore__front front;
    struct shore__volume volume;
    struct shore__io *fetch_io, *update_io;
    struct shore__pipeline *pipeline; /* the update lane's */
    struct shore__engine *engine;     /* the update lane's */
    struct shore__engine host;
    unsigned char *ring, *stage;
    size_t ring_bytes, stage_bytes;
    struct shore__leaf *spill_leaf; /* by local segment, if gradients may be spilled */
};

/* The update lane's working state; free() it. Needs the ring. NULL: out of memory. */
struct shore__pipeline *shore__pipeline_new(struct shore__local *l);
/* Gives a device its part of the ring, and tests it. */
int shore__pipeline_attach(struct shore__pipeline *p, struct shore_diag *diag);

/* The lanes' threads. ctx: the drive. */
void *shore__local_update_lane(void *ctx);
void *shore__local_fetch_lane(void *ctx);

/* local_call.c: runs a function, on the fetch lane, with no I/O under way. */
void shore__local_run(struct shore__local *l, struct shore__local_job *job);

/* local_commit.c: on the update lane, with no I/O under way. */
int shore__local_load(struct shore__local *l, struct shore__local_job *job);
int shore__local_begin(struct shore__local *l, struct shore__local_job *job);
int shore__local_commit(struct shore__local *l, struct shore__local_job *job);
int shore__local_snapshot(struct shore__local *l, struct shore__local_job *job);
int shore__local_blob(struct shore__local *l, struct shore__local_job *job);

/* When a gate lets so much of a lane's work end; 0: no gate. The recorder hears of what crosses the host link. */
uint64_t shore__local_gate_ns(const struct shore__local *l, enum shore_lane lane, uint64_t amount);
/* Begins an operation of the job; false: it failed. */
bool shore__local_io_begin(struct shore__local *l, struct shore__io *io, struct shore__local_job *job,
                           struct shore__io_op *op);
/* Tells the recorder that an operation has ended. */
void shore__local_io_done(const struct shore__local *l, const struct shore__io_op *op);
/* Records where an operation failed. The first failure of a job stays. */
void shore__local_io_failed(struct shore__local *l, struct shore__local_job *job, const struct shore__io_op *op);

/* Checks spilled gradients of [local, local + count), `each` bytes per segment, against their checksums on arrival. */
int shore__local_check_spilled(const struct shore__local *l, struct shore__local_job *job, uint32_t local,
                               uint32_t count, const unsigned char *gradient, size_t each);

/* Bytes of one segment in a buffer of the update ring, and the most operations of a chunk. */
size_t shore__local_ring_segment_bytes(const uint32_t plane_bytes[SHORE_PLANE_COUNT], bool spill);
unsigned shore__local_chunk_ops(const struct shore__drive_config *config);

#endif
