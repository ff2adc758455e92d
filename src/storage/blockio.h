/* Asynchronous block I/O on one file or device.
 *
 * A file is opened once (struct shore__file: descriptor, lock, size, direct or not). A queue (struct shore__io) belongs
 * to one thread and has a fixed depth; backends: "uring" (io_uring, registered file and buffers), "threads" (a few
 * with pread and pwrite). SHORE_IO_AUTO and SHORE_IO_BUFFERED take uring, or threads where io_uring is refused;
 * SHORE_IO_URING then fails instead. A backend always transfers an operation whole or reports a negative code: short
 * reads and writes are continued inside, an end of file inside an operation is -EIO.
 *
 * Tests put a shim between: shore__io_set_shim() sees every operation before it reaches the file and may fail, cut,
 * tear, hold back or swallow it.
 */
#ifndef SHORE_STORAGE_BLOCKIO_H
#define SHORE_STORAGE_BLOCKIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"
#include "longshore/state.h"

#define SHORE__IO_ALIGN 4096u
#define SHORE__LOCK_SECONDS 3.0 /* how long a start waits for a lock: a killed process may still be writing */

enum shore__io_kind {
    SHORE__IO_READ,
    SHORE__IO_WRITE,
    SHORE__IO_FLUSH,
    SHORE__IO_PAUSE /* moves nothing: it is returned at its instant */
};

struct shore__io_op {
    enum shore__io_kind kind;
    void *buffer;    /* aligned to SHORE__IO_ALIGN */
    uint64_t offset; /* multiple of SHORE__IO_ALIGN */
    uint32_t bytes;  /* multiple of SHORE__IO_ALIGN */
    void *user;
    uint64_t begun_ns;      /* the submitter's, as user is */
    uint64_t not_before_ns; /* on shore__now_ns()'s clock: not returned before; 0: returned as soon as it ends */
    int rc;                 /* out: 0 or a negative code */
};

struct shore__file {
    int fd;
    char *path;
    uint64_t size_bytes;
    bool direct; /* O_DIRECT is in use */
    bool is_device;
    bool made; /* this open call made the file */
    /* Of a snapshot: contents from rest_from on lie in this file, at the same offsets. NULL: they lie in the snapshot
     * itself. */
    struct shore__file *rest;
    uint64_t rest_from;
};

/* SHORE_EUSAGE for a file with several names (hard links), such as a backup's: writing would change all of them. */
int shore__file_refuse_links(const struct shore__file *file, struct shore_diag *diag);
/* Opens an existing file or device for reading and writing, O_DIRECT unless refused or buffered is asked for, and
 * locks the descriptor that does the I/O: flock, and on devices O_EXCL, waiting up to lock_seconds (writes of a killed
 * process may still be in flight). Errors: SHORE_EBUSY names the path. */
int shore__file_open(const char *path, enum shore_io io, double lock_seconds, struct shore__file *out,
                     struct shore_diag *diag);
/* For reading only, beside others that only read: flock alone. */
int shore__file_open_to_read(const char *path, enum shore_io io, double lock_seconds, struct shore__file *out,
                             struct shore_diag *diag);
void shore__file_close(struct shore__file *file);
/* In a forked child, which does nothing else with it: the parent keeps the lock. */
void shore__file_forked(const struct shore__file *file);

/* Checks whether a file may be made or written at path, or in the directory there. The name of a new one needs a
 * suffix: a name without one means a directory that was not made, or a drive that is not mounted. Returns 0 also if
 * another thing is wrong. Errors: SHORE_EUSAGE (no suffix), SHORE_EMISSING (no such device), SHORE_EINPUT (a special
 * file), SHORE_EEXISTS (a link to nothing), -EACCES and -EROFS. They say what to do. Functions that make files call
 * this; callers with much work to do before may call it early. */
int shore__file_may_be_made(const char *path, struct shore_diag *diag);

struct shore__io;

struct shore__buffer_range {
    void *base;
    size_t bytes;
};

/* A nameless file, preallocated, in the directory of path. It disappears when it is closed, in any way. */
int shore__file_create_unnamed(const char *path, uint64_t bytes, enum shore_io io, struct shore__file *out,
                               struct shore_diag *diag);
/* Whether files in the directory of path can share blocks, so that a snapshot takes neither time nor room. */
bool shore__files_share_blocks(const char *path);
/* 0, or why io_uring is refused here. */
int shore__io_uring_try(void);

/* Opens a queue. fixed: buffers to register (a hint: memlock limits may refuse it, then they are not). */
int shore__io_open(const struct shore__file *file, enum shore_io io, unsigned depth,
                   const struct shore__buffer_range *fixed, unsigned nfixed, struct shore__io **out,
                   struct shore_diag *diag);
void shore__io_close(struct shore__io *io);  /* drains first */
void shore__io_forked(struct shore__io *io); /* as of a file; NULL: nothing */
const char *shore__io_backend(const struct shore__io *io);

/* Queues an operation (borrowed until returned by shore__io_reap). At most depth in flight: -EBUSY beyond. */
int shore__io_submit(struct shore__io *io, struct shore__io_op *op);
/* Returns finished operations, at most max. Waits for at least min (0: does not wait); returns fewer if fewer are in
 * flight, or, after a while, if instants are far away. Returns their number. */
unsigned shore__io_reap(struct shore__io *io, struct shore__io_op **ops, unsigned max, unsigned min);
unsigned shore__io_in_flight(const struct shore__io *io);
/* Counts every operation that this process has completed, on any file. While the count grows, drives make progress.
 * Making a file counts each MiB that has to be written. Threading: any. */
uint64_t shore__io_completed(void);
/* One operation, and wait for it. */
int shore__io_do(struct shore__io *io, enum shore__io_kind kind, void *buffer, uint64_t offset, uint32_t bytes);
/* A transfer that failed (op->rc), with what to do. Returns op->rc. */
int shore__io_explain(const char *path, const struct shore__io_op *op, struct shore_diag *diag);

/* What a shim answers, besides a negative code that fails the operation. */
enum shore__io_verdict {
    SHORE__IO_PASS = 0, /* let it through to the file */
    SHORE__IO_DONE = 1, /* report success without touching the file (the shim may have written something itself) */
    SHORE__IO_SHORT = 2 /* let it through, but as if the kernel transferred only half of it the first time */
};

/* Called before each operation on any queue, under one lock, with the file's path. Tests only; set before any queue is
 * open. */
typedef int (*shore__io_shim_fn)(void *ctx, const struct shore__file *file, const struct shore__io_op *op);
void shore__io_set_shim(shore__io_shim_fn fn, void *ctx);
/* Called under the same lock for each operation that a queue hands back: only now may its submitter count on it. */
typedef void (*shore__io_done_fn)(void *ctx, const struct shore__file *file, const struct shore__io_op *op);
void shore__io_set_done_hook(shore__io_done_fn fn, void *ctx);

#endif
