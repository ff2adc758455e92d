/* Making a volume, and opening one. */
#include "storage/volume_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/fs.h>

#include "base/arena.h"
#include "base/diag.h"
#include "storage/hash.h"
#include "storage/io_internal.h"
#include "storage/rest.h"
#include "storage/room.h"

#define QUEUE_DEPTH 1u

_Static_assert(SHORE__PAGE_BYTES % SHORE__IO_ALIGN == 0 && SHORE__ARENA_ALIGN % SHORE__IO_ALIGN == 0,
               "pages and an arena's memory are read into directly");

static uint64_t whole_pages(uint64_t bytes) {
    return shore__arena_round(bytes ? bytes : 1);
}

uint64_t shore__volume_memory_bytes(const struct shore__volume_desc *desc) {
    return whole_pages(SHORE__PAGE_BYTES) + whole_pages((uint64_t)desc->nextents * SHORE__EXTENT_BYTES) +
           whole_pages(desc->identity_bytes) + 2 * whole_pages((uint64_t)desc->segments * sizeof(struct shore__leaves));
}

/* Whether a file may be replaced. A volume that was never finished, or never held a record, has nothing to lose. Its
 * creation writes copy A first, so that copy is always whole. */
static enum shore__replaceable classify(const struct shore__file *file, struct shore__io *io, void *page) {
    struct shore__headers h;
    if (shore__headers_read(file, io, page, &h, NULL)) return SHORE__REPLACE_NO;
    if (h.parse[0] == SHORE__PARSE_OK) {
        struct shore__volume v = {.file = *file, .desc = h.copy[0].desc, .version = h.copy[0].version, .page = page};
        if (h.copy[0].unfinished) return SHORE__REPLACE_YES;
        bool sealed = shore__volume_read_records(&v, io, NULL) || v.record_valid || v.damaged_record;
        return sealed ? SHORE__REPLACE_NO : SHORE__REPLACE_YES;
    }
    bool ours = h.found || h.parse[0] == SHORE__PARSE_DAMAGED || h.parse[0] == SHORE__PARSE_VERSION ||
                h.parse[1] == SHORE__PARSE_DAMAGED || h.parse[1] == SHORE__PARSE_VERSION;
    return ours && !h.overwritten ? SHORE__REPLACE_NO : SHORE__REPLACE_UNKNOWN;
}

enum shore__replaceable shore__volume_replaceable(const struct shore__file *file) {
    struct shore__io *io = NULL;
    void *page = NULL;
    enum shore__replaceable answer = SHORE__REPLACE_NO;
    if (posix_memalign(&page, SHORE__IO_ALIGN, SHORE__PAGE_BYTES)) return answer;
    if (shore__io_open(file, SHORE_IO_THREADS, QUEUE_DEPTH, NULL, 0, &io, NULL) == 0) answer = classify(file, io, page);
    shore__io_close(io);
    free(page);
    return answer;
}

int shore__volume_refuse_foreign(const char *path, struct shore_diag *diag) {
    struct shore__file file;
    struct stat st;
    if (stat(path, &st) || !S_ISREG(st.st_mode) || shore__file_open_to_read(path, SHORE_IO_BUFFERED, 0, &file, NULL))
        return 0;
    int rc = shore__volume_replaceable(&file) == SHORE__REPLACE_UNKNOWN ? shore__file_refuse_data(&file, diag) : 0;
    shore__file_close(&file);
    return rc;
}

/* ---- create ------------------------------------------------------------------------------------------------------ */

static int alloc_described(struct shore__volume *v, struct shore_diag *diag) {
    void *extents = shore__arena_alloc(v->arena, whole_pages((uint64_t)v->desc.nextents * SHORE__EXTENT_BYTES));
    void *identity = shore__arena_alloc(v->arena, whole_pages(v->desc.identity_bytes));
    v->desc.extents = extents;
    v->desc.identity = identity;
    return extents && identity ? 0 : shore__fail(diag, -ENOMEM, "%s: out of memory for the placement", v->file.path);
}

static void *map_alloc(uint64_t bytes) {
    void *map = aligned_alloc(SHORE__IO_ALIGN, whole_pages(bytes));
    if (map) memset(map, 0, bytes);
    return map;
}

static int alloc_map(struct shore__volume *v, unsigned slot, struct shore_diag *diag) {
    v->map.bits[slot] = map_alloc(v->at.map_bytes);
    return v->map.bits[slot] ? 0 : shore__fail(diag, -ENOMEM, "%s: out of memory for the tables", v->file.path);
}

static int alloc_tables(struct shore__volume *v, struct shore_diag *diag) {
    for (unsigned slot = 0; slot < 2; slot++) {
        v->table[slot] =
            shore__arena_alloc(v->arena, whole_pages((uint64_t)v->desc.segments * sizeof(struct shore__leaves)));
        if (!v->table[slot]) return shore__fail(diag, -ENOMEM, "%s: out of memory for the tables", v->file.path);
        int rc = alloc_map(v, slot, diag);
        if (rc) return rc;
    }
    return 0;
}

static int alloc_page(struct shore__volume *v, struct shore_diag *diag) {
    v->page = shore__arena_alloc(v->arena, SHORE__PAGE_BYTES);
    return v->page ? 0 : shore__fail(diag, -ENOMEM, "%s: out of memory", v->file.path);
}

static int write_new(struct shore__volume *v, struct shore__io *io, struct shore_diag *diag) {
    const char *path = v->file.path;
    struct shore__header header = {
        .desc = v->desc, .version = v->version, .unfinished = true, .size_bytes = v->size_bytes};
    uint64_t placement_bytes = (uint64_t)v->desc.nextents * SHORE__EXTENT_BYTES;
    /* Written from the buffer of the extents, which are put back below; whole_pages() made it whole pages. */
    void *placement = (void *)(uintptr_t)v->desc.extents;
    shore__extents_write(v->desc.extents, v->desc.nextents, placement);
    shore__hash128(placement, placement_bytes, 0, header.placement_hash);
    shore__hash128(v->desc.identity, v->desc.identity_bytes, 0, header.identity_hash);

    int rc = shore__headers_write(&header, io, path, v->page, diag);
    memset(v->page, 0, SHORE__PAGE_BYTES);
    for (unsigned place = 0; place < 2 && rc == 0; place++)
        rc = shore__transfer(io, path, SHORE__IO_WRITE, v->page, shore__record_offset(place), SHORE__PAGE_BYTES, diag);
    if (rc == 0)
        rc = shore__transfer(io, path, SHORE__IO_WRITE, (void *)(uintptr_t)v->desc.identity, SHORE__IDENTITY_OFFSET,
                             shore__round_up(v->desc.identity_bytes, SHORE__PAGE_BYTES), diag);
    if (rc == 0)
        rc = shore__transfer(io, path, SHORE__IO_WRITE, placement, SHORE__PLACEMENT_OFFSET,
                             shore__round_up(placement_bytes, SHORE__PAGE_BYTES), diag);
    if (rc == 0) rc = shore__flush(io, path, diag);
    header.unfinished = false;
    if (rc == 0) rc = shore__headers_write(&header, io, path, v->page, diag);
    shore__extents_read(placement, v->desc.nextents, placement);
    assert(shore__extents_valid(v->desc.extents, v->desc.nextents, v->desc.segments));
    return rc;
}

static int create(const char *path, const struct shore__volume_desc *desc, enum shore__room what, enum shore_io io,
                  bool overwrite, struct shore_arena *arena, struct shore__volume *out, struct shore_diag *diag) {
    *out = (struct shore__volume){.file = {.fd = -1}, .desc = *desc, .arena = arena};
    out->version = desc->apart ? SHORE__VOLUME_APART : SHORE__VOLUME_VERSION;
    out->desc.extents = NULL;
    out->desc.identity = NULL;
    if (shore__regions_make(desc, out->version, &out->at) ||
        !shore__extents_valid(desc->extents, desc->nextents, desc->segments) || desc->drive >= desc->ndrives)
        return shore__fail(diag, -EINVAL, "%s: the placement or the sizes that the volume records are not possible",
                           path);
    out->size_bytes = out->at.end;
    const struct shore__header claim = {
        .desc = *desc, .version = out->version, .unfinished = true, .size_bytes = out->size_bytes};
    unsigned char claim_page[SHORE__PAGE_BYTES];
    shore__header_write(&claim, claim_page);
    struct shore__file_range *ranges;
    size_t nranges;
    int rc = shore__room_make(desc, &out->at, what, &ranges, &nranges);
    if (rc) return shore__fail(diag, rc, "%s: out of memory", path);
    rc = shore__file_create(path, out->size_bytes, ranges, nranges, io, overwrite, shore__volume_replaceable,
                            claim_page, &out->file, diag);
    free(ranges);
    if (rc) return rc;
    rc = alloc_page(out, diag);
    if (rc == 0) rc = alloc_described(out, diag);
    if (rc == 0 && what == SHORE__ROOM_WHOLE) rc = alloc_tables(out, diag);
    if (rc == 0 && desc->apart) rc = alloc_map(out, 0, diag);
    if (rc == 0) {
        if (desc->nextents)
            memcpy((void *)(uintptr_t)out->desc.extents, desc->extents, desc->nextents * sizeof *desc->extents);
        if (desc->identity_bytes) memcpy((void *)(uintptr_t)out->desc.identity, desc->identity, desc->identity_bytes);
        struct shore__io *queue;
        rc = shore__io_open(&out->file, io, QUEUE_DEPTH, NULL, 0, &queue, diag);
        if (rc == 0) {
            rc = write_new(out, queue, diag);
            shore__io_close(queue);
        }
    }
    if (rc) {
        if (out->file.made) unlink(out->file.path);
        shore__volume_close(out);
    }
    return rc;
}

int shore__volume_create(const char *path, const struct shore__volume_desc *desc, enum shore_io io, bool overwrite,
                         struct shore_arena *arena, struct shore__volume *out, struct shore_diag *diag) {
    return create(path, desc, SHORE__ROOM_WHOLE, io, overwrite, arena, out, diag);
}

int shore__volume_create_part(const char *path, const struct shore__volume_desc *desc, enum shore__room what,
                              enum shore_io io, struct shore__volume *out, struct shore_diag *diag) {
    return create(path, desc, what, io, false, NULL, out, diag);
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static int damaged_region(const struct shore__volume *v, const char *what, uint64_t offset, struct shore_diag *diag) {
    return shore__fail(
        diag, SHORE_ECORRUPT,
        "%s: the %s at offset %llu does not match its checksum; put the file back from a copy, and check "
        "the drive",
        v->file.path, what, (unsigned long long)offset);
}

static int read_described(struct shore__volume *v, struct shore__io *io, const struct shore__header *header,
                          struct shore_diag *diag) {
    int rc = alloc_described(v, diag);
    if (rc) return rc;
    void *placement = (void *)(uintptr_t)v->desc.extents, *identity = (void *)(uintptr_t)v->desc.identity;
    uint64_t placement_bytes = (uint64_t)v->desc.nextents * SHORE__EXTENT_BYTES;
    rc = shore__transfer(io, v->file.path, SHORE__IO_READ, placement, SHORE__PLACEMENT_OFFSET,
                         shore__round_up(placement_bytes, SHORE__PAGE_BYTES), diag);
    if (rc == 0)
        rc = shore__transfer(io, v->file.path, SHORE__IO_READ, identity, SHORE__IDENTITY_OFFSET,
                             shore__round_up(v->desc.identity_bytes, SHORE__PAGE_BYTES), diag);
    if (rc) return rc;
    unsigned char sum[16];
    shore__hash128(placement, placement_bytes, 0, sum);
    if (memcmp(sum, header->placement_hash, 16) != 0)
        return damaged_region(v, "placement table", SHORE__PLACEMENT_OFFSET, diag);
    shore__hash128(identity, v->desc.identity_bytes, 0, sum);
    if (memcmp(sum, header->identity_hash, 16) != 0) return damaged_region(v, "identity", SHORE__IDENTITY_OFFSET, diag);
    shore__extents_read(placement, v->desc.nextents, placement);
    if (!shore__extents_valid(v->desc.extents, v->desc.nextents, v->desc.segments))
        return damaged_region(v, "placement table", SHORE__PLACEMENT_OFFSET, diag);
    return 0;
}

/* Reads header, placement, identity and records of an open file. */
static int read_volume(struct shore__volume *v, struct shore__io *io, bool repair, struct shore_diag *diag) {
    int rc = alloc_page(v, diag);
    if (rc) return rc;
    struct shore__headers h;
    rc = shore__headers_read(&v->file, io, v->page, &h, diag);
    if (rc == 0) rc = shore__headers_explain(&v->file, &h, diag);
    if (rc) return rc;
    const struct shore__header *header = &h.copy[h.chosen];
    v->desc = header->desc;
    v->version = header->version;
    v->size_bytes = header->size_bytes;
    shore__regions_make(&v->desc, v->version, &v->at);
    rc = read_described(v, io, header, diag);
    if (rc == 0) rc = shore__volume_read_records(v, io, diag);
    if (rc) return rc;
    unsigned other = !h.chosen;
    if (h.parse[other] != SHORE__PARSE_OK) {
        v->damaged_header = true;
        if (!v->damaged_record)
            shore__fail(&v->damage, SHORE_ECORRUPT,
                        "%s: the copy of the volume's header at offset %llu %s%s; the other copy is whole and is used; "
                        "check the drive",
                        v->file.path, (unsigned long long)(other ? SHORE__HEADER_B_OFFSET : SHORE__HEADER_A_OFFSET),
                        h.unreadable[other] ? "cannot be read: " : "was damaged",
                        h.unreadable[other] ? shore_error_text(h.unreadable[other]) : "");
    }
    return h.differ && repair ? shore__headers_write_copy(header, other, io, v->file.path, v->page, diag) : 0;
}

/* Reads the volume of an open file; closes it on an error. */
static int open_volume(struct shore__volume *out, enum shore_io io, bool repair, struct shore_diag *diag) {
    struct shore__io *queue;
    int rc = shore__io_open(&out->file, io, QUEUE_DEPTH, NULL, 0, &queue, diag);
    if (rc == 0) {
        rc = read_volume(out, queue, repair, diag);
        shore__io_close(queue);
    }
    if (rc == 0 && out->desc.apart)
        rc = repair ? shore__fail(diag, SHORE_EUSAGE,
                                  "%s: is a snapshot that shares a file of frozen blocks, so it can only be read; "
                                  "rollback goes back to it",
                                  out->file.path)
                    : shore__rest_open(out, io, diag);
    if (rc) shore__volume_close(out);
    return rc;
}

static int open_to_write(const char *path, enum shore_io io, struct shore_arena *arena, struct shore__volume *out,
                         struct shore_diag *diag) {
    *out = (struct shore__volume){.file = {.fd = -1}, .arena = arena};
    int rc = shore__file_open(path, io, SHORE__LOCK_SECONDS, &out->file, diag);
    if (!rc && (rc = shore__file_refuse_links(&out->file, diag))) shore__file_close(&out->file);
    return rc ? rc : open_volume(out, io, true, diag);
}

/* Adds tables to a volume. rc: the result of opening it. */
static int with_tables(struct shore__volume *v, int rc, struct shore_diag *diag) {
    if (rc == 0 && (rc = alloc_tables(v, diag))) shore__volume_close(v);
    return rc;
}

int shore__volume_open(const char *path, enum shore_io io, struct shore_arena *arena, struct shore__volume *out,
                       struct shore_diag *diag) {
    return with_tables(out, open_to_write(path, io, arena, out, diag), diag);
}

int shore__volume_open_to_read(const char *path, enum shore_io io, struct shore_arena *arena, struct shore__volume *out,
                               struct shore_diag *diag) {
    *out = (struct shore__volume){.file = {.fd = -1}, .arena = arena};
    int rc = shore__file_open_to_read(path, io, SHORE__LOCK_SECONDS, &out->file, diag);
    return with_tables(out, rc ? rc : open_volume(out, io, false, diag), diag);
}

int shore__volume_open_records(const char *path, enum shore_io io, struct shore__volume *out, struct shore_diag *diag) {
    return open_to_write(path, io, NULL, out, diag);
}

int shore__volume_peek(const char *path, struct shore__volume *out, struct shore_diag *diag) {
    *out = (struct shore__volume){.file = {.fd = -1}};
    struct stat st;
    if (stat(path, &st)) return shore__fail_errno(diag, path, "cannot be opened");
    if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
        return shore__fail(diag, SHORE_EINPUT, "%s: not a file or a block device", path);
    out->file.path = strdup(path);
    if (!out->file.path) return shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    int rc = 0;
    struct shore__io *io = NULL;
    out->file.fd = open(path, O_RDONLY | O_CLOEXEC);
    out->file.size_bytes = (uint64_t)st.st_size;
    out->file.is_device = S_ISBLK(st.st_mode);
    if (out->file.fd < 0 || (out->file.is_device && ioctl(out->file.fd, BLKGETSIZE64, &out->file.size_bytes)))
        rc = shore__fail_errno(diag, path, "cannot be read");
    if (rc == 0) rc = shore__io_open(&out->file, SHORE_IO_THREADS, QUEUE_DEPTH, NULL, 0, &io, diag);
    if (rc == 0) rc = read_volume(out, io, false, diag);
    shore__io_close(io);
    if (out->file.fd >= 0) close(out->file.fd);
    out->file.fd = -1;
    if (rc) shore__volume_close(out);
    return rc;
}
