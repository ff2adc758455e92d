/* What a drive moves in the pattern of UPDATE, but without computing: chunks are read from one half of a file and
 * written to the other, read and write at once. The rate that UPDATE can reach.
 */
#ifndef SHORE_STORAGE_RATE_H
#define SHORE_STORAGE_RATE_H

#include "storage/blockio.h"

struct shore__rate {
    struct shore__file file;
    struct shore__io *io;
    uint32_t chunk_bytes;
    uint64_t nchunks; /* of a half */
    uint64_t moved_bytes;
    bool (*stop)(void); /* asked between chunks: gives up with -ECANCELED. May be NULL */
    /* private */
    uint32_t nbuffers;
    unsigned char *memory;
    struct shore__io_op *ops;
    struct shore__rate_buffer *buffers;
};

/* A file of twice `bytes` (rounded to whole chunks) at path, or a device: see shore__file_create. chunk_bytes is
 * rounded down to whole segments of AdamW's state. Memory: nbuffers chunks, from the system. */
int shore__rate_open(struct shore__rate *r, const char *path, uint64_t bytes, uint64_t chunk_bytes, uint32_t nbuffers,
                     enum shore_io io, bool overwrite, struct shore_diag *diag);
/* The same with a file that has no name, in the directory of path: whatever ends this process, nothing is left. */
int shore__rate_open_unnamed(struct shore__rate *r, const char *path, uint64_t bytes, uint64_t chunk_bytes,
                             uint32_t nbuffers, enum shore_io io, struct shore_diag *diag);
/* Writes both halves, so that all extents are there. */
int shore__rate_fill(struct shore__rate *r, struct shore_diag *diag);
/* All chunks once, from one half to the other, flushed. */
int shore__rate_pass(struct shore__rate *r, bool to_second_half, struct shore_diag *diag);
/* Reads all chunks of both halves, and writes nothing. */
int shore__rate_read(struct shore__rate *r, struct shore_diag *diag);
/* The file stays, if it has a name. For what shore__rate_open has filled in, also after it failed. */
void shore__rate_close(struct shore__rate *r);

#endif
