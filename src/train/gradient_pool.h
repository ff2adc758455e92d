/* Memory of gradients under way, and the requests that read it. Completions come from threads of the fleet; all locking
 * of a trainer is in here. */
#ifndef SHORE_TRAIN_GRADIENT_POOL_H
#define SHORE_TRAIN_GRADIENT_POOL_H

#include "plan/pages.h"
#include "plan/regions.h"

struct gradient_pool;

/* A piece is what one part of backward finishes at once: a layer, a slice of a table (the last one with the tail of its
 * block), or the tail of a tied head. */
struct piece {
    struct gradient_pool *pool;
    struct shore__page_id page; /* its first page; the last slice is followed by its tail */
    uint32_t segment, count;
    shore__buf there; /* where backward makes it, on the device */
    float *gradient;  /* where it comes to, or NULL: spilled, or not made yet */
    uint16_t *narrow; /* the same in bf16, once it is complete; NULL: it is sent as fp32 */
    int buffer;       /* of the pool, or -1: it lies elsewhere */
    bool ready, spilled;
};

/* memory: where the rows of the plan lie, "gradient" 0 .. buffers - 1 among them. */
int shore__gradient_pool_open(uint32_t buffers, const struct shore__memory *memory, struct gradient_pool **out,
                              struct shore_diag *diag);
void shore__gradient_pool_close(struct gradient_pool *pool);
/* A step begins: all are free. No request is under way. */
void shore__gradient_pool_begin_step(struct gradient_pool *pool);

/* A buffer for p, with anything in it; waits for one. The piece that it held before has none any more. */
int shore__gradient_pool_take(struct gradient_pool *pool, struct piece *p, uint64_t *waited_ns,
                              struct shore_diag *diag);
/* Gives a buffer back that no request reads. */
void shore__gradient_pool_release(struct piece *p);
/* How many could be taken now or once requests have ended. */
uint32_t shore__gradient_pool_left(const struct gradient_pool *pool);

/* A request that reads p is about to be submitted with this completion; the buffer may be taken once it has ended. The
 * pool keeps the first failure. spill: drain waits for it wherever p lies. */
struct shore_completion shore__gradient_pool_request(struct piece *p, bool spill);
void shore__gradient_pool_refused(struct piece *p, bool spill); /* it was not taken: there is no completion */
/* Waits until no request reads a buffer, and no spill is under way. */
void shore__gradient_pool_drain(struct gradient_pool *pool, uint64_t *waited_ns);
/* The first failure of a request, or 0; forget: of an attempt that was given up. */
int shore__gradient_pool_failed(struct gradient_pool *pool, struct shore_diag *diag);
void shore__gradient_pool_forget(struct gradient_pool *pool);

#endif
