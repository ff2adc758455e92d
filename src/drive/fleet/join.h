/* Requests of a fleet: split by drive, joined again. */
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
    SHORE__JOIN_COMMIT
};

/* The share of one drive in a request. */
struct shore__share {
    struct shore__join *join;
    struct shore__meter *meter;
};

/* One request of the caller: its shares on the drives, and what they come to. */
struct shore__join {
    struct shore__join *next; /* held */
    struct shore_fleet *fleet;
    enum shore__join_kind kind;
    struct shore_completion done;
    /* Runs after the last share, in place of the completion, which it calls in its turn. NULL: the completion alone. */
    void (*ended)(struct shore__join *join);
    atomic_uint left;
    atomic_bool failed; /* who sets it writes rc and diag */
    int rc;
    struct shore_diag diag;
    /* groups and gather list point into tail; of a store: what both have in common; of a fetch: its step */
    struct shore_update update;
    const unsigned char *state;
    struct shore_commit commit, elsewhere; /* as the first drive and the others get it; they point into tail */
    unsigned char *seals; /* of scratch: what a put fills and a get compares; each: one a part, not the sum of all */
    bool seals_each;
    uint64_t scratch_at, scratch_bytes;
    uint32_t nparts;
    struct shore__share *share; /* by drive; behind the tail */
    unsigned char tail[];       /* groups and gather list of an update, a seal for each part, or metrics and blob */
};

/* A request with the submitter's own share, which shore__join_share_done() gives back. tail_bytes: of the tail. */
struct shore__join *shore__join_new(struct shore_fleet *f, enum shore__join_kind kind, size_t tail_bytes,
                                    struct shore_completion done);
/* Of one that was not sent. */
void shore__join_free(struct shore__join *join);

/* Drive d's share: its completion, to be passed to the drive; and what is called instead where it was refused. */
struct shore_completion shore__share_completion(struct shore__join *join, uint32_t d);
void shore__share_refused(struct shore__join *join, uint32_t d, int rc);
/* One share is done: after the last one, the caller's completion runs. */
void shore__join_share_done(struct shore__join *join, int rc, const struct shore_diag *diag);
/* Calls that completion. */
void shore__join_complete(struct shore__join *join);

/* The common part of drive d's range and [segment, segment + count). */
bool shore__fleet_intersect(const struct shore_fleet *f, uint32_t block, uint32_t d, uint32_t segment, uint32_t count,
                            struct shore__range *out);
/* fleet_check.c */
int shore__fleet_check_range(const struct shore_fleet *f, uint32_t block, uint32_t segment, uint32_t count);
bool shore__fleet_is_ready(struct shore_fleet *f);

/* Refuses a request by its completion, which has words, as a code has not. Returns 0. */
int shore__join_refuse(struct shore_completion done, int rc, const struct shore_diag *why);

/* Part i of what is put to scratch or got: which drive has it, and where. */
struct shore__scratch_part {
    uint64_t at, bytes, local;
    uint32_t drive;
};
struct shore__scratch_part shore__join_scratch_part(const struct shore__join *join, uint32_t i);

/* fleet_send.c: an update, a store or what is carried goes to its drives. */
void shore__fleet_send_update(struct shore__join *join);

/* fleet_commit.c: how each update ends that was counted as outstanding. */
void shore__fleet_update_ended(struct shore__join *join);

#endif
