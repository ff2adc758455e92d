/* What computes UPDATE for a drive: a thread of this host, or a device (opencl/opencl.h). A drive submits a chunk as
 * one job, and reaps it when its planes and parameters are there. Jobs that compute at once are in no order. Threading:
 * all functions of an engine are called by one thread. */
#ifndef SHORE_NEAR_ENGINE_H
#define SHORE_NEAR_ENGINE_H

#include "near/update.h"

#define SHORE__ENGINE_BLOCK_ELEMS 256u /* all of one tensor: the alignment of tensors */

/* Where the elements of a block lie, for a device. */
struct shore__engine_block {
    uint32_t group;     /* of hyper-parameters; with SHORE__ENGINE_CODED if its moments are 8-bit codes */
    uint32_t at;        /* in planes M and V of the chunk: byte of the first code, or index of the first fp32 moment */
    uint32_t absmax;    /* index of the codes' fp32 absmax there */
    uint32_t nonfinite; /* out: a new value is not finite. 0 before */
};
#define SHORE__ENGINE_CODED 0x80000000u
#define SHORE__ENGINE_START_WORDS 5u

struct shore__engine_job {
    /* in, borrowed until the job is reaped */
    struct shore_update update;         /* of this chunk alone; without a gather list for a device */
    struct shore__engine_block *blocks; /* for a device: of each block of the chunk */
    uint32_t *starts;                   /* for a device: room for SHORE__ENGINE_START_WORDS of each block */
    uint32_t slot;                      /* for a device: which of its memories has the planes; one job at a time */
    int (*here)(struct shore__engine_job *job); /* computes it on this host. Returns rc, with a sentence in diag */
    void *user;
    /* out */
    int rc;
    struct shore_diag diag;
    /* the engine's */
    struct shore__engine_job *next;
};

struct shore__engine {
    const struct shore__engine_ops *ops;
    struct shore__engine_job *first, *last; /* submitted, in order */
};

struct shore__engine_ops {
    /* Takes a job, which ends by being reaped, also if it fails. */
    void (*submit)(struct shore__engine *engine, struct shore__engine_job *job);
    /* The job that was submitted first. NULL: there is none; or, unless wait, it has not ended. */
    struct shore__engine_job *(*reap)(struct shore__engine *engine, bool wait);
    /* One line for people; NULL: nothing to say. */
    const char *(*name)(const struct shore__engine *engine);
    void (*close)(struct shore__engine *engine); /* no job is under way */
};

/* This host, which computes within submit. Takes no memory. */
void shore__engine_host(struct shore__engine *engine);

/* For engines: the queue of jobs. */
void shore__engine_push(struct shore__engine *engine, struct shore__engine_job *job);
struct shore__engine_job *shore__engine_pop(struct shore__engine *engine);

#endif
