#include "storage/io_internal.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"

/* Few: a request is large, and each thread only waits for the drive. */
#define POOL_THREADS_MOST 4u

struct job {
    struct shore__io_op *op;
    uint32_t first_bytes;
};

struct pool {
    const struct shore__file *file;
    unsigned depth, nthreads;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool stopping;
    unsigned njobs, first_job, ndone;
    struct job *jobs; /* a ring */
    struct shore__io_op **finished;
    pthread_t threads[POOL_THREADS_MOST];
};

static int transfer(const struct shore__file *file, struct shore__io_op *op, uint32_t first_bytes) {
    const int fd = op->kind == SHORE__IO_FLUSH ? file->fd : shore__file_at(file, op->offset)->fd;
    if (op->kind == SHORE__IO_FLUSH) {
        /* Never again after a failure: the kernel forgets what it could not write. */
        return fdatasync(fd) ? shore__io_code(-errno) : 0;
    }
    uint32_t moved = 0;
    unsigned stalls = 0;
    while (moved < op->bytes) {
        char *at = (char *)op->buffer + moved;
        size_t ask = moved ? op->bytes - moved : first_bytes;
        off_t offset = (off_t)(op->offset + moved);
        ssize_t n = op->kind == SHORE__IO_READ ? pread(fd, at, ask, offset) : pwrite(fd, at, ask, offset);
        int rc = n < 0 ? shore__io_code(-errno) : 0;
        if (rc && rc != -EINTR && rc != -EAGAIN) return rc;
        if (n == 0) return -EIO;
        uint32_t step = n > 0 ? shore__io_aligned((uint32_t)n) : 0;
        moved += step;
        if (step == 0) {
            if (++stalls > SHORE__IO_STALLS) return rc ? rc : -EIO;
            sched_yield();
        }
    }
    return 0;
}

static void *pool_thread(void *ctx) {
    struct pool *pool = ctx;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->njobs == 0 && !pool->stopping)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->njobs == 0) break;
        struct job job = pool->jobs[pool->first_job];
        pool->first_job = (pool->first_job + 1) % pool->depth;
        pool->njobs--;
        pthread_mutex_unlock(&pool->lock);
        job.op->rc = transfer(pool->file, job.op, job.first_bytes);
        pthread_mutex_lock(&pool->lock);
        pool->finished[pool->ndone++] = job.op;
        pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void threads_close(void *state) {
    struct pool *pool = state;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->nthreads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    free(pool->jobs);
    free(pool->finished);
    free(pool);
}

static int threads_open(const struct shore__file *file, unsigned depth, const struct shore__buffer_range *fixed,
                        unsigned nfixed, void **state) {
    (void)fixed;
    (void)nfixed;
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool) return -ENOMEM;
    pool->file = file;
    pool->depth = depth;
    pool->jobs = calloc(depth, sizeof *pool->jobs);
    pool->finished = calloc(depth, sizeof(struct shore__io_op *));
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    int rc = pool->jobs && pool->finished ? 0 : -ENOMEM;
    unsigned want = depth < POOL_THREADS_MOST ? depth : POOL_THREADS_MOST;
    while (rc == 0 && pool->nthreads < want) {
        rc = shore__thread_start(&pool->threads[pool->nthreads], "shore-io", pool_thread, pool);
        if (rc == 0) pool->nthreads++;
    }
    if (rc) {
        threads_close(pool);
        return rc;
    }
    *state = pool;
    return 0;
}

static int threads_submit(void *state, struct shore__io_op *op, uint32_t first_bytes) {
    struct pool *pool = state;
    pthread_mutex_lock(&pool->lock);
    pool->jobs[(pool->first_job + pool->njobs) % pool->depth] = (struct job){op, first_bytes};
    pool->njobs++;
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    return 0;
}

static unsigned threads_reap(void *state, struct shore__io_op **ops, unsigned max, unsigned min) {
    struct pool *pool = state;
    unsigned got = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (got < max && pool->ndone)
            ops[got++] = pool->finished[--pool->ndone];
        if (got >= min) break;
        pthread_cond_wait(&pool->done, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return got;
}

const struct shore__io_backend shore__io_threads_backend = {
    .name = "threads",
    .open = threads_open,
    .close = threads_close,
    .submit = threads_submit,
    .reap = threads_reap,
};
