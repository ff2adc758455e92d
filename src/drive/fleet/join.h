/* Requests of a fleet: split by drive, and joined again. */
#ifndef SHORE_DRIVE_FLEET_JOIN_H
#define SHORE_DRIVE_FLEET_JOIN_H

#include "drive/fleet/fleet.h"

enum shore__join_kind {
    SHORE__JOIN_FETCH,
    SHORE__JOIN_UPDATE,
    SHORE__JOIN_STORE,
    SHORE__JOIN_CARRY,
    SHORE__JOIN_INITIAL,
    SHORE__JOIN_SPILL,
    SHORE__JOIN_PUT,
    SHORE__JOIN_GET,
    SHORE__JOIN_CALL,
    SHORE__JOIN_COMMIT
};

/* One drive's share of a request. */
struct shore__share {
    struct shore__join *join;
    struct shore__busy *busy; /* the drive is */
};

/* A request of the caller: its shares on the drives, and their result. */
struct shore__join {
    struct shore__join *next; /* in the queue of held requests */
    struct shore_fleet *fleet;
    enum shore__join_kind kind;
    struct shore_completion done;
    /* Runs after the last share instead of the completion, and calls it. NULL: only the completion runs. */
    void (*ended)(struct shore__join *join);
    atomic_uint left;
    atomic_bool failed; /* whoever sets it writes rc and diag */
    int rc;
    struct shore_diag diag;
    /* groups and gather list point into tail; for a store: what both have in common; for a fetch: its step */
    struct shore_update update;
    const unsigned char *state;
    struct shore_commit commit, elsewhere; /* for the first drive, and for the others; they point into tail */
    unsigned char *seals; /* of scratch: filled by a put, compared by a get; each: one per part instead of their sum */
    bool seals_each;
    uint64_t scratch_at, scratch_bytes;
    uint32_t nparts;
    struct shore__share *share; /* by drive; behind the tail */
    unsigned char tail[];       /* groups and gather list of an update, a seal per part, or metrics and blob */
};

/* A request with the submitter's own share, which ends with shore__join_share_done(). tail_bytes: of the tail. */
struct shore__join *shore__join_new(struct shore_fleet *f, enum shore__join_kind kind, size_t tail_bytes,
                                    struct shore_completion done);
/* For a request that was not sent. */
void shore__join_free(struct shore__join *join);

/* Drive d's share: its completion, to pass to the drive; and the call if the drive refused it. */
struct shore_completion shore__share_completion(struct shore__join *join, uint32_t d);
void shore__share_refused(struct shore__join *join, uint32_t d, int rc);
/* Ends one share. After the last one, the caller's completion runs. */
void shore__join_share_done(struct shore__join *join, int rc, const struct shore_diag *diag);
/* Calls that completion. */
void shore__join_complete(struct shore__join *join);

/* The intersection of drive d's range and [segment, segment + count). */
bool shore__fleet_intersect(const struct shore_fleet *f, uint32_t block, uint32_t d, uint32_t segment, uint32_t count,
                            struct shore__range *out);
/* fleet_check.c */
int shore__fleet_check_range(const struct shore_fleet *f, uint32_t block, uint32_t segment, uint32_t count);
bool shore__fleet_is_ready(struct shore_fleet *f);
bool shore__fleet_is_new(struct shore_fleet *f); /* it takes initial state */

/* fleet_call.c: sends a call as drive d's share, and counts what crosses the link. *call is copied. */
struct shore__call;
void shore__join_call(struct shore__join *join, uint32_t d, const struct shore__call *call);
/* Runs a function of drive d alone. *call is copied. */
int shore__fleet_call(struct shore_fleet *f, uint32_t d, const struct shore__call *call, struct shore_completion done);

/* Refuses a request through its completion, which can carry a sentence. Returns 0. */
int shore__join_refuse(struct shore_completion done, int rc, const struct shore_diag *why);

/* Part i of a put to or get from scratch: its drive, and its place there. */
struct shore__scratch_part {
    uint64_t at, bytes, local;
    uint32_t drive;
};
struct shore__scratch_part shore__join_scratch_part(const struct shore__join *join, uint32_t i);

/* fleet_send.c: sends an update, a store or a carry to its drives. */
void shore__fleet_send_update(struct shore__join *join);

/* fleet_commit.c: ends each update that was counted as outstanding. */
void shore__fleet_update_ended(struct shore__join *join);

#endif
