/* A fleet as its files share it. */
#ifndef SHORE_DRIVE_FLEET_FLEET_H
#define SHORE_DRIVE_FLEET_FLEET_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/busy.h"
#include "drive/address.h"
#include "drive/counters.h"
#include "drive/drive.h"
#include "drive/fleet/stripes.h"
#include "drive/placement.h"

struct shore__join;

struct shore_fleet {
    struct shore_layout *layout;
    struct shore__drive_config config;
    struct shore__addresses at; /* the drives' addresses, as given */
    uint32_t ndrives;
    uint32_t own_first, own_count;    /* the drives of this process: all, unless it is a part */
    struct shore__drive **drives;     /* by place in the fleet; NULL while opening */
    struct shore__range *ranges;      /* see placement.h */
    struct shore__busy *busy;         /* by drive: it has requests to work on */
    struct shore__gate *gate;         /* or NULL */
    struct shore__recorder *recorder; /* or NULL */
    uint64_t fleet_id[2];
    uint64_t generation;
    uint64_t first_epoch; /* the one that sealing writes */
    uint64_t scratch_bytes;
    struct shore__stripes stripes; /* of scratch */
    bool keeps_data;
    bool has_remote;                    /* some drives are on other hosts, or behind sockets */
    bool is_part;                       /* other processes have the other drives: see peer.h */
    bool made;                          /* it was created, not opened */
    bool united;                        /* all drives are known */
    struct shore_fleet_options opening; /* how it is opened; what its pointers name is gone, but for elsewhere_ctx */

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t idle;
    uint64_t joins; /* requests under way, which closing waits for */
    bool ready;     /* sealed or opened */
    bool begun;     /* opening has written a new epoch to a drive */
    uint64_t step, epoch, attempt;
    uint64_t outstanding; /* updates with base == step that have not completed */
    int attempt_rc;       /* first error of an update in this attempt */
    struct shore_diag attempt_diag;
    int broken_rc; /* a commit failed on some drive: the fleet must be opened again */
    struct shore_diag broken_diag;
    struct shore__join *commit;             /* pending */
    const struct shore_commit *commit_each; /* of it, by drive; NULL: the first own drive has the blob */
    bool commit_sent;
    uint64_t commit_start_ns;
    bool unconfirmed;                     /* a part has committed the step; other parts may not have */
    struct shore__join *held, *held_tail; /* updates that wait for their base to be committed */
    uint64_t nheld;
    unsigned char metrics[SHORE__METRICS_BYTES]; /* of the committed step */
    uint32_t metrics_bytes;
    /* a part's, for shore_fleet_await(): */
    pthread_cond_t wrote;
    uint64_t round;       /* of an attempt at a step */
    uint64_t *written;    /* by segment of the layout: the round in which it was */
    uint32_t *written_of; /* by block: its first one there */

    atomic_uint_fast64_t counters[SHORE__COUNTERS]; /* of its ledger, beside those of the drives */
    struct shore__wait_watch *_Atomic wait_watch;   /* or NULL */
};

/* Memory for the ring of a drive that is not short of it. */
#define SHORE__RING_BYTES (UINT64_C(8) << 20)
/* fleet_memory.c: how drives are opened; least: with the least memory that works. */
struct shore__drive_config shore__fleet_config(const struct shore_layout *layout,
                                               const struct shore_fleet_options *options, bool least);
/* A fleet without drives, from a caller's options, which are checked and copied to *known. */
int shore__fleet_new(const struct shore_layout *layout, const struct shore_fleet_options *options,
                     struct shore_fleet_options *known, struct shore_fleet **out, struct shore_diag *diag);
/* What is missing in an update that would otherwise commit every step without a change. NULL: nothing. */
const char *shore__update_left_out(const struct shore_fleet *f, const struct shore_update *update);
/* shore_fleet_disk_bytes(); whole: as if volumes had no holes, because some drives of these options have none. */
uint64_t shore__fleet_disk_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options,
                                 bool whole);
bool shore__fleet_takes_whole(const struct shore_fleet_options *options);
/* shore_fleet_commit_with() with a blob for each drive: each: by drive, the same but for the blobs; borrowed until the
 * completion. No update is under way. */
int shore__fleet_commit_each(struct shore_fleet *f, const struct shore_commit *each, struct shore_completion done);
/* Sums over all drives: see drive.h. NULL: nothing. */
void shore__fleet_forked(struct shore_fleet *f);
/* Called once all own drives are there. */
int shore__fleet_set_scratch(struct shore_fleet *f, struct shore_diag *diag);

/* fleet_open.c: puts a drive in its place, or says why it has none in this fleet. i: its number among those given. */
int shore__fleet_place(struct shore_fleet *f, const struct shore_fleet_options *o, struct shore__drive *drive,
                       uint32_t i, struct shore_diag *diag);
/* Called once all drives are known: matches them with the layout, and makes an opened fleet ready. */
int shore__fleet_go_on(struct shore_fleet *f, struct shore_diag *diag);

/* fleet_await.c: follows which segments are written. The others are called with the lock held. */
int shore__fleet_follow_writes(struct shore_fleet *f);
void shore__fleet_unfollow_writes(struct shore_fleet *f);
void shore__fleet_wrote(struct shore_fleet *f, const struct shore_update *update);
void shore__fleet_next_round(struct shore_fleet *f); /* with a step, or an attempt at it */

/* fleet_commit.c: updates that wait for the other parts end with SHORE_EDISCARDED. */
void shore__fleet_discard_held(struct shore_fleet *f);

/* fleet_call.c: shore_fleet_scratch_put() and _get() with a seal of 16 bytes per part. Each part is on one drive, so
 * the seals tell which drive returned other bytes. seals: borrowed until the completion. */
uint32_t shore__fleet_scratch_parts(const struct shore_fleet *f, uint64_t offset, uint64_t bytes);
int shore__fleet_scratch(struct shore_fleet *f, bool put, uint64_t offset, uint64_t bytes, void *buffer,
                         unsigned char *seals, struct shore_completion done);

/* Decides from the records of all drives (drives[] in place order) which step to continue from, and which epoch to
 * write. */
struct shore__fleet_state {
    uint64_t step, epoch; /* epoch: the largest found */
    bool verify;          /* an older step was accepted instead of a damaged one: read every byte first */
    bool gives_up;        /* gives up a committed step whose records are whole, only if its bytes are not */
    uint64_t given_up;    /* that step */
    bool step_before;     /* may still be whole in the other slots */
    unsigned char metrics[SHORE__METRICS_BYTES];
    uint32_t metrics_bytes;
};
int shore__fleet_recover(struct shore__drive *const *drives, uint32_t ndrives,
                         const struct shore_fleet_options *options, struct shore__fleet_state *out,
                         struct shore_diag *diag);

#endif
