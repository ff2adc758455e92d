#include "storage/rate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/units.h"
#include "storage/volume_internal.h"

/* A chunk of AdamW's state is read, and written, as planes of 2, 2, 4 and 4 bytes per element. */
#define PLANES 4u
#define ELEM_BYTES 12u
static const uint32_t plane_bytes[PLANES] = {2, 2, 4, 4};

struct shore__rate_buffer {
    uint64_t chunk;
    unsigned left; /* operations in flight */
    bool writing;
};

/* Offset of a plane of a chunk. Planes lie apart in each half, as in a volume. */
static uint64_t offset_of(const struct shore__rate *r, bool second_half, unsigned plane, uint64_t chunk) {
    uint64_t at = second_half ? r->nchunks * r->chunk_bytes : 0;
    for (unsigned p = 0; p < plane; p++)
        at += r->nchunks * (r->chunk_bytes / ELEM_BYTES * plane_bytes[p]);
    return at + chunk * (r->chunk_bytes / ELEM_BYTES * plane_bytes[plane]);
}

static int start(struct shore__rate *r, uint32_t buffer, uint64_t chunk, bool write, bool second_half,
                 struct shore_diag *diag) {
    struct shore__rate_buffer *b = &r->buffers[buffer];
    *b = (struct shore__rate_buffer){.chunk = chunk, .left = PLANES, .writing = write};
    unsigned char *at = r->memory + (uint64_t)buffer * r->chunk_bytes;
    for (unsigned p = 0; p < PLANES; p++) {
        struct shore__io_op *op = &r->ops[buffer * PLANES + p];
        *op = (struct shore__io_op){
            .kind = write ? SHORE__IO_WRITE : SHORE__IO_READ,
            .buffer = at,
            .offset = offset_of(r, second_half, p, chunk),
            .bytes = r->chunk_bytes / ELEM_BYTES * plane_bytes[p],
            .user = b,
        };
        at += op->bytes;
        int rc = shore__io_submit(r->io, op);
        if (rc) return shore__fail(diag, rc, "%s: %s", r->file.path, shore_error_text(rc));
    }
    return 0;
}

enum work { FILL, READ, MOVE };

/* Moves all chunks once: reads them from one half and writes them to the other, or only writes or only reads a half.
 * second_half: the half that is written, or the only one. */
static int pass(struct shore__rate *r, enum work work, bool second_half, struct shore_diag *diag) {
    const bool fill = work == FILL, begin_half = work == MOVE ? !second_half : second_half;
    uint64_t next = 0, finished = 0;
    for (uint32_t i = 0; i < r->nbuffers && next < r->nchunks; i++) {
        int rc = start(r, i, next++, fill, begin_half, diag);
        if (rc) return rc;
    }
    while (finished < r->nchunks) {
        struct shore__io_op *done[PLANES];
        unsigned n = shore__io_reap(r->io, done, PLANES, 1);
        for (unsigned i = 0; i < n; i++) {
            if (done[i]->rc)
                return shore__fail(diag, done[i]->rc, "%s: %s at offset %llu failed: %s", r->file.path,
                                   done[i]->kind == SHORE__IO_READ ? "reading" : "writing",
                                   (unsigned long long)done[i]->offset, shore_error_text(done[i]->rc));
            r->moved_bytes += done[i]->bytes;
            struct shore__rate_buffer *b = done[i]->user;
            if (--b->left) continue;
            uint32_t index = (uint32_t)(b - r->buffers);
            int rc = 0;
            if (!b->writing && work == MOVE) {
                for (uint64_t read = shore__now_ns(); shore__now_ns() - read < r->compute_ns;)
                    continue;
                rc = start(r, index, b->chunk, true, second_half, diag);
            } else {
                finished++;
                if (next < r->nchunks) rc = start(r, index, next++, fill, begin_half, diag);
            }
            if (rc) return rc;
        }
        if (r->stop && r->stop()) return shore__fail(diag, -ECANCELED, "stopped");
    }
    int rc = shore__io_do(r->io, SHORE__IO_FLUSH, NULL, 0, 0);
    return rc ? shore__fail(diag, rc, "%s: flushing failed: %s", r->file.path, shore_error_text(rc)) : 0;
}

static int prepare(struct shore__rate *r, uint64_t bytes, uint64_t chunk_bytes, uint32_t nbuffers,
                   struct shore_diag *diag) {
    const uint64_t span = ELEM_BYTES * SHORE_SEGMENT_ELEMS;
    memset(r, 0, sizeof *r);
    r->file.fd = -1;
    r->nbuffers = nbuffers;
    r->chunk_bytes = (uint32_t)(chunk_bytes < span ? span : chunk_bytes / span * span);
    r->nchunks = bytes / r->chunk_bytes ? bytes / r->chunk_bytes : 1;
    size_t memory = (size_t)nbuffers * r->chunk_bytes;
    r->memory = shore__arena_alloc(NULL, memory);
    r->ops = calloc((size_t)nbuffers * PLANES, sizeof *r->ops);
    r->buffers = calloc(nbuffers, sizeof *r->buffers);
    if (!r->memory || !r->ops || !r->buffers) return shore__fail(diag, -ENOMEM, "out of memory");
    for (size_t i = 0; i < memory; i++)
        r->memory[i] = (unsigned char)(i * 2654435761u >> 13); /* drives may compress zeros */
    return 0;
}

static uint64_t both_halves(const struct shore__rate *r) {
    return 2 * r->nchunks * r->chunk_bytes;
}

static int open_queue(struct shore__rate *r, enum shore_io io, struct shore_diag *diag) {
    struct shore__buffer_range range = {r->memory, (size_t)r->nbuffers * r->chunk_bytes};
    return shore__io_open(&r->file, io, r->nbuffers * PLANES, &range, 1, &r->io, diag);
}

int shore__rate_open(struct shore__rate *r, const char *path, uint64_t bytes, uint64_t chunk_bytes, uint32_t nbuffers,
                     enum shore_io io, bool overwrite, struct shore_diag *diag) {
    int rc = prepare(r, bytes, chunk_bytes, nbuffers, diag);
    if (!rc)
        rc = shore__file_create(path, both_halves(r), NULL, 0, io, overwrite, shore__volume_replaceable, NULL, &r->file,
                                diag);
    return rc ? rc : open_queue(r, io, diag);
}

int shore__rate_open_unnamed(struct shore__rate *r, const char *path, uint64_t bytes, uint64_t chunk_bytes,
                             uint32_t nbuffers, enum shore_io io, struct shore_diag *diag) {
    int rc = prepare(r, bytes, chunk_bytes, nbuffers, diag);
    if (!rc) rc = shore__file_create_unnamed(path, both_halves(r), io, &r->file, diag);
    return rc ? rc : open_queue(r, io, diag);
}

int shore__rate_fill(struct shore__rate *r, struct shore_diag *diag) {
    int rc = pass(r, FILL, false, diag);
    return rc ? rc : pass(r, FILL, true, diag);
}

int shore__rate_read(struct shore__rate *r, struct shore_diag *diag) {
    int rc = pass(r, READ, false, diag);
    return rc ? rc : pass(r, READ, true, diag);
}

int shore__rate_pass(struct shore__rate *r, bool to_second_half, struct shore_diag *diag) {
    return pass(r, MOVE, to_second_half, diag);
}

void shore__rate_close(struct shore__rate *r) {
    if (r->io) shore__io_close(r->io);
    if (r->file.fd >= 0) shore__file_close(&r->file);
    shore__arena_free(NULL, r->memory);
    free(r->ops);
    free(r->buffers);
}
