/* The drive interface: what storage with functions beside it does for a fleet.
 *
 * Kinds: "local" (a file or device, worked on by threads of this process), "ram", "null". Remote drives come next and
 * fit the same table. A drive sees only its own extents; the fleet splits requests. Submit rule as in state.h.
 * Threading: submits come from one thread at a time; completions run on threads of the drive.
 */
#ifndef SHORE_DRIVE_DRIVE_H
#define SHORE_DRIVE_DRIVE_H

#include "storage/volume.h"

struct shore__drive;

enum shore__drive_caps {
    SHORE__DRIVE_DURABLE = 1,
    SHORE__DRIVE_KEEPS_DATA = 2, /* null does not */
};

struct shore__drive_fetch {
    unsigned slot_offset; /* 0: the committed step; 1: the step being written */
    uint32_t block, segment, count;
    enum shore_fetch_kind kind;
    void *dst;
};

struct shore__drive_recovery {
    uint64_t epoch;
    struct shore__record record; /* newest valid */
    struct shore__record older;
    bool older_valid, damaged_record;
    struct shore_diag damage;
};

struct shore__drive_ops {
    uint32_t version; /* SHORE__DRIVE_VERSION */
    const char *name;
    unsigned caps;

    void (*recovery)(const struct shore__drive *d, struct shore__drive_recovery *out);
    /* Makes (epoch, step, its slot) durable and loads that slot's table. Synchronous. */
    int (*begin)(struct shore__drive *d, uint64_t epoch, uint64_t step, struct shore_diag *diag);
    /* Initial state: see shore_fleet_init_block. Synchronous. */
    int (*init)(struct shore__drive *d, uint32_t block, uint32_t segment, uint32_t count, const float *master,
                const float *m, const float *v, struct shore_diag *diag);

    int (*fetch)(struct shore__drive *d, const struct shore__drive_fetch *fetch, struct shore_completion done);
    int (*update)(struct shore__drive *d, const struct shore_update *update, struct shore_completion done);
    int (*spill)(struct shore__drive *d, uint32_t block, uint32_t segment, uint32_t count, const float *gradient,
                 struct shore_completion done);
    int (*scratch)(struct shore__drive *d, bool put, uint64_t offset, uint64_t bytes, void *buffer,
                   unsigned char seal[16], struct shore_completion done);
    /* After all updates that were submitted before it. */
    int (*commit)(struct shore__drive *d, uint64_t step, bool skip, const void *metrics, uint32_t metrics_bytes,
                  struct shore_completion done);
    /* Drains; requests of older attempts are refused from now on. Synchronous. */
    void (*discard)(struct shore__drive *d, uint64_t attempt);

    /* Sum of the leaves of the committed slot modulo 2^128, little-endian; deep: after reading every byte. */
    int (*leaf_sum)(struct shore__drive *d, bool deep, unsigned char sum[16], struct shore_diag *diag);
    void (*ledger)(const struct shore__drive *d, struct shore_ledger *add_to);
    const char *(*path)(const struct shore__drive *d);
    int (*describe)(const struct shore__drive *d, char *text, size_t bytes);
    uint64_t (*disk_bytes)(const struct shore__drive *d);
    void (*close)(struct shore__drive *d);
};

#define SHORE__DRIVE_VERSION 1

/* Every drive's object begins with this. */
struct shore__drive {
    const struct shore__drive_ops *ops;
};

#endif
