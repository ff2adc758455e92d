#include "storage/io_internal.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/units.h"

/* A wait for an instant further away returns after this time, so that the caller can look for other work. */
#define LOOK_NS 10000000u

struct held {
    struct shore__io_op *op;
    bool ended; /* only its instant has not come yet */
};

struct shore__io {
    const struct shore__io_backend *backend;
    void *state;
    struct shore__file file;
    unsigned depth, in_flight;
    unsigned under_way; /* of those in flight: not returned as ended yet */
    unsigned nready;    /* of those under way: done without the backend */
    unsigned nheld;     /* in flight, with an instant */
    struct shore__io_op **ready;
    struct held held[];
};

static pthread_mutex_t shim_lock = PTHREAD_MUTEX_INITIALIZER;
static shore__io_shim_fn shim;
static void *shim_ctx;
static shore__io_done_fn done_hook;
static void *done_hook_ctx;
static atomic_uint_fast64_t completed;

void shore__io_count(unsigned operations) {
    atomic_fetch_add_explicit(&completed, operations, memory_order_relaxed);
}

uint64_t shore__io_completed(void) {
    return atomic_load_explicit(&completed, memory_order_relaxed);
}

void shore__io_set_shim(shore__io_shim_fn fn, void *ctx) {
    pthread_mutex_lock(&shim_lock);
    shim = fn;
    shim_ctx = ctx;
    pthread_mutex_unlock(&shim_lock);
}

void shore__io_set_done_hook(shore__io_done_fn fn, void *ctx) {
    pthread_mutex_lock(&shim_lock);
    done_hook = fn;
    done_hook_ctx = ctx;
    pthread_mutex_unlock(&shim_lock);
}

static int ask_shim(const struct shore__file *file, const struct shore__io_op *op) {
    pthread_mutex_lock(&shim_lock);
    int verdict = shim ? shim(shim_ctx, file, op) : SHORE__IO_PASS;
    pthread_mutex_unlock(&shim_lock);
    return verdict;
}

static void tell_done(const struct shore__file *file, struct shore__io_op **ops, unsigned count) {
    pthread_mutex_lock(&shim_lock);
    for (unsigned i = 0; done_hook && i < count; i++)
        done_hook(done_hook_ctx, file, ops[i]);
    pthread_mutex_unlock(&shim_lock);
}

int shore__io_open(const struct shore__file *file, enum shore_io io, unsigned depth,
                   const struct shore__buffer_range *fixed, unsigned nfixed, struct shore__io **out,
                   struct shore_diag *diag) {
    *out = NULL;
    if (depth == 0) return shore__fail(diag, -EINVAL, "%s: an I/O queue needs a depth of at least 1", file->path);
    struct shore__io *queue = calloc(1, sizeof *queue + depth * (sizeof *queue->held + sizeof *queue->ready));
    if (!queue) return shore__fail(diag, -ENOMEM, "%s: out of memory for an I/O queue", file->path);
    queue->file = *file;
    queue->depth = depth;
    queue->ready = (struct shore__io_op **)(void *)(queue->held + depth);

    int rc = -ENOSYS;
    if (io != SHORE_IO_THREADS) {
        queue->backend = &shore__io_uring_backend;
        rc = queue->backend->open(&queue->file, depth, fixed, nfixed, &queue->state);
        if (rc && io == SHORE_IO_URING) {
            free(queue);
            shore__fail(diag, rc, "%s: io_uring is refused here (%s)", file->path, shore_error_text(rc));
            return shore__advise(diag, rc, SHORE_ADVICE_THREADS, NULL);
        }
    }
    if (rc) {
        queue->backend = &shore__io_threads_backend;
        rc = queue->backend->open(&queue->file, depth, fixed, nfixed, &queue->state);
    }
    if (rc) {
        free(queue);
        return shore__fail(diag, rc, "%s: no I/O queue could be opened: %s", file->path, shore_error_text(rc));
    }
    *out = queue;
    return 0;
}

void shore__io_close(struct shore__io *io) {
    if (!io) return;
    struct shore__io_op *ops[16];
    while (io->in_flight)
        shore__io_reap(io, ops, 16, 1);
    assert(!io->nready && !io->nheld && !io->under_way);
    io->backend->close(io->state);
    free(io);
}

void shore__io_forked(struct shore__io *io) {
    if (io && io->backend->forked) io->backend->forked(io->state);
}

const char *shore__io_backend(const struct shore__io *io) {
    return io->backend->name;
}
unsigned shore__io_in_flight(const struct shore__io *io) {
    return io->in_flight;
}

/* The counts fit each other, and no queue is longer than its depth. */
static bool counts_hold(const struct shore__io *io) {
    return io->nready <= io->under_way && io->under_way <= io->in_flight && io->nheld <= io->in_flight &&
           io->in_flight <= io->depth;
}

int shore__io_submit(struct shore__io *io, struct shore__io_op *op) {
    if (io->in_flight >= io->depth) return -EBUSY;
    bool moves = op->kind == SHORE__IO_READ || op->kind == SHORE__IO_WRITE;
    if (moves && (op->bytes == 0 || op->bytes % SHORE__IO_ALIGN || op->offset % SHORE__IO_ALIGN ||
                  (uintptr_t)op->buffer % SHORE__IO_ALIGN || op->offset > io->file.size_bytes ||
                  op->bytes > io->file.size_bytes - op->offset))
        return -EINVAL;
    if (op->kind == SHORE__IO_WRITE && shore__file_at(&io->file, op->offset) != &io->file) return -EROFS;
    op->rc = 0;
    int verdict = op->kind == SHORE__IO_PAUSE ? SHORE__IO_DONE : ask_shim(&io->file, op);
    if (verdict < 0 || verdict == SHORE__IO_DONE) {
        op->rc = verdict < 0 ? verdict : 0;
        io->ready[io->nready++] = op;
    } else {
        uint32_t half = shore__io_aligned(op->bytes / 2);
        int rc = io->backend->submit(io->state, op, verdict == SHORE__IO_SHORT && half ? half : op->bytes);
        if (rc) return rc;
    }
    if (op->not_before_ns) io->held[io->nheld++] = (struct held){op, false};
    io->under_way++;
    io->in_flight++;
    assert(counts_hold(io));
    return 0;
}

/* Takes operations that have ended, whatever their instants. */
static unsigned reap_ended(struct shore__io *io, struct shore__io_op **ops, unsigned max, unsigned min) {
    unsigned got = 0;
    while (got < max && io->nready)
        ops[got++] = io->ready[--io->nready];
    assert(io->under_way >= got + io->nready);
    unsigned below = io->under_way - got;
    unsigned still = min > got ? min - got : 0;
    if (still > max - got) still = max - got;
    if (still > below) still = below;
    if (below && got < max) got += io->backend->reap(io->state, ops + got, max - got, still);
    io->under_way -= got;
    return got;
}

/* Takes operations that have ended and have no instant. Marks those with an instant as ended. */
static unsigned collect(struct shore__io *io, struct shore__io_op **ops, unsigned max, unsigned min) {
    unsigned ended = reap_ended(io, ops, max, min), got = 0;
    for (unsigned i = 0; i < ended; i++) {
        unsigned k = 0;
        while (k < io->nheld && io->held[k].op != ops[i])
            k++;
        if (k < io->nheld)
            io->held[k].ended = true;
        else
            ops[got++] = ops[i];
    }
    return got;
}

static unsigned take_due(struct shore__io *io, struct shore__io_op **ops, unsigned max) {
    uint64_t now = shore__now_ns();
    unsigned taken = 0, kept = 0;
    for (unsigned k = 0; k < io->nheld; k++) {
        const struct held *h = &io->held[k];
        if (taken < max && h->ended && h->op->not_before_ns <= now)
            ops[taken++] = h->op;
        else
            io->held[kept++] = *h;
    }
    io->nheld = kept;
    return taken;
}

/* The earliest instant at which an operation may be returned, ended or not. 0: one without an instant is under way. */
static uint64_t next_due(const struct shore__io *io) {
    uint64_t first = UINT64_MAX;
    unsigned under_way = 0;
    for (unsigned k = 0; k < io->nheld; k++) {
        under_way += !io->held[k].ended;
        if (io->held[k].op->not_before_ns < first) first = io->held[k].op->not_before_ns;
    }
    return under_way < io->under_way ? 0 : first;
}

static unsigned reap_held(struct shore__io *io, struct shore__io_op **ops, unsigned max, unsigned min) {
    unsigned got = 0;
    for (bool overdue = false;;) {
        got += collect(io, ops + got, max - got, overdue);
        got += take_due(io, ops + got, max - got);
        if (got >= min || got == max || got == io->in_flight) return got;
        uint64_t due = next_due(io), now = shore__now_ns();
        overdue = due <= now; /* it has not ended: the drive is late */
        if (!overdue) shore__sleep_until(due < now + LOOK_NS ? due : now + LOOK_NS);
        if (due > now + LOOK_NS) return got;
    }
}

unsigned shore__io_reap(struct shore__io *io, struct shore__io_op **ops, unsigned max, unsigned min) {
    unsigned got = io->nheld ? reap_held(io, ops, max, min) : reap_ended(io, ops, max, min);
    assert(got <= io->in_flight);
    io->in_flight -= got;
    assert(counts_hold(io));
    if (got) tell_done(&io->file, ops, got);
    shore__io_count(got);
    return got;
}

int shore__io_do(struct shore__io *io, enum shore__io_kind kind, void *buffer, uint64_t offset, uint32_t bytes) {
    if (io->in_flight) return -EBUSY;
    struct shore__io_op op = {.kind = kind, .buffer = buffer, .offset = offset, .bytes = bytes};
    int rc = shore__io_submit(io, &op);
    if (rc) return rc;
    struct shore__io_op *done;
    shore__io_reap(io, &done, 1, 1);
    return op.rc;
}

const char *shore__io_advice(int rc) {
    if (rc == -ENOSPC || rc == -EDQUOT) return "free space on its drive, or remove a snapshot";
    if (rc == -EFBIG) return "raise the limit of file sizes (ulimit -f)";
    return "check the drive";
}

int shore__io_explain(const char *path, const struct shore__io_op *op, struct shore_diag *diag) {
    return shore__fail(diag, op->rc, "%s: %s %u bytes at offset %llu failed: %s; %s", path,
                       op->kind == SHORE__IO_READ ? "reading" : "writing", op->bytes, (unsigned long long)op->offset,
                       shore_error_text(op->rc), shore__io_advice(op->rc));
}
