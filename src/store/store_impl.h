/* What the files of this room share: a store and its entries. Everything is under the lock of the store. */
#ifndef SHORE_STORE_STORE_IMPL_H
#define SHORE_STORE_STORE_IMPL_H

#include <pthread.h>

#include "longshore/store.h"
#include "store/extents.h"

/* As the picture in longshore/store.h has them. */
enum entry_state { ENTRY_FILLING, ENTRY_WAITING, ENTRY_WRITING, ENTRY_STORED, ENTRY_AWAY, ENTRY_READING };

struct entry {
    struct shore_activation_store *store;
    uint64_t key, bytes; /* bytes: whole pages */
    enum entry_state state;
    uint32_t taken, uses;   /* and not dropped; and not released */
    bool came_back, asked;  /* of the drives; for since it was put, or came back */
    unsigned char *memory;  /* of the pool; NULL: it is away, or passes beside the pool */
    uint64_t at;            /* in scratch */
    int rc;                 /* of its last read */
    struct shore_diag *why; /* the same; NULL: nothing was said */
    unsigned char seals[];  /* of its parts in scratch */
};

/* From one shore_store_begin() that finds nothing in the store to the next. */
struct store_round {
    uint64_t began_ns;                           /* 0: none has */
    uint64_t waited_ns, taken_bytes, full_bytes; /* of the counts, then */
    uint64_t allowed_bytes;                      /* of this one */
    uint64_t enough_bytes;                       /* drives kept up with so much, until they last did not */
    uint64_t added;                              /* by what was changed last; 0: that was not to try more */
    bool changed;                                /* what is measured of it is of the one before, too */
    uint32_t rest, pause;                        /* rounds to go until more is tried; how many they were */
};

struct shore_activation_store {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct shore_fleet *fleet; /* NULL: it went */
    struct entry **entry;      /* by key */
    size_t nentries, capacity;
    struct shore__extents pool, scratch; /* those of the pool are addresses */
    size_t nranges;                      /* that the pool was made of */
    void *memory;                        /* of the system */
    uint64_t memory_bytes, step;
    uint32_t waiting, writing, writes_most;
    uint32_t under_way; /* requests */
    bool pauses;        /* nothing is written: what is asked for goes first */
    int failed;         /* what a write has failed with since the last settle */
    struct shore_diag why;
    bool adapts;
    struct store_round round;
    struct shore_store_counts counts; /* but for what is so now */
};

/* ---- store_entries.c ---- */

void shore__entry_enter(struct entry *e, enum entry_state state);
/* Where the key is, or would be; the entry, or NULL; a new one that is being filled, with room in scratch: its answer
 * is 0 or SHORE_STORE_FULL. */
size_t shore__store_index(const struct shore_activation_store *s, uint64_t key);
struct entry *shore__store_find(const struct shore_activation_store *s, uint64_t key);
int shore__store_add(struct shore_activation_store *s, uint64_t key, uint64_t bytes, struct entry **out);
/* Memory of the pool for the entry, if need be of another that is stored and not used: of any; or, to read ahead, of
 * one that is needed later. false: there is none. */
bool shore__entry_give_memory(struct entry *e, bool any);
void shore__entry_take_memory(struct entry *e);
/* It is gone if it was dropped, nobody uses it and no request is under way; or whatever it is. */
void shore__entry_leave(struct entry *e);
void shore__entry_free(struct entry *e);

/* ---- store_round.c ---- */

void shore__round_open(struct store_round *r);
/* A round has ended. What went of what was asked for; shares of its time in which it waited for scratch, and for drives
 * in all. */
void shore__round_weigh(struct store_round *r, uint64_t went, uint64_t asked, double for_scratch, double for_drives);
void shore__round_begin(struct shore_activation_store *s, uint64_t waited_elsewhere_ns);
bool shore__round_allows(const struct shore_activation_store *s, uint64_t bytes);

/* ---- store_requests.c ---- */

/* Waits for a change, adding to the nanoseconds. */
void shore__store_wait(struct shore_activation_store *s, uint64_t *waited_ns);
/* Begins what waits to be written. The lock is released meanwhile. */
void shore__store_write_some(struct shore_activation_store *s);
/* Begins to read it into its memory. The lock is released meanwhile. */
void shore__entry_read(struct entry *e);
/* Between scratch and memory of the caller's, to the end. The lock is released meanwhile. */
int shore__entry_pass(struct entry *e, bool put, void *memory, struct shore_diag *diag);

#endif
