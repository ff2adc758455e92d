#include "storage/volume_internal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "base/diag.h"
#include "storage/hash.h"

uint64_t shore__volume_plane_offset(const struct shore__volume *v, unsigned slot, enum shore_plane plane,
                                    uint32_t local_segment) {
    assert(slot < 2 && local_segment <= v->desc.segments);
    return v->at.plane[shore__slot_map_data(&v->map, slot, local_segment)][plane] +
           (uint64_t)local_segment * v->desc.plane_bytes[plane];
}

const char *shore__volume_file_at(const struct shore__volume *v, uint64_t offset) {
    return shore__file_at(&v->file, offset)->path;
}

uint64_t shore__volume_spill_offset(const struct shore__volume *v, uint32_t local_segment, size_t segment_bytes) {
    return v->at.spill + (uint64_t)local_segment * segment_bytes;
}

uint64_t shore__volume_scratch_offset(const struct shore__volume *v) {
    return v->at.scratch;
}

int64_t shore__volume_local(const struct shore__volume *v, uint32_t block, uint32_t segment) {
    uint32_t low = 0, high = v->desc.nextents;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct shore__extent *e = &v->desc.extents[middle];
        if (e->block < block || (e->block == block && e->first + e->count <= segment))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == v->desc.nextents) return -1;
    const struct shore__extent *e = &v->desc.extents[low];
    if (e->block != block || segment < e->first) return -1;
    return (int64_t)e->local + (segment - e->first);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static bool newer(const struct shore__record *a, const struct shore__record *b) {
    return a->epoch != b->epoch ? a->epoch > b->epoch : a->sequence > b->sequence;
}

static void note_damage(struct shore__volume *v, unsigned place, const char *what) {
    v->damaged_record = true;
    shore__fail(&v->damage, SHORE_ECORRUPT,
                "%s: the commit record at offset %" PRIu64
                " %s: it was being written when the power went, or the drive "
                "has lost it",
                v->file.path, shore__record_offset(place), what);
}

int shore__volume_read_records(struct shore__volume *v, struct shore__io *io, struct shore_diag *diag) {
    struct shore__record found[2];
    enum shore__parse parse[2];
    for (unsigned place = 0; place < 2; place++) {
        int rc = shore__transfer(io, v->file.path, SHORE__IO_READ, v->page, shore__record_offset(place),
                                 SHORE__PAGE_BYTES, diag);
        if (rc) return rc;
        parse[place] = shore__record_parse(&v->desc, v->version, place, v->page, &found[place]);
        if (parse[place] == SHORE__PARSE_DAMAGED) note_damage(v, place, "is damaged");
        if (parse[place] == SHORE__PARSE_FOREIGN) note_damage(v, place, "belongs to another volume");
    }
    bool valid[2] = {parse[0] == SHORE__PARSE_OK, parse[1] == SHORE__PARSE_OK};
    if (!valid[0] && !valid[1]) return 0;
    unsigned newest = !valid[0] || (valid[1] && newer(&found[1], &found[0]));
    v->record_valid = true;
    v->record = found[newest];
    v->older_valid = valid[!newest];
    if (v->older_valid) v->older = found[!newest];
    assert(v->record.sequence % 2 == newest && (!v->older_valid || newer(&v->record, &v->older)));
    /* Records alternate between two places, so the other place holds the previous one; the first record has none. */
    if (parse[!newest] == SHORE__PARSE_EMPTY && v->record.sequence > 1) note_damage(v, !newest, "is gone");
    if (v->older_valid && v->older.sequence + 1 != v->record.sequence) note_damage(v, !newest, "is out of turn");
    return 0;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* Hashes the table and the map of a slot, for its record. */
static void hash_slot(const struct shore__volume *v, unsigned slot, struct shore__slot_state *out) {
    shore__hash128(v->table[slot], (size_t)v->desc.segments * sizeof *v->table[slot], 0, out->table_hash);
    out->mapped = 0;
    memset(out->map_hash, 0, 16);
    for (uint64_t i = 0; v->map.bits[slot] && i < v->at.map_bytes; i++)
        if (v->map.bits[slot][i]) out->mapped = 1;
    if (out->mapped) shore__hash128((void *)(uintptr_t)v->map.bits[slot], v->at.map_bytes, 0, out->map_hash);
}

static int load_map(struct shore__volume *v, struct shore__io *io, unsigned slot, bool mapped,
                    struct shore_diag *diag) {
    void *map = (void *)(uintptr_t)v->map.bits[slot];
    assert(map);
    if (mapped) return shore__transfer(io, v->file.path, SHORE__IO_READ, map, v->at.map[slot], v->at.map_bytes, diag);
    memset(map, 0, v->at.map_bytes);
    return 0;
}

int shore__volume_load_table(struct shore__volume *v, struct shore__io *io, const struct shore__record *record,
                             unsigned slot, struct shore_diag *diag) {
    if (slot > 1 || record->slot[slot].step == SHORE__STEP_NONE)
        return shore__fail(diag, -EINVAL, "%s: slot %u holds no whole step", v->file.path, slot);
    int rc =
        shore__transfer(io, v->file.path, SHORE__IO_READ, v->table[slot], v->at.table[slot], v->at.table_bytes, diag);
    if (rc == 0) rc = load_map(v, io, slot, record->slot[slot].mapped, diag);
    if (rc) return rc;
    struct shore__slot_state found;
    hash_slot(v, slot, &found);
    if (shore__slot_same(&found, &record->slot[slot])) return 0;
    return shore__fail(diag, SHORE_ECORRUPT,
                       "%s: the table of step %" PRIu64 " at offset %" PRIu64 " does not match its checksum; put the "
                       "volumes back from a copy, and check the drive",
                       v->file.path, record->slot[slot].step, v->at.table[slot]);
}

static const char *plane_name(enum shore_plane plane) {
    static const char *const names[SHORE_PLANE_COUNT] = {"hi", "lo", "m", "v", "residual"};
    return (unsigned)plane < SHORE_PLANE_COUNT ? names[plane] : "?";
}

int shore__volume_check(const struct shore__volume *v, unsigned slot, uint32_t block, uint32_t segment,
                        enum shore_plane plane, const void *data, struct shore_diag *diag) {
    int64_t local = shore__volume_local(v, block, segment);
    if (local < 0)
        return shore__fail(diag, -EINVAL, "%s: does not hold segment %u of block %u", v->file.path, segment, block);
    struct shore__leaf leaf;
    shore__leaf_make(data, v->desc.plane_bytes[plane], shore__leaf_seed(block, segment, plane), &leaf);
    if (memcmp(&leaf, &v->table[slot][local].plane[plane], sizeof leaf) == 0) return 0;
    const uint64_t offset = shore__volume_plane_offset(v, slot, plane, (uint32_t)local);
    return shore__fail(diag, SHORE_ECORRUPT,
                       "%s: block %u, segment %u, plane %s at offset %" PRIu64 " does not match its checksum; put the "
                       "volumes back from a copy, and check the drive",
                       shore__volume_file_at(v, offset), block, segment, plane_name(plane), offset);
}

/* ---- commit ------------------------------------------------------------------------------------------------------ */

/* Refuses a file that was deleted or cut while in use: every later step would be lost with it. */
static int check_still_there(const struct shore__volume *v, struct shore_diag *diag) {
    struct stat st;
    if (v->file.is_device) return 0;
    if (fstat(v->file.fd, &st)) return shore__fail_errno(diag, v->file.path, "cannot be examined");
    if (st.st_nlink == 0)
        return shore__fail(
            diag, -EIO, "%s: was deleted or replaced while it was in use, and the step is not committed; bring it back",
            v->file.path);
    if ((uint64_t)st.st_size < v->size_bytes)
        return shore__fail(diag, -EIO,
                           "%s: was cut to %lld of %" PRIu64 " bytes while it was in use; the step is not "
                           "committed",
                           v->file.path, (long long)st.st_size, v->size_bytes);
    return 0;
}

int shore__volume_can_carry(const struct shore__volume *v, struct shore_diag *diag) {
    if (shore__regions_renewable(&v->desc, v->version)) return 0;
    return shore__fail(diag, -ENOTSUP,
                       "%s: has format version %u, which holds no blob and carries no segments, and has no room to "
                       "become version %u; move its state to new volumes",
                       v->file.path, v->version, SHORE__VOLUME_VERSION);
}

static int write_table(struct shore__volume *v, struct shore__io *io, unsigned slot, bool mapped,
                       uint64_t *written_bytes, struct shore_diag *diag) {
    assert(v->table[slot] && (!mapped || (v->map.bits[slot] && v->at.map[slot])));
    int rc =
        shore__transfer(io, v->file.path, SHORE__IO_WRITE, v->table[slot], v->at.table[slot], v->at.table_bytes, diag);
    if (rc == 0) *written_bytes += v->at.table_bytes;
    if (rc || !mapped) return rc;
    rc = shore__transfer(io, v->file.path, SHORE__IO_WRITE, (void *)(uintptr_t)v->map.bits[slot], v->at.map[slot],
                         v->at.map_bytes, diag);
    if (rc == 0) *written_bytes += v->at.map_bytes;
    return rc;
}

/* Whether the page reads back as intended, and recovery will accept it. */
static bool reads_back(const struct shore__volume *v, const struct shore__record *next) {
    struct shore__record back;
    return shore__record_parse(&v->desc, v->version, next->sequence % 2, v->page, &back) == SHORE__PARSE_OK &&
           memcmp(back.slot[0].table_hash, next->slot[0].table_hash, 16) == 0 &&
           memcmp(back.slot[1].table_hash, next->slot[1].table_hash, 16) == 0 &&
           back.slot[back.active].step == next->slot[next->active].step &&
           (!v->record_valid || newer(&back, &v->record));
}

static int write_commit(struct shore__volume *v, struct shore__io *io, const struct shore__record *next, int table_slot,
                        uint64_t *written_bytes, struct shore_diag *diag) {
    const char *path = v->file.path;
    int rc = 0;
    /* committed data are never overwritten: neither the table nor the newest record */
    assert(!v->record_valid || (table_slot != (int)v->record.active && next->sequence % 2 != v->record.sequence % 2));
    if (table_slot >= 0)
        rc = write_table(v, io, (unsigned)table_slot, next->slot[table_slot].mapped, written_bytes, diag);
    if (rc == 0 && (table_slot >= 0 || v->unflushed)) rc = shore__flush(io, path, diag);
    if (rc) return rc;
    v->unflushed = false;
    shore__record_write(&v->desc, v->version, next, v->page);
    assert(reads_back(v, next));
    rc = shore__transfer(io, path, SHORE__IO_WRITE, v->page, shore__record_offset(next->sequence & 1),
                         SHORE__PAGE_BYTES, diag);
    if (rc == 0) rc = shore__flush(io, path, diag);
    if (rc == 0) *written_bytes += SHORE__PAGE_BYTES;
    return rc;
}

int shore__volume_commit(struct shore__volume *v, struct shore__io *io, struct shore__record *next, int table_slot,
                         uint64_t *written_bytes, struct shore_diag *diag) {
    if (v->commit_failed)
        return shore__fail(diag, -EIO, "%s: a commit failed before; start again from the last committed step",
                           v->file.path);
    bool overwrites = v->record_valid && table_slot == (int)v->record.active;
    if (overwrites || table_slot > 1 || next->active > 1 || next->metrics_bytes > SHORE__METRICS_BYTES ||
        v->record.sequence == UINT64_MAX || shore__io_in_flight(io))
        return shore__fail(diag, -EINVAL, "%s: this commit is not possible", v->file.path);
    next->sequence = v->record_valid ? v->record.sequence + 1 : 1;
    if (table_slot >= 0) hash_slot(v, (unsigned)table_slot, &next->slot[table_slot]);
    if (next->slot[next->active].step == SHORE__STEP_NONE)
        return shore__fail(diag, -EINVAL, "%s: the commit has no step", v->file.path);

    uint64_t written = 0;
    int rc = check_still_there(v, diag);
    if (rc == 0) rc = shore__volume_renew(v, io, diag);
    if (rc == 0 && table_slot >= 0 && next->slot[table_slot].mapped) rc = shore__volume_can_carry(v, diag);
    if (rc == 0) rc = write_commit(v, io, next, table_slot, &written, diag);
    if (written_bytes) *written_bytes += written;
    if (rc) {
        v->commit_failed = true;
        return rc;
    }
    v->older = v->record;
    v->older_valid = v->record_valid;
    v->record = *next;
    v->record_valid = true;
    return 0;
}
