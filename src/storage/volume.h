/* One drive made durable: volume format, two slots, tables of leaves, records, recovery. docs/volume-format.md
 * describes every byte. Knows no optimizer: only planes, and how many bytes a segment takes in each.
 *
 * A volume holds `segments` local segments, in the order of its placement table (which block, from which segment, how
 * many). A chunk is a run of local segments; the extent of a plane of a chunk is contiguous.
 */
#ifndef SHORE_STORAGE_VOLUME_H
#define SHORE_STORAGE_VOLUME_H

#include <string.h>

#include "storage/blockio.h"
#include "storage/slot_map.h"

struct shore_arena;

#define SHORE__VOLUME_VERSION 3u
#define SHORE__VOLUME_APART \
    4u /* of snapshots alone, whose blocks that rest lie apart: read as they are, never written */
#define SHORE__VOLUME_OLDEST 2u /* that is read: its next commit makes it the newest, where it has room for that */
#define SHORE__REST_KEY_BYTES 16u
#define SHORE__STEP_NONE UINT64_MAX
#define SHORE__METRICS_BYTES 2048u
#define SHORE__IDENTITY_BYTES 65536u

/* XXH3-128 of one plane of one segment, seeded with (block, segment, plane); canonical form. */
struct shore__leaf {
    unsigned char hash[16];
};
/* The leaves of one local segment. Planes that are not stored are zero. */
struct shore__leaves {
    struct shore__leaf plane[SHORE_PLANE_COUNT];
};

uint64_t shore__leaf_seed(uint32_t block, uint32_t segment, enum shore_plane plane);
void shore__leaf_make(const void *data, size_t bytes, uint64_t seed, struct shore__leaf *out);

/* Segments [first, first + count) of a block live here, from local segment `local` on. */
struct shore__extent {
    uint32_t block, first, count;
    uint32_t local;
};

struct shore__volume_desc {
    uint64_t fleet_id[2], volume_id[2];
    uint32_t drive, ndrives;                 /* place in the fleet */
    uint64_t generation;                     /* of the placement */
    uint32_t plane_bytes[SHORE_PLANE_COUNT]; /* of a segment: whole pages; 0: the plane is not stored */
    uint32_t plane_form;                     /* how planes are to be read: opaque here */
    uint32_t nextents, segments;
    const struct shore__extent *extents; /* by block, then first */
    uint64_t scratch_bytes;
    bool spill; /* room for 4 bytes an element of spilled gradients */
    bool apart; /* a snapshot, of which the blocks that rest lie in another file: see rest.h */
    unsigned char rest_key[SHORE__REST_KEY_BYTES]; /* which; zero: none */
    const void *identity;
    uint32_t identity_bytes;
    /* Not in the volume: whose blocks rest (see room.h; NULL: none do), and the planes that even these need in one
     * slot, as a bit mask. The layout outlives what knows it. */
    const struct shore_layout *layout;
    unsigned resting_planes;
};

struct shore__slot_state {
    uint64_t step; /* SHORE__STEP_NONE: holds nothing whole */
    unsigned char table_hash[16], map_hash[16], blob_hash[16];
    uint32_t blob_bytes; /* 0: none */
    uint16_t blob_place; /* 0 or 1 */
    uint16_t mapped;     /* 1: some of its segments lie in the other slot, since they were carried */
};

/* Whether two slots hold the same state: equal hashes are equal contents. */
static inline bool shore__slot_same(const struct shore__slot_state *a, const struct shore__slot_state *b) {
    return memcmp(a->table_hash, b->table_hash, 16) == 0 && a->mapped == b->mapped &&
           memcmp(a->map_hash, b->map_hash, 16) == 0;
}

struct shore__record {
    uint64_t sequence, epoch;
    struct shore__slot_state slot[2];
    uint32_t active; /* the committed slot */
    uint32_t metrics_bytes;
    unsigned char metrics[SHORE__METRICS_BYTES];
};

/* Offsets in the volume; see docs/volume-format.md. */
struct shore__regions {
    uint64_t table[2], map[2], plane[2][SHORE_PLANE_COUNT], spill, scratch, end;
    uint64_t table_bytes, map_bytes; /* on disk: whole pages */
};

struct shore__volume {
    struct shore__file file;
    struct shore__volume_desc desc; /* identity and extents lie in the volume's own memory */
    uint32_t version;               /* of its format */
    struct shore__regions at;
    struct shore__record record; /* newest valid one */
    struct shore__record older;  /* the other place, if older_valid */
    bool record_valid, older_valid;
    /* A record place holds a damaged record: the trace of a power loss while it was written, or of a failing drive. */
    bool damaged_record;
    bool damaged_header;            /* one of its two copies could not be read or used; open has written it anew */
    struct shore_diag damage;       /* which of these, with file and offset; the record comes first */
    struct shore__leaves *table[2]; /* of each slot, in memory; from the arena */
    struct shore__slot_map map;     /* as on disk; of the system: a 640th of the tables */
    uint64_t size_bytes;
    bool commit_failed; /* no commit until the volume is opened again */
    bool unflushed;     /* a blob was written for the next record */
    void *page;         /* private: a buffer for direct I/O */
    struct shore_arena *arena;
};

uint64_t shore__volume_size_bytes(const struct shore__volume_desc *desc);
/* What a new one that is a file takes of it. */
uint64_t shore__volume_room_bytes(const struct shore__volume_desc *desc);
uint64_t shore__volume_memory_bytes(const struct shore__volume_desc *desc);

/* Creates (see shore__file_create) and writes header and placement, with no record yet. A volume that is there already
 * is replaced without overwrite if it was never finished or holds no record: nothing was ever committed to it. The
 * fields of desc are copied. */
int shore__volume_create(const char *path, const struct shore__volume_desc *desc, enum shore_io io, bool overwrite,
                         struct shore_arena *arena, struct shore__volume *out, struct shore_diag *diag);
/* Opens, locks (waits SHORE__LOCK_SECONDS), checks header (either copy), reads both records. Reads no table yet. With
 * no valid record (the volume was never sealed, or damaged_record) it succeeds: recovery is the caller's decision.
 * Errors: SHORE_EBUSY, SHORE_EMISSING (empty, or never finished: its making was interrupted), SHORE_EFORMAT (no volume,
 * another version), SHORE_ECORRUPT (damaged, cut off). */
int shore__volume_open(const char *path, enum shore_io io, struct shore_arena *arena, struct shore__volume *out,
                       struct shore_diag *diag);
/* The same without writing anything, for as many as like at the same time. */
int shore__volume_open_to_read(const char *path, enum shore_io io, struct shore_arena *arena, struct shore__volume *out,
                               struct shore_diag *diag);
/* As the first, but for its header and records alone: no room for tables, which grow with the model. */
int shore__volume_open_records(const char *path, enum shore_io io, struct shore__volume *out, struct shore_diag *diag);
/* Header and records only: no lock, no writing; the file is closed again (file.fd is -1), no tables. For identity and
 * for `inspect`. */
int shore__volume_peek(const char *path, struct shore__volume *out, struct shore_diag *diag);
void shore__volume_close(struct shore__volume *v);
/* What a path stands for: a directory gets "longshore.volume" in it. Result is malloc'ed. */
int shore__volume_path(const char *path, char **out, struct shore_diag *diag);

/* Reads a slot's table, and its map, and compares them with the hashes that `record` holds. */
int shore__volume_load_table(struct shore__volume *v, struct shore__io *io, const struct shore__record *record,
                             unsigned slot, struct shore_diag *diag);

/* Where things lie: what a map says counts in. */
uint64_t shore__volume_plane_offset(const struct shore__volume *v, unsigned slot, enum shore_plane plane,
                                    uint32_t local_segment);
/* The file that holds what lies there: of a snapshot, its own or the one with what rests. */
const char *shore__volume_file_at(const struct shore__volume *v, uint64_t offset);
/* segment_bytes: of a spilled gradient; SHORE_SEGMENT_ELEMS * 4 at most. */
uint64_t shore__volume_spill_offset(const struct shore__volume *v, uint32_t local_segment, size_t segment_bytes);
uint64_t shore__volume_scratch_offset(const struct shore__volume *v);
/* Local segment of (block, segment), or -1 if another drive owns it. */
int64_t shore__volume_local(const struct shore__volume *v, uint32_t block, uint32_t segment);

/* Whether what came with version 3 (carried segments, a blob) can be committed; else the sentence says why not. */
int shore__volume_can_carry(const struct shore__volume *v, struct shore_diag *diag);

/* Puts a blob where the committed one is not, for next->slot[next->active] and the commit that follows. blob: aligned,
 * with room for SHORE_BLOB_BYTES. */
int shore__volume_put_blob(struct shore__volume *v, struct shore__io *io, struct shore__record *next, void *blob,
                           uint32_t bytes, uint64_t *written_bytes, struct shore_diag *diag);
/* The blob of a slot of a record. blob: aligned, SHORE_BLOB_BYTES. Errors: SHORE_ECORRUPT. */
int shore__volume_read_blob(const struct shore__volume *v, struct shore__io *io, const struct shore__slot_state *slot,
                            void *blob, struct shore_diag *diag);

/* Table (and map), flush, record, flush, in that order; a failed flush is final. A volume of an older version is made
 * the newest first. `next` has its sequence set by the call; table_slot: which table to write (its hashes are put into
 * next->slot[table_slot]), or -1: none (epoch change, skipped step). On success v->record is next. Synchronous, on the
 * caller's queue, which must have nothing in flight. written_bytes: added to. After a failure nobody knows what the
 * drive holds: every further commit is refused until the volume is opened again. */
int shore__volume_commit(struct shore__volume *v, struct shore__io *io, struct shore__record *next, int table_slot,
                         uint64_t *written_bytes, struct shore_diag *diag);

/* Bytes of a plane of a segment that are stored. Behind them there may be anything, which counts as zeros. */
struct shore__stored_part {
    size_t (*bytes)(const void *ctx, uint32_t block, uint32_t segment, enum shore_plane plane);
    const void *ctx;
};

/* Makes a volume of its own at path, a file beside this one, that holds the committed state alone: blocks are shared
 * where the file system can do that, and copied, compared with their leaves, where it cannot; those that rest then lie
 * in a file that snapshots share (rest.h). Whole or not there: what a kill leaves is called path + ".partial", and what
 * that alone names goes with it. Synchronous, on the caller's queue, which must have nothing in flight; the table of
 * the committed slot is loaded. buffer: at least a megabyte, aligned. copied_bytes: out. Durable: on return. Errors:
 * SHORE_EEXISTS; -ENOTSUP on a block device; -ENOSPC, SHORE_ECORRUPT. */
int shore__volume_snapshot(struct shore__volume *v, struct shore__io *io, const char *path,
                           struct shore__stored_part stored, void *buffer, size_t buffer_bytes, uint64_t *copied_bytes,
                           struct shore_diag *diag);

/* Compares a plane of a segment with its leaf; SHORE_ECORRUPT names file, offset, block, segment and plane. */
int shore__volume_check(const struct shore__volume *v, unsigned slot, uint32_t block, uint32_t segment,
                        enum shore_plane plane, const void *data, struct shore_diag *diag);

#endif
