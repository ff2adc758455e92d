#include "train/gradient_pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/units.h"

struct gradient_buffer {
    struct shore__both memory;
    struct piece *holds; /* NULL: free and never used in this step */
    int pending;         /* requests that still read it */
    bool released;       /* may be used again once pending is 0 */
};

struct gradient_pool {
    pthread_mutex_t mutex; /* guards pending, spills, failed, failure */
    pthread_cond_t freed;
    uint32_t count;
    struct gradient_buffer *buffers;
    uint32_t spills; /* under way */
    int failed;
    struct shore_diag failure;
};

int shore__gradient_pool_open(uint32_t buffers, const struct shore__memory *memory, struct gradient_pool **out,
                              struct shore_diag *diag) {
    struct gradient_pool *pool = *out = calloc(1, sizeof *pool);
    if (!pool) return shore__fail(diag, -ENOMEM, "out of memory for gradients");
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->freed, NULL);
    pool->count = buffers;
    pool->buffers = calloc(buffers, sizeof *pool->buffers);
    if (!pool->buffers) return shore__fail(diag, -ENOMEM, "out of memory for gradients");
    for (uint32_t i = 0; i < buffers; i++)
        pool->buffers[i].memory = shore__memory_both(memory, SHORE__ROW_GRADIENT, i);
    return 0;
}

void shore__gradient_pool_close(struct gradient_pool *pool) {
    if (!pool) return;
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->freed);
    free(pool->buffers);
    free(pool);
}

void shore__gradient_pool_begin_step(struct gradient_pool *pool) {
    assert(!pool->spills);
    for (uint32_t i = 0; i < pool->count; i++) {
        assert(!pool->buffers[i].pending);
        pool->buffers[i].holds = NULL;
        pool->buffers[i].released = false;
    }
}

/* ---- requests ------------------------------------------------------------------------------------------------------
 */

static void end(struct piece *p, int rc, const struct shore_diag *diag, bool spill) {
    struct gradient_pool *pool = p->pool;
    pthread_mutex_lock(&pool->mutex);
    if (rc && rc != SHORE_EDISCARDED && !pool->failed) {
        pool->failed = rc;
        if (diag)
            pool->failure = *diag;
        else
            shore__fail(&pool->failure, rc, "a drive failed: %s", shore_error_text(rc));
    }
    assert(p->buffer < 0 || pool->buffers[p->buffer].pending > 0);
    if (p->buffer >= 0) pool->buffers[p->buffer].pending--;
    assert(!spill || pool->spills > 0);
    if (spill) pool->spills--;
    pthread_cond_signal(&pool->freed);
    pthread_mutex_unlock(&pool->mutex);
}

static void update_ended(void *ctx, int rc, const struct shore_diag *diag) {
    end(ctx, rc, diag, false);
}

static void spill_ended(void *ctx, int rc, const struct shore_diag *diag) {
    end(ctx, rc, diag, true);
}

struct shore_completion shore__gradient_pool_request(struct piece *p, bool spill) {
    struct gradient_pool *pool = p->pool;
    pthread_mutex_lock(&pool->mutex);
    assert(p->buffer < 0 || pool->buffers[p->buffer].holds == p);
    if (p->buffer >= 0) {
        pool->buffers[p->buffer].pending++;
        pool->buffers[p->buffer].released = true;
    }
    if (spill) pool->spills++;
    pthread_mutex_unlock(&pool->mutex);
    return (struct shore_completion){spill ? spill_ended : update_ended, p};
}

void shore__gradient_pool_refused(struct piece *p, bool spill) {
    end(p, 0, NULL, spill);
}

void shore__gradient_pool_drain(struct gradient_pool *pool, uint64_t *waited_ns) {
    uint64_t start = shore__now_ns();
    pthread_mutex_lock(&pool->mutex);
    for (uint32_t i = 0; i < pool->count; i++)
        while (pool->buffers[i].pending)
            pthread_cond_wait(&pool->freed, &pool->mutex);
    while (pool->spills)
        pthread_cond_wait(&pool->freed, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
    *waited_ns += shore__now_ns() - start;
}

int shore__gradient_pool_failed(struct gradient_pool *pool, struct shore_diag *diag) {
    pthread_mutex_lock(&pool->mutex);
    int rc = pool->failed;
    if (rc && diag) *diag = pool->failure;
    pthread_mutex_unlock(&pool->mutex);
    return rc;
}

void shore__gradient_pool_forget(struct gradient_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    pool->failed = 0;
    pthread_mutex_unlock(&pool->mutex);
}

/* ---- buffers -------------------------------------------------------------------------------------------------------
 */

/* A buffer that no piece has used in this step is taken first: while gradients stay in memory, a speculation that fails
 * costs no replay. */
static int find_buffer(const struct gradient_pool *pool) {
    int found = -1;
    for (uint32_t i = 0; i < pool->count; i++) {
        const struct gradient_buffer *b = &pool->buffers[i];
        if (!b->holds) return (int)i;
        if (found < 0 && b->released && !b->pending) found = (int)i;
    }
    return found;
}

int shore__gradient_pool_take(struct gradient_pool *pool, struct piece *p, uint64_t *waited_ns,
                              struct shore_diag *diag) {
    uint64_t start = 0;
    int i;
    pthread_mutex_lock(&pool->mutex);
    while ((i = find_buffer(pool)) < 0 && !pool->failed) {
        if (!start) start = shore__now_ns();
        pthread_cond_wait(&pool->freed, &pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
    if (start) *waited_ns += shore__now_ns() - start;
    if (i < 0) return shore__gradient_pool_failed(pool, diag);
    struct gradient_buffer *b = &pool->buffers[i];
    assert(!b->pending && p->buffer < 0);
    if (b->holds) b->holds->gradient = NULL, b->holds->narrow = NULL, b->holds->buffer = -1;
    b->holds = p;
    b->released = false;
    p->buffer = i;
    p->gradient = b->memory.host;
    p->there = b->memory.device;
    return 0;
}

void shore__gradient_pool_release(struct piece *p) {
    struct gradient_buffer *b = &p->pool->buffers[p->buffer];
    assert(b->holds == p && !b->pending);
    *b = (struct gradient_buffer){.memory = b->memory};
    p->gradient = NULL;
    p->narrow = NULL;
    p->buffer = -1;
}

uint32_t shore__gradient_pool_left(const struct gradient_pool *pool) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < pool->count; i++)
        left += !pool->buffers[i].holds || pool->buffers[i].released;
    return left;
}
