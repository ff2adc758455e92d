/* What the files of the volume share. */
#ifndef SHORE_STORAGE_VOLUME_INTERNAL_H
#define SHORE_STORAGE_VOLUME_INTERNAL_H

#include "storage/format.h"
#include "storage/io_internal.h"
#include "storage/room.h"

static inline uint64_t shore__record_offset(unsigned place) {
    return SHORE__RECORD_OFFSET + (uint64_t)place * SHORE__RECORD_STRIDE;
}

/* Any number of whole pages, in spans; a failure is described with file and offset. */
int shore__transfer(struct shore__io *io, const char *path, enum shore__io_kind kind, void *buffer, uint64_t offset,
                    uint64_t bytes, struct shore_diag *diag);
int shore__flush(struct shore__io *io, const char *path, struct shore_diag *diag);

/* A new file that has room for this only; more is taken when it is written. Without tables, and with a map of slot 0
 * where desc->apart says that it needs one. */
int shore__volume_create_part(const char *path, const struct shore__volume_desc *desc, enum shore__room what,
                              enum shore_io io, struct shore__volume *out, struct shore_diag *diag);

/* For shore__file_create(): a volume that was never finished, or never held a record, has nothing to lose. */
enum shore__replaceable shore__volume_replaceable(const struct shore__file *file);

/* volume_header.c: both copies of the header. */
struct shore__headers {
    struct shore__header copy[2];
    enum shore__parse parse[2];
    int unreadable[2]; /* why, or 0 */
    unsigned chosen;   /* valid if found */
    bool found;
    bool differ;      /* the other copy must be written anew */
    bool overwritten; /* a device's copy A has given way to something else: a file system, a partition table */
};
int shore__headers_read(const struct shore__file *file, struct shore__io *io, void *page, struct shore__headers *out,
                        struct shore_diag *diag);
/* What is wrong with them. */
int shore__headers_explain(const struct shore__file *file, const struct shore__headers *h, struct shore_diag *diag);
/* Writes one copy, or both, A first; each is durable before the next. */
int shore__headers_write_copy(const struct shore__header *header, unsigned copy, struct shore__io *io, const char *path,
                              void *page, struct shore_diag *diag);
int shore__headers_write(const struct shore__header *header, struct shore__io *io, const char *path, void *page,
                         struct shore_diag *diag);
/* Makes a volume of an older version the newest, if it has room for that: copy A of its header, flush, copy B, flush.
 * What is there already stays as it is, and means the same. */
int shore__volume_renew(struct shore__volume *v, struct shore__io *io, struct shore_diag *diag);

/* Reads both record places into record, older, damage. */
int shore__volume_read_records(struct shore__volume *v, struct shore__io *io, struct shore_diag *diag);

#endif
