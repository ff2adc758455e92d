/* What a function reaches of its drive while it runs, the same on every kind of drive: pieces of it, and a bounded
 * memory. It runs alone on the drive's fetch lane. So it may keep many pieces under way, and computes while they move:
 *
 *     reach->move(reach, false, &piece)    for each; waits only while too many are under way
 *     ...                                  work on what is there
 *     rc = reach->wait(reach, diag)        all that were started have ended
 *
 * It ends with wait() before it returns, and touches nothing else. What was read of planes is not compared with its
 * checksum, which covers whole segments. */
#ifndef SHORE_DRIVE_REACH_H
#define SHORE_DRIVE_REACH_H

#include "drive/drive.h"
#include "drive/function.h"

enum shore__piece_of {
    SHORE__PIECE_PLANE,   /* of a segment, in the step that the call names; read only */
    SHORE__PIECE_SPILLED, /* a segment's gradient in the call's form; written only whole */
    SHORE__PIECE_SCRATCH,
};

struct shore__piece {
    enum shore__piece_of of;
    enum shore_plane plane;
    uint32_t block, segment; /* one that the drive has */
    uint64_t offset;         /* there, or in scratch: a multiple of SHORE__IO_ALIGN, */
    uint32_t bytes;          /* as this */
    void *buffer;            /* and this. It need not be of the reach's memory */
};

struct shore__reach {
    const struct shore__drive_config *config;
    const struct shore__volume_desc *desc;
    unsigned char *memory; /* aligned to SHORE__IO_ALIGN */
    size_t memory_bytes;   /* at least 512 KiB, of which each kind of drive has as much */
    void (*move)(struct shore__reach *reach, bool write, const struct shore__piece *piece);
    int (*wait)(struct shore__reach *reach, struct shore_diag *diag); /* the first failure of all so far */
};

/* For drives: whether the call may move the piece. Sets the segment's number in the volume. */
int shore__piece_check(const struct shore__reach *reach, const struct shore__call *call, bool write,
                       const struct shore__piece *piece, uint32_t *local, struct shore_diag *diag);

#endif
