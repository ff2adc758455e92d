#include "storage/io_internal.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"

/* Few are enough: a request is large, and each thread only waits for the drive. */
#define WORKERS_MOST 4u

struct job {
    struct shore__io_op *op;
    uint32_t first_bytes;
};

struct workers {
    const struct shore__file *file;
    unsigned depth, nthreads;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool stopping;
    unsigned njobs, first_job, ndone;
    struct job *jobs; /* a ring */
    struct shore__io_op **finished;
    pthread_t threads[WORKERS_MOST];
};

static int transfer(const struct shore__file *file, struct shore__io_op *op, uint32_t first_bytes) {
    const int fd = op->kind == SHORE__IO_FLUSH ? file->fd : shore__file_at(file, op->offset)->fd;
    if (op->kind == SHORE__IO_FLUSH) {
        /* Never retried after a failure: the kernel forgets what it could not write. */
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

static void *worker(void *ctx) {
    struct workers *w = ctx;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->njobs == 0 && !w->stopping)
            pthread_cond_wait(&w->work, &w->lock);
        if (w->njobs == 0) break;
        struct job job = w->jobs[w->first_job];
        w->first_job = (w->first_job + 1) % w->depth;
        w->njobs--;
        pthread_mutex_unlock(&w->lock);
        job.op->rc = transfer(w->file, job.op, job.first_bytes);
        pthread_mutex_lock(&w->lock);
        assert(w->ndone < w->depth);
        w->finished[w->ndone++] = job.op;
        pthread_cond_signal(&w->done);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void threads_close(void *state) {
    struct workers *w = state;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->nthreads; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->lock);
    free(w->jobs);
    free(w->finished);
    free(w);
}

static int threads_open(const struct shore__file *file, unsigned depth, const struct shore__buffer_range *fixed,
                        unsigned nfixed, void **state) {
    (void)fixed;
    (void)nfixed;
    struct workers *w = calloc(1, sizeof *w);
    if (!w) return -ENOMEM;
    w->file = file;
    w->depth = depth;
    w->jobs = calloc(depth, sizeof *w->jobs);
    w->finished = calloc(depth, sizeof(struct shore__io_op *));
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->done, NULL);
    int rc = w->jobs && w->finished ? 0 : -ENOMEM;
    unsigned want = depth < WORKERS_MOST ? depth : WORKERS_MOST;
    while (rc == 0 && w->nthreads < want) {
        rc = shore__thread_start(&w->threads[w->nthreads], "shore-io", worker, w);
        if (rc == 0) w->nthreads++;
    }
    if (rc) {
        threads_close(w);
        return rc;
    }
    *state = w;
    return 0;
}

static int threads_submit(void *state, struct shore__io_op *op, uint32_t first_bytes) {
    struct workers *w = state;
    pthread_mutex_lock(&w->lock);
    assert(w->njobs + w->ndone < w->depth);
    w->jobs[(w->first_job + w->njobs) % w->depth] = (struct job){op, first_bytes};
    w->njobs++;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
    return 0;
}

static unsigned threads_reap(void *state, struct shore__io_op **ops, unsigned max, unsigned min) {
    struct workers *w = state;
    unsigned got = 0;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (got < max && w->ndone)
            ops[got++] = w->finished[--w->ndone];
        if (got >= min) break;
        pthread_cond_wait(&w->done, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return got;
}

const struct shore__io_backend shore__io_threads_backend = {
    .name = "threads",
    .open = threads_open,
    .close = threads_close,
    .submit = threads_submit,
    .reap = threads_reap,
};
