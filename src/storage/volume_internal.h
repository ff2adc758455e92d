/* A volume as its files share it. */
#ifndef SHORE_STORAGE_VOLUME_INTERNAL_H
#define SHORE_STORAGE_VOLUME_INTERNAL_H

#include "storage/format.h"
#include "storage/io_internal.h"
#include "storage/room.h"

static inline uint64_t shore__record_offset(unsigned place) {
    return SHORE__RECORD_OFFSET + (uint64_t)place * SHORE__RECORD_STRIDE;
}

/* Transfers any number of whole pages, in spans. A failure is described with file and offset. */
int shore__transfer(struct shore__io *io, const char *path, enum shore__io_kind kind, void *buffer, uint64_t offset,
                    uint64_t bytes, struct shore_diag *diag);
int shore__flush(struct shore__io *io, const char *path, struct shore_diag *diag);

/* A new file with room for this only; it takes more when that is written. Has no tables, and a map of slot 0 if
 * desc->apart requires one. */
int shore__volume_create_part(const char *path, const struct shore__volume_desc *desc, enum shore__room what,
                              enum shore_io io, struct shore__volume *out, struct shore_diag *diag);

/* For shore__file_create(): a volume that was never finished, or never had a record, has nothing to lose. */
enum shore__replaceable shore__volume_replaceable(const struct shore__file *file);

/* volume_header.c: both copies of the header. */
struct shore__headers {
    struct shore__header copy[2];
    enum shore__parse parse[2];
    int unreadable[2]; /* why, or 0 */
    unsigned chosen;   /* valid if found */
    bool found;
    bool differ;      /* the other copy must be rewritten */
    bool overwritten; /* copy A on a device was overwritten by something else: a file system, a partition table */
};
int shore__headers_read(const struct shore__file *file, struct shore__io *io, void *page, struct shore__headers *out,
                        struct shore_diag *diag);
/* Describes what is wrong with them. */
int shore__headers_explain(const struct shore__file *file, const struct shore__headers *h, struct shore_diag *diag);
/* Writes one copy, or both, A first; each is durable before the next. */
int shore__headers_write_copy(const struct shore__header *header, unsigned copy, struct shore__io *io, const char *path,
                              void *page, struct shore_diag *diag);
int shore__headers_write(const struct shore__header *header, struct shore__io *io, const char *path, void *page,
                         struct shore_diag *diag);
/* Upgrades a volume of an older version, if it has room: copy A of its header, flush, copy B, flush. Its contents stay,
 * and mean the same. */
int shore__volume_renew(struct shore__volume *v, struct shore__io *io, struct shore_diag *diag);

/* Reads both records into record, older, damage. */
int shore__volume_read_records(struct shore__volume *v, struct shore__io *io, struct shore_diag *diag);

#endif
