/* A volume: the durable state of one drive, with its format, two slots, tables of leaves, records and recovery.
 * docs/volume-format.md describes every byte. It knows no optimizer, only planes and their bytes per segment.
 *
 * A volume holds `segments` local segments, in the order of its placement table (which block, from which segment, how
 * many). A chunk is a run of local segments; the extent of a plane of a chunk is contiguous. */
#ifndef SHORE_STORAGE_VOLUME_H
#define SHORE_STORAGE_VOLUME_H

#include <string.h>

#include "storage/blockio.h"
#include "storage/slot_map.h"

struct shore_arena;

#define SHORE__VOLUME_VERSION 3u
#define SHORE__VOLUME_APART \
    4u /* only for snapshots whose resting blocks lie in another file: read in place, never written */
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
    uint32_t plane_form;                     /* form of the planes; opaque here */
    uint32_t nextents, segments;
    const struct shore__extent *extents; /* by block, then first */
    uint64_t scratch_bytes;
    bool spill;                                    /* has room for spilled gradients, 4 bytes per element */
    bool apart;                                    /* a snapshot whose resting blocks lie in another file: see rest.h */
    unsigned char rest_key[SHORE__REST_KEY_BYTES]; /* key of that file; zero: none */
    const void *identity;
    uint32_t identity_bytes;
    /* Not stored in the volume. layout: tells which blocks rest (see room.h; NULL: none), and outlives this. The bit
     * mask: the planes that even resting blocks need in one slot. */
    const struct shore_layout *layout;
    unsigned resting_planes;
};

struct shore__slot_state {
    uint64_t step; /* SHORE__STEP_NONE: it holds no whole state */
    unsigned char table_hash[16], map_hash[16], blob_hash[16];
    uint32_t blob_bytes; /* 0: none */
    uint16_t blob_place; /* 0 or 1 */
    uint16_t mapped;     /* 1: some of its segments were carried, and lie in the other slot */
};

/* Whether two slots hold the same state: equal hashes mean equal contents. */
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
    struct shore__record record; /* the newest valid one */
    struct shore__record older;  /* the other one, if older_valid */
    bool record_valid, older_valid;
    /* One of the two records is damaged: by a power loss while it was written, or by a failing drive. */
    bool damaged_record;
    bool damaged_header;            /* one of its two copies was unreadable or invalid; open has rewritten it */
    struct shore_diag damage;       /* which of these, with file and offset; the record comes first */
    struct shore__leaves *table[2]; /* by slot, in memory; from the arena */
    struct shore__slot_map map;     /* as on disk; from the system: a 640th of the tables */
    uint64_t size_bytes;
    bool commit_failed; /* no commit is possible until the volume is reopened */
    bool unflushed;     /* a blob was written for the next record */
    void *page;         /* private: a buffer for direct I/O */
    struct shore_arena *arena;
};

/* Bytes that a new volume takes, if it is a file. */
uint64_t shore__volume_room_bytes(const struct shore__volume_desc *desc);
uint64_t shore__volume_memory_bytes(const struct shore__volume_desc *desc);

/* Creates a volume (see shore__file_create), and writes header and placement, without a record. An existing volume is
 * replaced without overwrite if it was never finished or has no record, because nothing was ever committed to it. The
 * fields of desc are copied. */
int shore__volume_create(const char *path, const struct shore__volume_desc *desc, enum shore_io io, bool overwrite,
                         struct shore_arena *arena, struct shore__volume *out, struct shore_diag *diag);
/* Opens and locks (waits SHORE__LOCK_SECONDS), checks the header (either copy), and reads both records. Reads no table
 * yet. Succeeds without a valid record (the volume was never sealed, or damaged_record): recovery is the caller's
 * decision. Errors: SHORE_EBUSY, SHORE_EMISSING (empty, or its making was interrupted), SHORE_EFORMAT (no volume, or
 * another version), SHORE_ECORRUPT (damaged, cut off). */
int shore__volume_open(const char *path, enum shore_io io, struct shore_arena *arena, struct shore__volume *out,
                       struct shore_diag *diag);
/* The same without writing, for any number of readers at a time. */
int shore__volume_open_to_read(const char *path, enum shore_io io, struct shore_arena *arena, struct shore__volume *out,
                               struct shore_diag *diag);
/* Like the first, but for header and records only, without room for tables, which grow with the model. */
int shore__volume_open_records(const char *path, enum shore_io io, struct shore__volume *out, struct shore_diag *diag);
/* Reads header and records only: no lock, no writing, no tables; the file is closed again (file.fd is -1). For identity
 * and for `inspect`. */
int shore__volume_peek(const char *path, struct shore__volume *out, struct shore_diag *diag);
void shore__volume_close(struct shore__volume *v);
/* SHORE_EEXISTS: at path is a file with data of others, which no volume replaces by itself. */
int shore__volume_refuse_foreign(const char *path, struct shore_diag *diag);
/* The file that a path means: in a directory, "longshore.volume". malloc'ed. */
int shore__volume_path(const char *path, char **out, struct shore_diag *diag);

/* Reads a slot's table and map, and compares them with the hashes in `record`. */
int shore__volume_load_table(struct shore__volume *v, struct shore__io *io, const struct shore__record *record,
                             unsigned slot, struct shore_diag *diag);

/* Offsets of data, which follow the map. */
uint64_t shore__volume_plane_offset(const struct shore__volume *v, unsigned slot, enum shore_plane plane,
                                    uint32_t local_segment);
/* The file with the data there: a snapshot's own, or the one with its resting blocks. */
const char *shore__volume_file_at(const struct shore__volume *v, uint64_t offset);
/* segment_bytes: of a spilled gradient; at most SHORE_SEGMENT_ELEMS * 4. */
uint64_t shore__volume_spill_offset(const struct shore__volume *v, uint32_t local_segment, size_t segment_bytes);
uint64_t shore__volume_scratch_offset(const struct shore__volume *v);
/* Local segment of (block, segment), or -1 if another drive owns it. */
int64_t shore__volume_local(const struct shore__volume *v, uint32_t block, uint32_t segment);

/* Whether version 3's additions (carried segments, a blob) can be committed; otherwise the sentence says why not. */
int shore__volume_can_carry(const struct shore__volume *v, struct shore_diag *diag);

/* Writes a blob beside the committed one, for next->slot[next->active] and the next commit. blob: aligned, with room
 * for SHORE_BLOB_BYTES. */
int shore__volume_put_blob(struct shore__volume *v, struct shore__io *io, struct shore__record *next, void *blob,
                           uint32_t bytes, uint64_t *written_bytes, struct shore_diag *diag);
/* The blob of a slot of a record. blob: aligned, SHORE_BLOB_BYTES. Errors: SHORE_ECORRUPT. */
int shore__volume_read_blob(const struct shore__volume *v, struct shore__io *io, const struct shore__slot_state *slot,
                            void *blob, struct shore_diag *diag);

/* Commits: table (and map), flush, record, flush, in this order. A failed flush is final. A volume of an older version
 * is upgraded first. Sets the sequence of `next`. table_slot: the table to write (its hashes go into
 * next->slot[table_slot]), or -1: none (epoch change, skipped step). On success, v->record is next. Synchronous, on the
 * caller's queue, which must have nothing in flight. written_bytes: added to. After a failure, the drive's contents are
 * unknown: further commits are refused until the volume is reopened. */
int shore__volume_commit(struct shore__volume *v, struct shore__io *io, struct shore__record *next, int table_slot,
                         uint64_t *written_bytes, struct shore_diag *diag);

/* Stored bytes of a segment's plane. Behind them there may be anything, which counts as zeros. */
struct shore__stored_part {
    size_t (*bytes)(const void *ctx, uint32_t block, uint32_t segment, enum shore_plane plane);
    const void *ctx;
};

/* Makes a volume at path, a file beside this one, with the committed state alone. Shares blocks if the file system can;
 * otherwise copies them and compares them with their leaves, and puts resting blocks into a file that snapshots share
 * (rest.h). The file is either complete or absent. After a kill, path + ".partial" is left; removing it also removes
 * files that only it names. Synchronous, on the caller's queue, which must have nothing in flight; the committed slot's
 * table must be loaded. buffer: at least a megabyte, aligned. copied_bytes: out. Durable: on return. Errors:
 * SHORE_EEXISTS; -ENOTSUP on a block device; -ENOSPC, SHORE_ECORRUPT. */
int shore__volume_snapshot(struct shore__volume *v, struct shore__io *io, const char *path,
                           struct shore__stored_part stored, void *buffer, size_t buffer_bytes, uint64_t *copied_bytes,
                           struct shore_diag *diag);

/* Compares a plane of a segment with its leaf; SHORE_ECORRUPT names file, offset, block, segment and plane. */
int shore__volume_check(const struct shore__volume *v, unsigned slot, uint32_t block, uint32_t segment,
                        enum shore_plane plane, const void *data, struct shore_diag *diag);

#endif
