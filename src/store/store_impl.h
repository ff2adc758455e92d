/* Store and entries, as the files of this room share them. The store's lock guards everything. */
#ifndef SHORE_STORE_STORE_IMPL_H
#define SHORE_STORE_STORE_IMPL_H

#include <pthread.h>

#include "base/events.h"
#include "base/units.h"
#include "drive/counters.h"
#include "longshore/store.h"
#include "store/extents.h"

/* States, as in the picture in longshore/store.h. */
enum entry_state { ENTRY_FILLING, ENTRY_WAITING, ENTRY_WRITING, ENTRY_STORED, ENTRY_AWAY, ENTRY_READING };

struct entry {
    struct shore_activation_store *store;
    uint64_t key, bytes; /* bytes: rounded up to whole pages */
    enum entry_state state;
    uint32_t taken, uses;      /* takes without a drop; uses without a release */
    uint32_t late;             /* events that are to pass before it may move: see struct late */
    struct shore_event filled; /* after which the device has filled it, where that is late */
    bool put;                  /* filled by now, or once its event has passed */
    bool came_back, asked;     /* from the drives; requested since it was put or came back */
    unsigned char *memory;     /* in the pool; NULL: it is away, or passes beside the pool */
    bool has_scratch;          /* otherwise it stays in the pool to its end, in a store that keeps */
    uint64_t at;               /* offset in scratch */
    int rc;                    /* result of its last read, or of the device that should have filled it */
    struct shore_diag *why;    /* why that failed; NULL: no reason was given */
    unsigned char seals[];     /* seals of its parts in scratch */
};

/* What takes effect once an event has passed: a put, or the end of a use. */
struct late {
    struct shore_event until; /* first, as a fifo asks */
    struct entry *entry;
    bool puts;
};

/* A round of the store: from a shore_store_begin() that finds it empty to the next. */
struct store_round {
    uint64_t began_ns;                           /* 0: no round has begun */
    uint64_t waited_ns, taken_bytes, full_bytes; /* counts when the round began */
    uint64_t waits_ns;                           /* of the fleet, for whatever, when the round began */
    uint64_t allowed_bytes;                      /* what this round may store */
    uint64_t enough_bytes;                       /* what the drives last kept up with, before they failed to */
    uint64_t added;                              /* bytes that the last change added; 0: it did not raise the limit */
    bool changed;         /* the limit just changed, so the next figures still reflect the old one */
    uint32_t rest, pause; /* rounds until more is tried; the length of that pause */
};

struct shore_activation_store {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct shore_fleet *fleet; /* NULL: it is closed */
    struct entry **entry;      /* by key */
    size_t nentries, capacity;
    struct shore__extents pool, scratch; /* addresses, in the pool */
    size_t nranges;                      /* ranges that the pool was made of */
    void *memory;                        /* from the system */
    uint64_t memory_bytes, step;
    uint32_t waiting, writing, writes_most;
    uint32_t under_way;  /* requests */
    bool pauses;         /* nothing is written, so that reads go first */
    bool keeps, presses; /* nothing is written that the pool has room for; somebody waits for room */
    int failed;          /* first failure of a write since the last settle */
    struct shore_diag why;
    struct shore_device *device;
    struct shore__fifo late; /* in the order in which they are waited for */
    bool adapts;
    struct store_round round;
    struct shore_store_counts counts; /* except those computed when asked for */
};

/* ---- store_entries.c ---- */

void shore__entry_enter(struct entry *e, enum entry_state state);
/* shore__store_index(): where the key is, or would be. shore__store_find(): the entry, or NULL. shore__store_add(): a
 * new entry that is being filled, with room in scratch; returns 0 or SHORE_STORE_FULL. */
size_t shore__store_index(const struct shore_activation_store *s, uint64_t key);
struct entry *shore__store_find(const struct shore_activation_store *s, uint64_t key);
int shore__store_add(struct shore_activation_store *s, uint64_t key, uint64_t bytes, struct entry **out);
/* Gives the entry memory of the pool, and evicts a stored and unused entry if necessary. any: any entry; otherwise, for
 * a prefetch, one that is needed later. false: there is no memory. */
bool shore__entry_give_memory(struct entry *e, bool any);
void shore__entry_take_memory(struct entry *e);
/* shore__entry_leave(): frees the entry if it was dropped, has no user and no request. shore__entry_free(): frees it in
 * any case. */
void shore__entry_leave(struct entry *e);
void shore__entry_free(struct entry *e);

/* ---- late.c ---- */

/* Adds what takes effect after an event, or does it now if that has passed. Releases the lock meanwhile, as all of
 * these do. Errors: -ENOMEM. */
int shore__late_add(struct entry *e, struct shore_event until, bool puts);
/* Ends what has passed. */
void shore__late_look(struct shore_activation_store *s);
/* Waits for the first one, and ends it. There is one. */
void shore__late_wait(struct shore_activation_store *s);

/* ---- store_round.c ---- */

void shore__round_open(struct store_round *r);
/* Weighs a round that has ended: bytes stored of the bytes asked for, and the shares of its time spent waiting for
 * scratch and for all drives. */
void shore__round_weigh(struct store_round *r, uint64_t went, uint64_t asked, double for_scratch, double for_drives);
void shore__round_begin(struct shore_activation_store *s);
bool shore__round_allows(const struct shore_activation_store *s, uint64_t bytes);

/* ---- store_requests.c ---- */

/* Notes why the entry cannot be had. diag may be NULL. */
void shore__entry_failed(struct entry *e, int rc, const struct shore_diag *diag);
/* Waits for a change, and adds the nanoseconds. */
void shore__store_wait(struct shore_activation_store *s, uint64_t *waited_ns);
/* Starts writing the entries that wait. Releases the lock meanwhile. */
void shore__store_write_some(struct shore_activation_store *s);
/* Starts reading the entry into its memory. Releases the lock meanwhile. */
void shore__entry_read(struct entry *e);
/* Moves an entry between scratch and the caller's memory, and waits. Releases the lock meanwhile. */
int shore__entry_pass(struct entry *e, bool put, void *memory, struct shore_diag *diag);

#endif
