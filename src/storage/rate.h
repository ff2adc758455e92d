/* Measures the rate that UPDATE can reach on a drive: reads chunks from one half of a file and writes them to the
 * other, at the same time, without computing. */
#ifndef SHORE_STORAGE_RATE_H
#define SHORE_STORAGE_RATE_H

#include "storage/blockio.h"

struct shore__rate {
    struct shore__file file;
    struct shore__io *io;
    uint32_t chunk_bytes;
    uint64_t nchunks; /* of one half */
    uint64_t moved_bytes;
    uint64_t compute_ns; /* of this thread, for a chunk between reading and writing it */
    bool (*stop)(void);  /* called between chunks; true gives up with -ECANCELED. May be NULL */
    /* private */
    uint32_t nbuffers;
    unsigned char *memory;
    struct shore__io_op *ops;
    struct shore__rate_buffer *buffers;
};

/* Opens a file of twice `bytes` (rounded to whole chunks) at path, or a device: see shore__file_create. chunk_bytes is
 * rounded down to whole segments of AdamW's state. Memory: nbuffers chunks, from the system. */
int shore__rate_open(struct shore__rate *r, const char *path, uint64_t bytes, uint64_t chunk_bytes, uint32_t nbuffers,
                     enum shore_io io, bool overwrite, struct shore_diag *diag);
/* The same with a nameless file in the directory of path, of which nothing remains after this process. */
int shore__rate_open_unnamed(struct shore__rate *r, const char *path, uint64_t bytes, uint64_t chunk_bytes,
                             uint32_t nbuffers, enum shore_io io, struct shore_diag *diag);
/* Writes both halves, so that all extents exist. */
int shore__rate_fill(struct shore__rate *r, struct shore_diag *diag);
/* Copies all chunks once from one half to the other, and flushes. */
int shore__rate_pass(struct shore__rate *r, bool to_second_half, struct shore_diag *diag);
/* Reads all chunks of both halves. */
int shore__rate_read(struct shore__rate *r, struct shore_diag *diag);
/* Closes it. A file with a name stays. Also after shore__rate_open has failed. */
void shore__rate_close(struct shore__rate *r);

#endif
