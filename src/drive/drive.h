/* The drive interface: storage with functions beside it, for a fleet.
 *
 * Kinds: "local" (a file or device, with threads of this process), "remote" (the same in a server, see remote.h),
 * "ram", "null". A drive sees only its own extents; the fleet splits requests. For the submit rule, see state.h.
 * Threading: submits may come from any thread; completions run on threads of the drive. One thread calls a synchronous
 * function, with no other request under way on the same data. */
#ifndef SHORE_DRIVE_DRIVE_H
#define SHORE_DRIVE_DRIVE_H

#include "drive/gate.h"
#include "drive/planes.h"
#include "drive/recorder.h"
#include "storage/volume.h"

struct shore__address;
struct shore__drive;
struct shore_arena;
struct shore__call;

enum shore__drive_caps {
    SHORE__DRIVE_DURABLE = 1,
    SHORE__DRIVE_KEEPS_DATA = 2,  /* not null */
    SHORE__DRIVE_COUNTS_LINK = 4, /* its own ledger counts every byte that crossed the host link */
    SHORE__DRIVE_CARRIES = 8,     /* a server's drive may still refuse: can_carry */
};

enum shore__snapshot_act { SHORE__SNAPSHOT_MAKE, SHORE__SNAPSHOT_REMOVE };

struct shore__drive_fetch {
    uint64_t step; /* the committed one, or the one being written */
    uint32_t block, segment, count;
    enum shore_fetch_kind kind;
    void *dst;
};

struct shore__drive_recovery {
    bool valid;                  /* a record was found; otherwise the volume is unfinished */
    struct shore__record record; /* the newest valid one */
    bool older_valid;
    struct shore__record older;
    bool damaged_record;
    struct shore_diag damage;
};

/* local_drive.c. For a volume that was opened, or only inspected. */
void shore__volume_recovery(const struct shore__volume *v, struct shore__drive_recovery *out);

struct shore__drive_ops {
    unsigned caps;

    int (*recovery)(const struct shore__drive *d, struct shore__drive_recovery *out, struct shore_diag *diag);
    /* Selects the slot that holds step, and loads its table. Writes nothing. Synchronous. */
    int (*load)(struct shore__drive *d, uint64_t step, struct shore_diag *diag);
    /* Makes (epoch, step, its slot) durable, after load. SHORE_ESTALE: it has seen that epoch or a later one. On a new
     * drive, without load: turns the initial state into the first whole state. Synchronous. */
    int (*begin)(struct shore__drive *d, uint64_t epoch, uint64_t step, struct shore_diag *diag);
    /* Initial state: see shore_fleet_init_block. Synchronous. */
    int (*init)(struct shore__drive *d, uint32_t block, uint32_t segment, uint32_t count, const float *master,
                const float *m, const float *v, struct shore_diag *diag);

    int (*fetch)(struct shore__drive *d, const struct shore__drive_fetch *fetch, struct shore_completion done);
    /* update->groups is borrowed until the completion, like the other buffers. */
    int (*update)(struct shore__drive *d, const struct shore_update *update, struct shore_completion done);
    /* Initial state, before begin, on a new drive. */
    int (*store)(struct shore__drive *d, const struct shore_store *store, struct shore_completion done);
    /* Keeps these segments as they are, which counts as their update. Reads and writes nothing; which->state is
     * ignored. */
    int (*carry)(struct shore__drive *d, const struct shore_store *which, struct shore_completion done);
    /* Runs any other function of the drive: see function.h. *call is copied. */
    int (*call)(struct shore__drive *d, const struct shore__call *call, struct shore_completion done);
    /* Commits, after begin and after all updates submitted before it. No update may be submitted until it completes;
     * one that comes later fails. Unless SKIPPED, it fails if a segment was not updated or carried in the current
     * attempt, or failed. commit and its pointers are borrowed until the completion. */
    int (*commit)(struct shore__drive *d, const struct shore_commit *commit, struct shore_completion done);
    /* The blob of the loaded or committed step. blob: room for SHORE_BLOB_BYTES. Synchronous. */
    int (*blob)(struct shore__drive *d, void *blob, uint32_t *bytes, struct shore_diag *diag);
    /* 0, or -ENOTSUP and why it can neither carry segments nor hold a blob. NULL: it can. */
    int (*can_carry)(const struct shore__drive *d, struct shore_diag *diag);
    /* Drains; requests of older attempts are refused from now on. Synchronous. */
    void (*discard)(struct shore__drive *d, uint64_t attempt);

    /* Sum of the leaves of the committed slot modulo 2^128, little-endian; deep: reads every byte first.
     * Synchronous. */
    int (*leaf_sum)(struct shore__drive *d, bool deep, unsigned char sum[16], struct shore_diag *diag);
    /* Makes or removes a named copy of the committed state, next to the drive's own. The copy can be opened as a drive.
     * Durable on return. Synchronous. */
    int (*snapshot)(struct shore__drive *d, enum shore__snapshot_act act, const char *name, struct shore_diag *diag);
    void (*ledger)(const struct shore__drive *d, struct shore_ledger *add_to);
    int (*describe)(const struct shore__drive *d, char *text, size_t bytes);
    void (*close)(struct shore__drive *d);
    /* In a forked child, which does nothing else with the drive: closes the child's descriptors. Takes no lock, which a
     * thread of the parent may hold, and unlocks nothing. NULL: it has none. */
    void (*forked)(struct shore__drive *d);
};

/* The start of every drive's object. */
struct shore__drive {
    const struct shore__drive_ops *ops;
    const struct shore__volume_desc *desc; /* its segments, and its fleet */
    const char *path;                      /* for messages */
    uint64_t disk_bytes;
    struct shore__gate *gate;         /* for local drives; NULL: none */
    struct shore__recorder *recorder; /* of what it works on; NULL: none */
};

/* Configuration of any kind of drive. Its pointers outlive the drive. */
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
    uint32_t stage_segments; /* for joined fetches */
    bool on_device;          /* an OpenCL device computes UPDATE: opencl: */
    struct shore_arena *arena;
    void (*note)(void *ctx, const char *text); /* may be NULL */
    void *note_ctx;
};

/* Creates or opens a drive of the address's kind. The address outlives it. desc is copied. */
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

/* Bytes that a drive takes from the arena of its process. */
uint64_t shore__drive_memory_bytes(const struct shore__address *at, const struct shore__drive_config *config,
                                   const struct shore__volume_desc *desc);
uint64_t shore__ram_memory_bytes(const struct shore__drive_config *config, const struct shore__volume_desc *desc);
uint64_t shore__local_memory_bytes(const struct shore__drive_config *config, const struct shore__volume_desc *desc);

#endif
