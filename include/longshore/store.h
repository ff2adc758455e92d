/* A store of activations: what forward leaves for backward goes through a pool of bounded memory to the scratch of a
 * fleet, and comes back before it is asked for. Everything has a key of the caller's, and a greater key is needed
 * sooner: what has the least is written first. Memory is taken first from what was had already, then from what forward
 * left, the least key first, and last from what was read ahead.
 *
 *     shore_store_open(fleet, &options, &store, &diag)
 *     each step:
 *       shore_store_begin(store, step, 0)
 *       forward:   shore_store_take() ... fill the memory ... shore_store_put() ... compute ... shore_store_release()
 *       backward:  shore_store_get() ... shore_store_want() of the next ones ... compute ... shore_store_release()
 *                  shore_store_drop()
 *       however the step ended: shore_store_drop_all()
 *
 * States of an entry:
 *
 *              take            put            its turn           written            its memory is taken
 *     unknown ──────► FILLING ─────► WAITING ──────────► WRITING ─────────► STORED ─────────────────────► AWAY
 *        ▲                              ▲                   │                 ▲ ▲                          │ │
 *        │                              └── it failed ──────┘       was read ─┘ └──────── READING ◄────────┘ │
 *        └── drop, of any: once no request is under way, and nobody uses it            want, get └─ failed ──┘
 *
 * shore_store_write() leads from FILLING to AWAY at once.
 *
 * From WAITING to STORED its memory holds it, and get gives that, written or not: what is asked for soon enough never
 * comes back from a drive. Memory that is used, from take or get to release, stays where and as it is. Once something
 * is asked for, no write begins until the next take: backward reads.
 *
 * Room that is used up is an answer, SHORE_STORE_FULL, and no error: the caller keeps that in memory, or computes it
 * again. Bytes of a store are never durable.
 *
 * Threading: any, of all functions but open and close. Requests are begun by whoever calls; completions run on threads
 * of the fleet.
 */
#ifndef LONGSHORE_STORE_H
#define LONGSHORE_STORE_H

#include "longshore/state.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shore_activation_store;

/* What take, want, get and write answer instead of 0. */
enum shore_store_answer {
    SHORE_STORE_KNOWN = 1, /* take: the key is there, and counts once more; nothing is to be filled */
    SHORE_STORE_FULL = 2   /* the pool or scratch has no room, or the drives do not keep up */
};

/* A part of the pool that the caller brings. */
struct shore_store_memory {
    void *at; /* aligned to SHORE_BUFFER_ALIGN_BYTES */
    uint64_t bytes;
};

/* Zero-initialise; every zero but that of size is the default. */
struct shore_store_options {
    size_t size;                           /* sizeof(struct shore_store_options) */
    uint64_t pool_bytes;                   /* of memory that the store takes from the system */
    const struct shore_store_memory *pool; /* or that is there already: an entry lies in one of these */
    uint32_t npool;
    uint64_t scratch_offset, scratch_bytes; /* of the fleet's scratch: what is the store's, in multiples of 4096 */
    bool adapts;     /* what the drives do not keep up with is SHORE_STORE_FULL: see shore_store_begin() */
    uint32_t writes; /* under way together; 0: 4 */
};

/* Opens a store with nothing in it. Ownership: the store is the caller's, for shore_store_close(); the fleet and memory
 * that is given are borrowed until then (the fleet until shore_store_end()), options during the call. Errors: -EINVAL
 * (options.size; memory or scratch that is not aligned, or beyond the fleet's), SHORE_EBUDGET, -ENOMEM. */
int shore_store_open(struct shore_fleet *fleet, const struct shore_store_options *options,
                     struct shore_activation_store **out, struct shore_diag *diag);

/* The fleet goes: waits for what is under way, and begins nothing any more. What is in memory can still be had. */
void shore_store_end(struct shore_activation_store *store);
/* Ends it, and gives everything back. Ownership: nobody uses memory of it. NULL is allowed. */
void shore_store_close(struct shore_activation_store *store);

/* A step begins, which messages name. If nothing is in the store, a round ends, and another one begins: what was waited
 * for in it, in the store and (waited_elsewhere_ns) for drives otherwise, says how much may go in this one, if the
 * store adapts. */
void shore_store_begin(struct shore_activation_store *store, uint64_t step, uint64_t waited_elsewhere_ns);

/* Memory for a new entry, to be filled. wait: for writes, where the pool is full; otherwise that is SHORE_STORE_FULL.
 * A key that is there already is stored once and counts: it has to be dropped as often as it was taken. Units: bytes
 * are rounded up to SHORE_BUFFER_ALIGN_BYTES. Ownership: *memory is the caller's until shore_store_release(). Errors:
 * -EINVAL (bytes; the key is being filled), what a write has failed with since the last shore_store_settle(),
 * SHORE_EMISSING (the fleet went), -ENOMEM. */
int shore_store_take(struct shore_activation_store *store, uint64_t key, uint64_t bytes, bool wait, void **memory,
                     struct shore_diag *diag);

/* It is filled, and is written when its turn comes. Errors: -ENOENT (no such key), -EINVAL (not being filled). */
int shore_store_put(struct shore_activation_store *store, uint64_t key, struct shore_diag *diag);

/* Begins to read it back, where that takes no memory of what is needed sooner. What it fails with, get says. Errors:
 * -ENOENT, -EINVAL (being filled). */
int shore_store_want(struct shore_activation_store *store, uint64_t key, struct shore_diag *diag);

/* Where it is, for reading; waits until it is there. SHORE_STORE_FULL: all memory is used, see shore_store_read().
 * Ownership: *memory stays as it is until it was released as often. Errors: -ENOENT, -EINVAL (being filled), those of
 * shore_fleet_scratch_get(), SHORE_EMISSING (it went with the fleet). */
int shore_store_get(struct shore_activation_store *store, uint64_t key, void **memory, struct shore_diag *diag);

/* Errors: -ENOENT, -EINVAL (nobody uses it). */
int shore_store_release(struct shore_activation_store *store, uint64_t key, struct shore_diag *diag);

/* Its memory and scratch are given back once it is dropped as often as it was taken, and released. Waits for nothing.
 * Errors: -ENOENT. */
int shore_store_drop(struct shore_activation_store *store, uint64_t key, struct shore_diag *diag);

/* From memory of the caller's to scratch, beside the pool; waits. The key is new. Errors: -EINVAL (bytes; the key is
 * there), those of shore_store_take() and of shore_fleet_scratch_put(). */
int shore_store_write(struct shore_activation_store *store, uint64_t key, const void *src, uint64_t bytes,
                      struct shore_diag *diag);
/* A copy into memory of the caller's, which has whole pages and is aligned as the pool is; waits. Errors: as of
 * shore_store_get(). */
int shore_store_read(struct shore_activation_store *store, uint64_t key, void *dst, struct shore_diag *diag);

/* Waits for what is under way. From here on, a write that failed is tried again. Errors: what one has failed with. */
int shore_store_settle(struct shore_activation_store *store, struct shore_diag *diag);
/* The same, and drops everything, used or not: a step has ended, or was broken off. Errors: as of settle. */
int shore_store_drop_all(struct shore_activation_store *store, struct shore_diag *diag);

struct shore_store_counts {
    size_t size;                                           /* set by the caller: sizeof(struct shore_store_counts) */
    uint64_t entries;                                      /* now */
    uint64_t pool_bytes, pool_used_bytes, pool_most_bytes; /* all of it, now, and the most since open */
    uint64_t scratch_bytes, scratch_used_bytes;
    /* since open */
    uint64_t taken_bytes, full_bytes;       /* taken, and answered with SHORE_STORE_FULL by take */
    uint64_t written_bytes, read_bytes;     /* by the drives */
    uint64_t forwarded_bytes;               /* given by get before they had ever left memory */
    uint64_t waited_take_ns, waited_get_ns; /* of callers, read and write among the latter */
};
/* Errors: -EINVAL (out->size). */
int shore_store_count(struct shore_activation_store *store, struct shore_store_counts *out);

#ifdef __cplusplus
}
#endif

#endif
