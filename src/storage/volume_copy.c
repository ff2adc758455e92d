/* Snapshots: a volume's committed state as a volume of its own. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/falloc.h>
#include <linux/fs.h>

#include "base/diag.h"
#include "base/directory.h"
#include "storage/rest.h"
#include "storage/room.h"
#include "storage/volume_internal.h"

/* The record of a snapshot: one slot, and no older step. */
static struct shore__record record_of(const struct shore__volume *v, unsigned slot) {
    struct shore__record next = {.epoch = v->record.epoch, .active = slot, .metrics_bytes = v->record.metrics_bytes};
    next.slot[slot] = v->record.slot[v->record.active];
    next.slot[1 - slot].step = SHORE__STEP_NONE;
    memcpy(next.metrics, v->record.metrics, v->record.metrics_bytes);
    return next;
}

/* blob: the blob to copy; NULL: the copy has it already. */
static int write_record(struct shore__volume *copy, const struct shore__volume *of, unsigned slot, int table_slot,
                        void *blob, struct shore_diag *diag) {
    struct shore__io *io = NULL;
    struct shore__record next = record_of(of, slot);
    int rc = shore__io_open(&copy->file, SHORE_IO_THREADS, 1, NULL, 0, &io, diag);
    if (!rc && blob) rc = shore__volume_put_blob(copy, io, &next, blob, next.slot[slot].blob_bytes, NULL, diag);
    if (!rc) rc = shore__volume_commit(copy, io, &next, table_slot, NULL, diag);
    shore__io_close(io);
    return rc;
}

/* ---- shared blocks ----------------------------------------------------------------------------------------------- */

/* Takes over the flag for writing in place: two files share blocks only if both have it, or neither. */
static void take_flags(int fd, const struct shore__volume *v) {
    int flags = 0;
    if (ioctl(v->file.fd, FS_IOC_GETFLAGS, &flags) == 0 && flags & FS_NOCOW_FL) ioctl(fd, FS_IOC_SETFLAGS, &flags);
}

static void punch(int fd, uint64_t offset, uint64_t bytes) {
    if (bytes) fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
}

/* Frees what a snapshot does not need: of each segment, the planes in the slot without its committed data; spilled
 * gradients; scratch. */
static void punch_unused(const struct shore__volume *v, int fd) {
    const unsigned slot = v->record.active;
    for (uint32_t local = 0, run; local < v->desc.segments; local += run) {
        run = shore__slot_map_run(&v->map, slot, local, v->desc.segments - local);
        unsigned other = 1 - shore__slot_map_data(&v->map, slot, local);
        for (unsigned p = 0; p < SHORE_PLANE_COUNT; p++) {
            uint64_t each = v->desc.plane_bytes[p];
            punch(fd, v->at.plane[other][p] + local * each, run * each);
        }
    }
    punch(fd, v->at.spill, v->at.end - v->at.spill);
}

/* Clones the volume. Returns 1 if the file system cannot. Unused blocks are freed: otherwise the snapshot would keep
 * the old ones when the volume writes there. */
static int clone(const struct shore__volume *v, const char *path, struct shore_diag *diag) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return shore__fail_errno(diag, path, "cannot be created");
    take_flags(fd, v);
    if (ioctl(fd, FICLONE, v->file.fd)) {
        close(fd);
        unlink(path);
        return 1;
    }
    punch_unused(v, fd);
    int rc = fsync(fd) ? shore__fail_errno(diag, path, "cannot be made durable") : 0;
    close(fd);
    return rc;
}

static int share(const struct shore__volume *v, const char *path, struct shore_diag *diag) {
    struct shore__volume copy;
    int rc = clone(v, path, diag);
    if (rc) return rc;
    rc = shore__volume_open_records(path, SHORE_IO_THREADS, &copy, diag);
    if (rc) return rc;
    const struct shore__slot_state *own = &v->record.slot[v->record.active];
    if (copy.record.slot[copy.record.active].step != own->step ||
        !shore__slot_same(&copy.record.slot[copy.record.active], own))
        rc = shore__fail(diag, SHORE_ECORRUPT, "%s: the copy that the file system made differs from the volume", path);
    if (!rc) rc = write_record(&copy, v, v->record.active, -1, NULL, diag);
    shore__volume_close(&copy);
    return rc;
}

/* ---- copied blocks ----------------------------------------------------------------------------------------------- */

struct copying {
    const struct shore__volume *from;
    struct shore__volume *to, *rest; /* rest: the new file of resting blocks; NULL: none is needed */
    struct shore__io *from_io, *to_io, *rest_io;
    struct shore__stored_part stored;
    unsigned char *buffer;
    size_t buffer_bytes;
    uint64_t copied_bytes;
};

static bool lies_apart(const struct copying *c, const struct shore__extent *extent) {
    return c->to->desc.apart && shore__extent_rests(&c->to->desc, extent);
}

static bool is_zero(const unsigned char *at, uint64_t bytes) {
    return !at[0] && memcmp(at, at + 1, bytes - 1) == 0;
}

/* The shortest run of zeros that becomes a hole. Few tensors fill their segments, and those of a small adapter never
 * do. */
#define HOLE_BYTES ((uint64_t)16 * SHORE__PAGE_BYTES)

/* Leaves holes for zeros, if the file system has holes. A snapshot is only read, so zeros need no room. */
static int write_sparse(const struct shore__volume *to, struct shore__io *io, unsigned char *data, uint64_t offset,
                        uint64_t bytes, struct shore_diag *diag) {
    int rc = 0;
    for (uint64_t at = 0, end; !rc && at < bytes; at = end) {
        bool hole = bytes - at >= HOLE_BYTES && is_zero(data + at, HOLE_BYTES);
        for (end = at + (hole ? HOLE_BYTES : SHORE__PAGE_BYTES); end < bytes; end += SHORE__PAGE_BYTES)
            if (hole ? !is_zero(data + end, SHORE__PAGE_BYTES)
                     : bytes - end >= HOLE_BYTES && is_zero(data + end, HOLE_BYTES))
                break;
        if (!hole || !shore__file_punch(&to->file, offset + at, end - at))
            rc = shore__transfer(io, to->file.path, SHORE__IO_WRITE, data + at, offset + at, end - at, diag);
    }
    return rc;
}

static int copy_span(struct copying *c, enum shore_plane plane, const struct shore__extent *extent, uint32_t at,
                     uint32_t count, struct shore_diag *diag) {
    const unsigned slot = c->from->record.active;
    const uint32_t each = c->from->desc.plane_bytes[plane];
    const uint64_t bytes = (uint64_t)count * each;
    const uint32_t local = extent->local + at;
    int rc = shore__transfer(c->from_io, c->from->file.path, SHORE__IO_READ, c->buffer,
                             shore__volume_plane_offset(c->from, slot, plane, local), bytes, diag);
    for (uint32_t i = 0; !rc && i < count; i++) {
        const uint32_t segment = extent->first + at + i;
        const size_t used = c->stored.bytes(c->stored.ctx, extent->block, segment, plane);
        unsigned char *data = c->buffer + (size_t)i * each;
        assert(used <= each);
        memset(data + used, 0, each - used);
        rc = shore__volume_check(c->from, slot, extent->block, segment, plane, data, diag);
    }
    const uint64_t offset = shore__volume_plane_offset(c->to, 0, plane, local);
    const bool rests = lies_apart(c, extent);
    const struct shore__volume *to = rests ? c->rest : c->to;
    if (!rc) rc = write_sparse(to, rests ? c->rest_io : c->to_io, c->buffer, offset, bytes, diag);
    c->copied_bytes += bytes;
    return rc;
}

static int copy_planes(struct copying *c, struct shore_diag *diag) {
    const struct shore__volume_desc *desc = &c->from->desc;
    int rc = 0;
    for (unsigned p = 0; p < SHORE_PLANE_COUNT; p++) {
        if (!desc->plane_bytes[p]) continue;
        uint32_t most = (uint32_t)(c->buffer_bytes / desc->plane_bytes[p]);
        if (most == 0) return shore__fail(diag, -EINVAL, "%s: the buffer for copying is too small", c->from->file.path);
        for (uint32_t e = 0; e < desc->nextents; e++) {
            const struct shore__extent *extent = &desc->extents[e];
            if (lies_apart(c, extent) && !c->rest) continue;
            for (uint32_t at = 0, n; !rc && at < extent->count; at += n) {
                uint32_t left = extent->count - at;
                n = shore__slot_map_run(&c->from->map, c->from->record.active, extent->local + at,
                                        left < most ? left : most);
                rc = copy_span(c, (enum shore_plane)p, extent, at, n, diag);
            }
        }
    }
    return rc;
}

/* Maps each resting segment to slot 1, which is the other file. */
static void map_rest(struct shore__volume *to) {
    for (uint32_t e = 0; to->desc.apart && e < to->desc.nextents; e++) {
        const struct shore__extent *extent = &to->desc.extents[e];
        for (uint32_t i = 0; shore__extent_rests(&to->desc, extent) && i < extent->count; i++)
            shore__slot_map_set(&to->map, 0, extent->local + i, 1);
    }
}

/* Copies all planes. Resting blocks are written once, for the first snapshot that has them. rest: their new file, if
 * one is made. */
static int copy_all(struct copying *c, struct shore__volume *rest, struct shore_diag *diag) {
    int rc = shore__io_open(&c->to->file, SHORE_IO_THREADS, 1, NULL, 0, &c->to_io, diag);
    if (!rc && c->to->desc.apart && !shore__rest_is_made(c->from, c->to)) {
        rc = shore__rest_create(c->to, rest, diag);
        if (!rc) c->rest = rest;
    }
    if (!rc && c->rest) rc = shore__io_open(&rest->file, SHORE_IO_THREADS, 1, NULL, 0, &c->rest_io, diag);
    if (!rc) rc = copy_planes(c, diag);
    if (!rc && c->rest) rc = shore__flush(c->rest_io, rest->file.path, diag);
    shore__io_close(c->rest_io);
    shore__io_close(c->to_io);
    if (c->rest) shore__volume_close(c->rest);
    return !rc && c->rest ? shore__rest_name(c->to, diag) : rc;
}

static int copy(struct shore__volume *v, struct shore__io *io, const char *path, struct shore__stored_part stored,
                void *buffer, size_t buffer_bytes, uint64_t *copied_bytes, struct shore_diag *diag) {
    struct shore__volume to, rest;
    struct shore__volume_desc desc = v->desc;
    struct copying c = {
        .from = v, .to = &to, .from_io = io, .stored = stored, .buffer = buffer, .buffer_bytes = buffer_bytes};
    desc.spill = false;
    desc.scratch_bytes = 0;
    desc.apart = shore__rest_is_there(v);
    if (desc.apart) shore__rest_key(v, v->record.active, desc.rest_key);
    int rc = shore__volume_create_part(path, &desc, SHORE__ROOM_SNAPSHOT, SHORE_IO_THREADS, &to, diag);
    if (rc) return rc;
    map_rest(&to);
    rc = copy_all(&c, &rest, diag);
    if (!rc) rc = shore__volume_read_blob(v, io, &v->record.slot[v->record.active], buffer, diag);
    to.table[0] = v->table[v->record.active]; /* lent: the same table, but all data lie in slot 0 */
    if (!rc) rc = write_record(&to, v, 0, 0, buffer, diag);
    to.table[0] = NULL;
    shore__volume_close(&to);
    *copied_bytes += c.copied_bytes;
    return rc;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

int shore__volume_snapshot(struct shore__volume *v, struct shore__io *io, const char *path,
                           struct shore__stored_part stored, void *buffer, size_t buffer_bytes, uint64_t *copied_bytes,
                           struct shore_diag *diag) {
    struct stat st;
    char *partial = NULL;
    if (v->file.is_device)
        return shore__fail(diag, -ENOTSUP,
                           "%s: a block device has no room beside its volume for a snapshot; use drives on a file "
                           "system for that",
                           v->file.path);
    if (lstat(path, &st) == 0) return shore__fail(diag, SHORE_EEXISTS, "%s: is there already; remove it first", path);
    if (asprintf(&partial, "%s.partial", path) < 0) return shore__fail(diag, -ENOMEM, "out of memory");
    unlink(partial); /* left by a process that was killed */
    int rc = share(v, partial, diag);
    if (rc > 0) rc = copy(v, io, partial, stored, buffer, buffer_bytes, copied_bytes, diag);
    if (!rc && rename(partial, path)) rc = shore__fail_errno(diag, path, "cannot be put in its place");
    if (!rc) rc = shore__parent_sync(path, diag);
    if (rc) {
        unlink(partial);
        shore__rest_sweep(path, v->desc.fleet_id, NULL);
    }
    free(partial);
    return rc;
}
