/* The two copies of a volume's header. */
#include <assert.h>
#include <string.h>

#include "base/diag.h"
#include "storage/volume_internal.h"

static const uint64_t header_offset[2] = {SHORE__HEADER_A_OFFSET, SHORE__HEADER_B_OFFSET};

/* Reads both copies. Either may be damaged, or unreadable. */
int shore__headers_read(const struct shore__file *file, struct shore__io *io, void *page, struct shore__headers *out,
                        struct shore_diag *diag) {
    unsigned char first[SHORE__PAGE_BYTES];
    int failed = 0;
    for (unsigned i = 0; i < 2; i++) {
        out->parse[i] = SHORE__PARSE_EMPTY;
        out->copy[i] = (struct shore__header){0};
        out->unreadable[i] = 0;
        memset(page, 0, SHORE__PAGE_BYTES);
        if (file->size_bytes >= header_offset[i] + SHORE__PAGE_BYTES) {
            int rc = shore__transfer(io, file->path, SHORE__IO_READ, page, header_offset[i], SHORE__PAGE_BYTES, diag);
            if (rc) failed = out->unreadable[i] = rc;
            out->parse[i] = rc ? SHORE__PARSE_DAMAGED : shore__header_parse(page, &out->copy[i]);
        } else if (i == 0 && file->size_bytes) {
            out->parse[i] = SHORE__PARSE_FOREIGN; /* an interrupted creation leaves at least a page */
        }
        if (i == 0) memcpy(first, page, sizeof first);
    }
    /* Copy A is written and made durable first, so it is the newer one if both are whole. */
    out->found = out->parse[0] == SHORE__PARSE_OK || out->parse[1] == SHORE__PARSE_OK;
    if (failed && !out->found) return failed;
    out->chosen = out->parse[0] == SHORE__PARSE_OK ? 0 : 1;
    out->differ = failed || memcmp(first, page, sizeof first) != 0;
    out->overwritten = file->is_device && out->chosen == 1 && out->parse[0] != SHORE__PARSE_DAMAGED &&
                       out->parse[0] != SHORE__PARSE_VERSION &&
                       memcmp(first + SHORE__HEADER_MAGIC_BYTES, (unsigned char *)page + SHORE__HEADER_MAGIC_BYTES,
                              SHORE__HEADER_FIELDS_BYTES - SHORE__HEADER_MAGIC_BYTES) != 0;
    return 0;
}

int shore__headers_explain(const struct shore__file *file, const struct shore__headers *h, struct shore_diag *diag) {
    for (unsigned i = 0; i < 2 && !h->found; i++)
        if (h->parse[i] == SHORE__PARSE_VERSION)
            return shore__fail(diag, SHORE_EFORMAT,
                               "%s: has format version %u, but this longshore reads versions %u to %u; use the "
                               "longshore that wrote it last",
                               file->path, h->copy[i].version, SHORE__VOLUME_OLDEST, SHORE__VOLUME_APART);
    for (unsigned i = 0; i < 2 && !h->found; i++)
        if (h->parse[i] == SHORE__PARSE_DAMAGED)
            return shore__fail(
                diag, SHORE_ECORRUPT,
                "%s: no copy of the volume's header is whole (offsets %u and %u); put the file back from a "
                "copy, and check the drive",
                file->path, SHORE__HEADER_A_OFFSET, SHORE__HEADER_B_OFFSET);
    if (h->found && h->overwritten)
        return shore__fail(
            diag, SHORE_EFORMAT,
            "%s: something else has overwritten the beginning of the volume; Longshore leaves it as it is", file->path);
    if (h->parse[0] == SHORE__PARSE_EMPTY && h->parse[1] == SHORE__PARSE_EMPTY)
        return shore__fail(
            diag, SHORE_EMISSING,
            "%s: not a longshore volume, but empty: its making was interrupted, or something has emptied "
            "it; check the path, or make it again",
            file->path);
    if (!h->found)
        return shore__fail(diag, SHORE_EFORMAT,
                           "%s: not a longshore volume, or another file has taken its place; check the path",
                           file->path);
    const struct shore__header *header = &h->copy[h->chosen];
    if (header->unfinished)
        return shore__fail(diag, SHORE_EMISSING, "%s: making this volume was interrupted; make it again, as before",
                           file->path);
    if (header->size_bytes > file->size_bytes)
        return shore__fail(diag, SHORE_ECORRUPT,
                           "%s: cut off: the volume has %llu bytes, only %llu are there; put the file back from a copy",
                           file->path, (unsigned long long)header->size_bytes, (unsigned long long)file->size_bytes);
    return 0;
}

int shore__headers_write_copy(const struct shore__header *header, unsigned copy, struct shore__io *io, const char *path,
                              void *page, struct shore_diag *diag) {
    struct shore__header back;
    shore__header_write(header, page);
    assert(shore__header_parse(page, &back) == SHORE__PARSE_OK && back.size_bytes == header->size_bytes);
    int rc = shore__transfer(io, path, SHORE__IO_WRITE, page, header_offset[copy], SHORE__PAGE_BYTES, diag);
    return rc ? rc : shore__flush(io, path, diag);
}

int shore__headers_write(const struct shore__header *header, struct shore__io *io, const char *path, void *page,
                         struct shore_diag *diag) {
    int rc = shore__headers_write_copy(header, 0, io, path, page, diag);
    return rc ? rc : shore__headers_write_copy(header, 1, io, path, page, diag);
}

int shore__volume_renew(struct shore__volume *v, struct shore__io *io, struct shore_diag *diag) {
    if (v->version >= SHORE__VOLUME_VERSION || !shore__regions_renewable(&v->desc, v->version)) return 0;
    struct shore__headers h;
    int rc = shore__headers_read(&v->file, io, v->page, &h, diag);
    if (rc == 0) rc = shore__headers_explain(&v->file, &h, diag);
    if (rc) return rc;
    struct shore__header header = h.copy[h.chosen];
    header.version = SHORE__VOLUME_VERSION;
    rc = shore__headers_write(&header, io, v->file.path, v->page, diag);
    if (rc) return rc;
    v->version = header.version;
    return shore__regions_make(&v->desc, v->version, &v->at);
}
