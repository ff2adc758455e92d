/* What the files of storage/ share behind blockio.h. */
#ifndef SHORE_STORAGE_IO_INTERNAL_H
#define SHORE_STORAGE_IO_INTERNAL_H

#include <errno.h>

#include "storage/blockio.h"

/* One way to move bytes. The front (io.c) keeps the depth, asks the shim, and never has more than depth operations
 * here. */
struct shore__io_backend {
    const char *name;
    int (*open)(const struct shore__file *file, unsigned depth, const struct shore__buffer_range *fixed,
                unsigned nfixed, void **state);
    /* With nothing in flight. */
    void (*close)(void *state);
    /* Closes a forked child's descriptors. NULL: it has none. */
    void (*forked)(void *state);
    /* first_bytes: what the first transfer may ask for. */
    int (*submit)(void *state, struct shore__io_op *op, uint32_t first_bytes);
    /* At least min are in flight, and so many come back: if nothing can be waited for any more, all do, failed. */
    unsigned (*reap)(void *state, struct shore__io_op **ops, unsigned max, unsigned min);
};

extern const struct shore__io_backend shore__io_threads_backend;
extern const struct shore__io_backend shore__io_uring_backend;

/* The file that an operation moves bytes of. */
static inline const struct shore__file *shore__file_at(const struct shore__file *file, uint64_t offset) {
    return file->rest && offset >= file->rest_from ? file->rest : file;
}

/* A kernel that moves nothing, or says "again", more often than this is treated as failed. */
#define SHORE__IO_STALLS 1000u

/* With us, -ECANCELED says that somebody asked to stop. No file asks; io_uring says so where it finds no thread. */
static inline int shore__io_code(int rc) {
    return rc == -ECANCELED ? -EAGAIN : rc;
}

/* Direct I/O goes on only at aligned places: what was moved beyond the last one is moved again. */
static inline uint32_t shore__io_aligned(uint32_t bytes) {
    return bytes / SHORE__IO_ALIGN * SHORE__IO_ALIGN;
}

void shore__io_count(unsigned operations);

/* What to do where an operation failed. */
const char *shore__io_advice(int rc);

/* Asked under the lock, before an existing file or device is replaced without overwrite: what does it hold? */
enum shore__replaceable {
    SHORE__REPLACE_UNKNOWN, /* nothing of ours */
    SHORE__REPLACE_YES,
    SHORE__REPLACE_NO
};
typedef enum shore__replaceable (*shore__replaceable_fn)(const struct shore__file *file);
struct shore__file_range {
    uint64_t offset, bytes;
};
/* shore__file_open() after creating (or, for a device, checking) it and giving it its size, of which these ranges are
 * preallocated (NULL: all of it); a file reads as zeros elsewhere, and takes no room there. Refuses with -ENOSPC "needs
 * X, has Y". Existing files are SHORE_EEXISTS unless overwrite, or unless they hold no data at all (empty, or only
 * preallocated) or are replaceable (NULL: none is); locked ones SHORE_EBUSY always; devices that hold what is not, or
 * carry any signature (libblkid), SHORE_EEXISTS unless overwrite, mounted or held ones SHORE_EBUSY always. What is
 * replaced reads as zeros afterwards (files only). The directory entry is made durable. A failure removes a file that
 * this call made. claim: NULL, or SHORE__IO_ALIGN bytes that the file begins with where it can only be filled by
 * writing, which takes long. */
int shore__file_create(const char *path, uint64_t bytes, const struct shore__file_range *ranges, size_t nranges,
                       enum shore_io io, bool overwrite, shore__replaceable_fn replaceable, const void *claim,
                       struct shore__file *out, struct shore_diag *diag);
/* Makes a hole. False: a device, or a file system that has none. */
bool shore__file_punch(const struct shore__file *file, uint64_t offset, uint64_t bytes);

/* Signature check of an open device: 0, or SHORE_EEXISTS with a sentence. */
int shore__device_check(const struct shore__file *file, struct shore_diag *diag);

#endif
