#include "storage/io_internal.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <unistd.h>

#define REGISTERED_BYTES_MOST ((size_t)1 << 30) /* the kernel's limit for one registered buffer */
#define REGISTERED_MOST 1024u

struct transfer {
    struct shore__io_op *op; /* NULL: the slot is free */
    uint32_t moved;
    unsigned stalls;
};

struct uring {
    struct io_uring ring;
    const struct shore__file *file;
    bool fixed_file;
    int broken;        /* the error after which nothing can be waited for */
    unsigned nbuffers; /* registered */
    struct iovec *buffers;
    unsigned depth, nfree;
    unsigned *free_slots;
    struct transfer *slots;
};

static void release(struct uring *u) {
    free(u->buffers);
    free(u->free_slots);
    free(u->slots);
    free(u);
}

static void register_buffers(struct uring *u, const struct shore__buffer_range *fixed, unsigned nfixed) {
    unsigned count = 0;
    for (unsigned i = 0; i < nfixed; i++)
        count += (unsigned)((fixed[i].bytes + REGISTERED_BYTES_MOST - 1) / REGISTERED_BYTES_MOST);
    if (count == 0 || count > REGISTERED_MOST) return;
    u->buffers = calloc(count, sizeof *u->buffers);
    if (!u->buffers) return;
    unsigned n = 0;
    for (unsigned i = 0; i < nfixed; i++)
        for (size_t at = 0; at < fixed[i].bytes; at += REGISTERED_BYTES_MOST) {
            size_t left = fixed[i].bytes - at;
            u->buffers[n++] =
                (struct iovec){(char *)fixed[i].base + at, left < REGISTERED_BYTES_MOST ? left : REGISTERED_BYTES_MOST};
        }
    /* The limit on locked memory may refuse this; plain operations work as well, only a little slower. */
    if (io_uring_register_buffers(&u->ring, u->buffers, n) == 0) u->nbuffers = n;
}

int shore__io_uring_try(void) {
    struct io_uring ring;
    int rc = io_uring_queue_init(1, &ring, 0);
    if (!rc) io_uring_queue_exit(&ring);
    return rc;
}

static int uring_open(const struct shore__file *file, unsigned depth, const struct shore__buffer_range *fixed,
                      unsigned nfixed, void **state) {
    struct uring *u = calloc(1, sizeof *u);
    if (!u) return -ENOMEM;
    u->file = file;
    u->depth = u->nfree = depth;
    u->free_slots = calloc(depth, sizeof *u->free_slots);
    u->slots = calloc(depth, sizeof *u->slots);
    if (!u->free_slots || !u->slots) {
        release(u);
        return -ENOMEM;
    }
    for (unsigned i = 0; i < depth; i++)
        u->free_slots[i] = i;
    int rc = io_uring_queue_init(depth, &u->ring, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (rc == -EINVAL) rc = io_uring_queue_init(depth, &u->ring, 0);
    if (rc) {
        release(u);
        return rc;
    }
    /* Otherwise a forked child would keep the ring, and with it the file and its lock, after this process ends. */
    io_uring_ring_dontfork(&u->ring);
    u->fixed_file = io_uring_register_files(&u->ring, &file->fd, 1) == 0;
    register_buffers(u, fixed, nfixed);
    *state = u;
    return 0;
}

static void uring_close(void *state) {
    struct uring *u = state;
    /* The kernel takes the ring down after io_uring_queue_exit() has returned. Until then the ring must not keep the
     * file, and with it the lock. */
    if (u->fixed_file) io_uring_unregister_files(&u->ring);
    if (u->nbuffers) io_uring_unregister_buffers(&u->ring);
    io_uring_queue_exit(&u->ring);
    release(u);
}

static void uring_forked(void *state) {
    const struct uring *u = state;
    close(u->ring.ring_fd);
}

static int registered_index(const struct uring *u, const char *at, uint32_t bytes) {
    for (unsigned i = 0; i < u->nbuffers; i++) {
        const char *base = u->buffers[i].iov_base;
        if (at >= base && bytes <= u->buffers[i].iov_len && (size_t)(at - base) <= u->buffers[i].iov_len - bytes)
            return (int)i;
    }
    return -1;
}

static int send_slot(struct uring *u, unsigned slot, uint32_t most_bytes) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (!sqe) return -EBUSY;
    const struct transfer *t = &u->slots[slot];
    const struct shore__io_op *op = t->op;
    const struct shore__file *file = op->kind == SHORE__IO_FLUSH ? u->file : shore__file_at(u->file, op->offset);
    bool fixed = u->fixed_file && file == u->file;
    int fd = fixed ? 0 : file->fd;
    uint64_t offset = op->offset + t->moved;
    uint32_t bytes = op->bytes - t->moved;
    if (bytes > most_bytes) bytes = most_bytes;
    if (op->kind == SHORE__IO_FLUSH) {
        io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
    } else {
        char *at = (char *)op->buffer + t->moved;
        int index = registered_index(u, at, bytes);
        if (op->kind == SHORE__IO_READ && index >= 0)
            io_uring_prep_read_fixed(sqe, fd, at, bytes, offset, index);
        else if (op->kind == SHORE__IO_READ)
            io_uring_prep_read(sqe, fd, at, bytes, offset);
        else if (index >= 0)
            io_uring_prep_write_fixed(sqe, fd, at, bytes, offset, index);
        else
            io_uring_prep_write(sqe, fd, at, bytes, offset);
    }
    if (fixed) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, slot);

    int rc;
    unsigned tries = 0, waiting;
    do {
        rc = io_uring_submit(&u->ring);
        waiting = io_uring_sq_ready(&u->ring); /* the kernel may have taken only an entry that was given up before */
    } while (waiting && (rc >= 0 || rc == -EINTR || rc == -EAGAIN) && ++tries < SHORE__IO_STALLS);
    if (!waiting) return 0;
    /* The entry stays in the ring and goes out with the next one: make it do nothing. */
    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data64(sqe, u->depth);
    return rc < 0 ? rc : -EAGAIN;
}

static struct shore__io_op *free_slot(struct uring *u, unsigned slot) {
    struct shore__io_op *op = u->slots[slot].op;
    assert(op && u->nfree < u->depth);
    u->slots[slot].op = NULL;
    u->free_slots[u->nfree++] = slot;
    return op;
}

static int uring_submit(void *state, struct shore__io_op *op, uint32_t first_bytes) {
    struct uring *u = state;
    if (u->broken) return u->broken;
    if (u->nfree == 0) return -EBUSY;
    unsigned slot = u->free_slots[--u->nfree];
    u->slots[slot] = (struct transfer){.op = op};
    int rc = send_slot(u, slot, op->kind == SHORE__IO_FLUSH ? 0 : first_bytes);
    if (rc) free_slot(u, slot);
    return rc;
}

/* True if the operation of the slot has ended; otherwise its rest is under way again. */
static bool finish_or_continue(struct uring *u, unsigned slot, int res) {
    struct transfer *t = &u->slots[slot];
    struct shore__io_op *op = t->op;
    assert(op && (op->kind == SHORE__IO_FLUSH || t->moved < op->bytes));
    res = shore__io_code(res);
    bool again = (res == -EINTR || res == -EAGAIN) && op->kind != SHORE__IO_FLUSH;
    if (res < 0 && !again) {
        op->rc = res;
        return true;
    }
    if (op->kind == SHORE__IO_FLUSH) {
        op->rc = 0;
        return true;
    }
    if (res == 0) {
        op->rc = -EIO;
        return true;
    }
    uint32_t step = again ? 0 : shore__io_aligned((uint32_t)res);
    t->moved += step;
    if (t->moved == op->bytes) {
        op->rc = 0;
        return true;
    }
    if (step == 0 && ++t->stalls > SHORE__IO_STALLS)
        op->rc = again ? res : -EIO;
    else
        op->rc = send_slot(u, slot, UINT32_MAX);
    return op->rc != 0;
}

/* Returns all operations as failed. They may still be under way, which does no harm: the queue takes no more, and the
 * file's lock outlasts them. */
static unsigned give_up_all(struct uring *u, struct shore__io_op **ops, unsigned max) {
    unsigned got = 0;
    for (unsigned slot = 0; slot < u->depth && got < max; slot++) {
        if (!u->slots[slot].op) continue;
        ops[got] = free_slot(u, slot);
        ops[got++]->rc = u->broken;
    }
    return got;
}

static unsigned uring_reap(void *state, struct shore__io_op **ops, unsigned max, unsigned min) {
    struct uring *u = state;
    unsigned got = 0, stalls = 0;
    while (got < max && !u->broken) {
        struct io_uring_cqe *cqe = NULL;
        int rc = got < min ? io_uring_wait_cqe(&u->ring, &cqe) : io_uring_peek_cqe(&u->ring, &cqe);
        if (rc == -EINTR || (rc == -EAGAIN && got < min && ++stalls < SHORE__IO_STALLS)) continue;
        if (rc == -EAGAIN && got >= min) break;
        if (rc) {
            u->broken = rc;
            break;
        }
        uint64_t slot = io_uring_cqe_get_data64(cqe);
        int res = cqe->res;
        io_uring_cqe_seen(&u->ring, cqe);
        if (slot >= u->depth) continue;
        if (finish_or_continue(u, (unsigned)slot, res)) ops[got++] = free_slot(u, (unsigned)slot);
    }
    return u->broken ? got + give_up_all(u, ops + got, max - got) : got;
}

const struct shore__io_backend shore__io_uring_backend = {
    .name = "uring",
    .open = uring_open,
    .close = uring_close,
    .forked = uring_forked,
    .submit = uring_submit,
    .reap = uring_reap,
};
