/* Block I/O behind blockio.h, as the files of storage/ share it. */
#ifndef SHORE_STORAGE_IO_INTERNAL_H
#define SHORE_STORAGE_IO_INTERNAL_H

#include <errno.h>

#include "storage/blockio.h"

/* A backend that moves bytes. The front (io.c) keeps the depth, calls the shim, and never has more than depth
 * operations in flight here. */
struct shore__io_backend {
    const char *name;
    int (*open)(const struct shore__file *file, unsigned depth, const struct shore__buffer_range *fixed,
                unsigned nfixed, void **state);
    /* Called with nothing in flight. */
    void (*close)(void *state);
    /* Closes a forked child's descriptors. NULL: it has none. */
    void (*forked)(void *state);
    /* first_bytes: the most that the first transfer may ask for. */
    int (*submit)(void *state, struct shore__io_op *op, uint32_t first_bytes);
    /* At least min are in flight, and at least min are returned. If none can be waited for any more, all return as
     * failed. */
    unsigned (*reap)(void *state, struct shore__io_op **ops, unsigned max, unsigned min);
};

extern const struct shore__io_backend shore__io_threads_backend;
extern const struct shore__io_backend shore__io_uring_backend;

/* The file whose bytes an operation moves. */
static inline const struct shore__file *shore__file_at(const struct shore__file *file, uint64_t offset) {
    return file->rest && offset >= file->rest_from ? file->rest : file;
}

/* More transfers in a row that move nothing, or say "again", count as a failure. */
#define SHORE__IO_STALLS 1000u

/* Here, -ECANCELED means that somebody asked to stop. Files never return it, but io_uring does if it finds no
 * thread. */
static inline int shore__io_code(int rc) {
    return rc == -ECANCELED ? -EAGAIN : rc;
}

/* Direct I/O continues only at aligned offsets: bytes moved beyond the last one are moved again. */
static inline uint32_t shore__io_aligned(uint32_t bytes) {
    return bytes / SHORE__IO_ALIGN * SHORE__IO_ALIGN;
}

void shore__io_count(unsigned operations);

/* Advice for an operation that failed. */
const char *shore__io_advice(int rc);

/* Called under the lock before an existing file or device is replaced without overwrite: what does it contain? */
enum shore__replaceable {
    SHORE__REPLACE_UNKNOWN, /* nothing of ours */
    SHORE__REPLACE_YES,
    SHORE__REPLACE_NO
};
typedef enum shore__replaceable (*shore__replaceable_fn)(const struct shore__file *file);
struct shore__file_range {
    uint64_t offset, bytes;
};
/* Like shore__file_open(), after creating (or, for a device, checking) the file and giving it its size. Preallocates
 * these ranges (NULL: all of it); elsewhere a file reads as zeros and takes no room. Refuses with -ENOSPC "needs X, has
 * Y". SHORE_EEXISTS: an existing file, without overwrite, unless it holds no data at all (empty, or only preallocated)
 * or is replaceable (NULL: none is); a device with contents that are not replaceable, or with any signature (libblkid),
 * without overwrite. SHORE_EBUSY: a locked file, or a mounted or held device, always. A replaced file then reads as
 * zeros (a device does not). The directory entry is durable. After a failure, a file that this call made is removed.
 * claim: NULL, or SHORE__IO_ALIGN bytes to write at the start of a file that can only be filled by writing, which takes
 * long. */
int shore__file_create(const char *path, uint64_t bytes, const struct shore__file_range *ranges, size_t nranges,
                       enum shore_io io, bool overwrite, shore__replaceable_fn replaceable, const void *claim,
                       struct shore__file *out, struct shore_diag *diag);
/* SHORE_EEXISTS: an open file that holds data. */
int shore__file_refuse_data(const struct shore__file *file, struct shore_diag *diag);
/* Makes a hole. False: a device, or a file system without holes. */
bool shore__file_punch(const struct shore__file *file, uint64_t offset, uint64_t bytes);

/* Checks the signature of an open device: 0, or SHORE_EEXISTS with a sentence. */
int shore__device_check(const struct shore__file *file, struct shore_diag *diag);

#endif
