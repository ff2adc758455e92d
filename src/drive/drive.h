/* The drive interface: what storage with functions beside it does for a fleet.
 *
 * Kinds: "local" (a file or device, worked on by threads of this process), "remote" (the same in a server, see
 * remote.h), "ram", "null". A drive sees only its own extents; the fleet splits requests. Submit rule as in state.h.
 * Threading: submits may come from any thread; completions run on threads of the drive. What is marked synchronous is
 * called by one thread, with no other request under way on what it touches.
 */
#ifndef SHORE_DRIVE_DRIVE_H
#define SHORE_DRIVE_DRIVE_H

#include "drive/gate.h"
#include "drive/planes.h"
#include "storage/volume.h"

struct shore__address;
struct shore__drive;
struct shore_arena;
struct shore__call;

enum shore__drive_caps {
    SHORE__DRIVE_DURABLE = 1,
    SHORE__DRIVE_KEEPS_DATA = 2,  /* null does not */
    SHORE__DRIVE_COUNTS_LINK = 4, /* its own ledger says what crossed the host link, byte by byte */
    SHORE__DRIVE_CARRIES = 8,     /* of a server's drive, as it says: can_carry */
};

enum shore__snapshot_act { SHORE__SNAPSHOT_MAKE, SHORE__SNAPSHOT_REMOVE };

struct shore__drive_fetch {
    uint64_t step; /* the committed one, or the one being written */
    uint32_t block, segment, count;
    enum shore_fetch_kind kind;
    void *dst;
};

struct shore__drive_recovery {
    bool valid;                  /* a record was found: otherwise the volume was being made */
    struct shore__record record; /* newest valid */
    bool older_valid;
    struct shore__record older;
    bool damaged_record;
    struct shore_diag damage;
};

/* local_drive.c. Of a volume that was opened, or looked into. */
void shore__volume_recovery(const struct shore__volume *v, struct shore__drive_recovery *out);

struct shore__drive_ops {
    unsigned caps;

    int (*recovery)(const struct shore__drive *d, struct shore__drive_recovery *out, struct shore_diag *diag);
    /* Goes to the slot that holds step and loads its table. Writes nothing. Synchronous. */
    int (*load)(struct shore__drive *d, uint64_t step, struct shore_diag *diag);
    /* Makes (epoch, step, its slot) durable, after load; SHORE_ESTALE: it has seen that epoch, or a later one. On a
     * drive that has just been created, without load: makes what init wrote the first whole state. Synchronous. */
    int (*begin)(struct shore__drive *d, uint64_t epoch, uint64_t step, struct shore_diag *diag);
    /* Initial state: see shore_fleet_init_block. Synchronous. */
    int (*init)(struct shore__drive *d, uint32_t block, uint32_t segment, uint32_t count, const float *master,
                const float *m, const float *v, struct shore_diag *diag);

    int (*fetch)(struct shore__drive *d, const struct shore__drive_fetch *fetch, struct shore_completion done);
    /* update->groups is borrowed until the completion, like the other buffers. */
    int (*update)(struct shore__drive *d, const struct shore_update *update, struct shore_completion done);
    /* Before begin, on a drive that has just been created: initial state. */
    int (*store)(struct shore__drive *d, const struct shore_store *store, struct shore_completion done);
    /* These segments stay as they are, which counts as their update; nothing is read or written. which->state is not
     * used. */
    int (*carry)(struct shore__drive *d, const struct shore_store *which, struct shore_completion done);
    /* Every other function that a drive has: see function.h. *call is copied. */
    int (*call)(struct shore__drive *d, const struct shore__call *call, struct shore_completion done);
    /* After begin, and after all updates that were submitted before it; none may be submitted until it has completed,
     * and one that is found behind it fails. Fails unless (SKIPPED or) every segment has been updated or carried in the
     * current attempt, without an error. commit, and what it points to, is borrowed until the completion. */
    int (*commit)(struct shore__drive *d, const struct shore_commit *commit, struct shore_completion done);
    /* The blob of the step that was loaded or committed. blob: room for SHORE_BLOB_BYTES. Synchronous. */
    int (*blob)(struct shore__drive *d, void *blob, uint32_t *bytes, struct shore_diag *diag);
    /* 0, or why it can carry no segments and hold no blob: -ENOTSUP. NULL: it can. */
    int (*can_carry)(const struct shore__drive *d, struct shore_diag *diag);
    /* Drains; requests of older attempts are refused from now on. Synchronous. */
    void (*discard)(struct shore__drive *d, uint64_t attempt);

    /* Sum of the leaves of the committed slot modulo 2^128, little-endian; deep: after reading every byte.
     * Synchronous. */
    int (*leaf_sum)(struct shore__drive *d, bool deep, unsigned char sum[16], struct shore_diag *diag);
    /* A copy of the committed state, or its removal, under a name, beside what this drive keeps; it can be opened as a
     * drive of its own. Durable when it returns. Synchronous. */
    int (*snapshot)(struct shore__drive *d, enum shore__snapshot_act act, const char *name, struct shore_diag *diag);
    void (*ledger)(const struct shore__drive *d, struct shore_ledger *add_to);
    int (*describe)(const struct shore__drive *d, char *text, size_t bytes);
    void (*close)(struct shore__drive *d);
    /* In a child that was forked off, where nothing else is done with it: closes the child's descriptors. Takes no
     * lock, which a thread of the parent may have had, and unlocks nothing. NULL: it has none. */
    void (*forked)(struct shore__drive *d);
};

/* Every drive's object begins with this. */
struct shore__drive {
    const struct shore__drive_ops *ops;
    const struct shore__volume_desc *desc; /* which segments it owns, of which fleet */
    const char *path;                      /* as messages name it */
    uint64_t disk_bytes;
    struct shore__gate *gate; /* that local drives go through; NULL: none */
};

/* What every kind of drive is opened with; what the pointers point to outlives the drive. */
struct shore__drive_config {
    const struct shore_layout *layout;
    enum shore_optimizer optimizer;
    enum shore_moments moments;
    uint32_t plane_bytes[SHORE_PLANE_COUNT];
    bool fp32_params;
    bool read_only;
    enum shore_io io;
    uint32_t chunk_segments; /* of the update ring; at least 1 */
    uint32_t ring_buffers;
    uint32_t stage_segments; /* of joined fetches */
    struct shore_arena *arena;
    uint64_t cache_memory_bytes;               /* that a cache may take beside the arena; 0: no limit */
    void (*note)(void *ctx, const char *text); /* may be NULL */
    void *note_ctx;
};

/* A drive of the kind that the address names, which outlives it. desc is copied. */
int shore__drive_create_at(const struct shore__drive_config *config, const struct shore__address *at,
                           const struct shore__volume_desc *desc, bool overwrite, struct shore__drive **out,
                           struct shore_diag *diag);
int shore__drive_open_at(const struct shore__drive_config *config, const struct shore__address *at,
                         struct shore__drive **out, struct shore_diag *diag);

/* desc is copied. */
int shore__ram_create(const struct shore__drive_config *config, const struct shore__volume_desc *desc,
                      struct shore__drive **out, struct shore_diag *diag);
int shore__null_create(const struct shore__drive_config *config, const struct shore__volume_desc *desc,
                       struct shore__drive **out, struct shore_diag *diag);
int shore__local_create(const struct shore__drive_config *config, const char *path,
                        const struct shore__volume_desc *desc, bool overwrite, struct shore__drive **out,
                        struct shore_diag *diag);
int shore__local_open(const struct shore__drive_config *config, const char *path, struct shore__drive **out,
                      struct shore_diag *diag);

/* Bytes that a drive takes from the arena of the process that has it. */
uint64_t shore__drive_memory_bytes(const struct shore__address *at, const struct shore__drive_config *config,
                                   const struct shore__volume_desc *desc);
uint64_t shore__ram_memory_bytes(const struct shore__drive_config *config, const struct shore__volume_desc *desc);
uint64_t shore__local_memory_bytes(const struct shore__drive_config *config, const struct shore__volume_desc *desc);

#endif
