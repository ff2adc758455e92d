/* Chunks of a local drive's update lane: the ring of buffers, and the I/O of a chunk. */
#ifndef SHORE_DRIVE_LOCAL_CHUNKS_H
#define SHORE_DRIVE_LOCAL_CHUNKS_H

#include "drive/local/local.h"

enum chunk_state { CHUNK_FREE, CHUNK_READING, CHUNK_READY, CHUNK_SUBMITTED, CHUNK_COMPUTED, CHUNK_WRITING };

struct chunk {
    struct shore__local *l;
    enum chunk_state state;
    struct shore__local_job *job;
    uint64_t number; /* in starting order */
    uint32_t segment, local, count;
    struct shore__stored stored;
    unsigned char *gradient; /* spilled, or for a device */
    struct shore__engine_job work;
    uint64_t begun_ns; /* computing */
    struct shore__io_op *op;
    unsigned pending;
    bool failed;
};

struct shore__pipeline {
    struct shore__local *l;
    struct shore__local_job *current; /* not all of its chunks have started */
    uint64_t started;
    unsigned busy, computing; /* chunks that are not free; that the engine has */
    uint64_t computed_ns;     /* when the last chunk was computed */
    uint32_t nchunks;
    bool on_device;
    struct chunk chunk[];
};

/* Begin reading or writing; the chunk's pending operations grow. planes: returns the bytes. */
void shore__chunk_move(struct shore__pipeline *p, struct chunk *c, enum shore__io_kind kind, void *buffer,
                       uint64_t offset, size_t bytes);
uint64_t shore__chunk_planes(struct shore__pipeline *p, struct chunk *c, enum shore__io_kind kind, unsigned slot);

/* Whether a plane is read. An update receives the new residual, so it does not read the old one. */
bool shore__chunk_reads(const struct shore__local_job *job, enum shore_plane plane);

/* Holds the chunk until a gate lets such work end, in parallel with its I/O. */
void shore__chunk_hold(struct shore__pipeline *p, struct chunk *c, enum shore_lane lane);

#endif
