/* A store of activations: what forward leaves for backward goes through a pool of bounded memory to the scratch of a
 * fleet, and comes back before it is needed. Each entry has a key from the caller. A greater key is needed sooner, so
 * the entry with the least key is written first. Memory is taken first from entries that were used already, then from
 * entries that forward left, the least key first, and last from entries that were prefetched.
 *
 *     shore_store_open(fleet, &options, &store, &diag)
 *     each step:
 *       shore_store_begin(store, step)
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
 * On a device: copies to and from memory of the store run late. shore_store_put_after() and shore_store_release_after()
 * take effect once the event behind the copy has passed. Each call looks, and waits if what it asks for needs it; a
 * watch of the device can wait meanwhile (shore_device_watch()). The store holds no lock while it looks or waits.
 *
 * From WAITING to STORED an entry is in memory, and get gives that memory, written or not: an entry that is asked for
 * soon enough is never read back. Memory in use, from take or get to release, stays where and as it is. After a get or
 * want, no write begins until the next take, because backward reads.
 *
 * A full store is an answer, SHORE_STORE_FULL, and no error: the caller keeps the activation in memory, or computes it
 * again. Bytes of a store are never durable.
 *
 * Threading: any, for all functions but open and close. Requests begin on the caller's thread; completions run on
 * threads of the fleet.
 */
#ifndef LONGSHORE_STORE_H
#define LONGSHORE_STORE_H

#include "longshore/device.h"
#include "longshore/state.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shore_activation_store;

/* Answers of take, want, get and write, instead of 0. */
enum shore_store_answer {
    SHORE_STORE_KNOWN = 1, /* take: the key exists and counts once more; there is nothing to fill */
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
    uint64_t pool_bytes;                   /* memory that the store takes from the system */
    const struct shore_store_memory *pool; /* or memory of the caller's: an entry lies in one of these */
    uint32_t npool;
    uint64_t scratch_offset, scratch_bytes; /* the store's part of the fleet's scratch, in multiples of 4096 */
    bool adapts;     /* entries that the drives do not keep up with are SHORE_STORE_FULL: see shore_store_begin() */
    bool keeps;      /* entries are written only where the pool is short of room, and stay there if scratch has none */
    uint32_t writes; /* under way together; 0: 4 */
    struct shore_device *device; /* that copies to and from entries; NULL: none */
};

/* Opens an empty store. Ownership: the store is the caller's, for shore_store_close(); the fleet, the device and given
 * memory are borrowed until then (the fleet until shore_store_end()), options during the call. Errors: -EINVAL
 * (options.size; memory or scratch that is not aligned, or beyond the fleet's), SHORE_EBUDGET, -ENOMEM. */
int shore_store_open(struct shore_fleet *fleet, const struct shore_store_options *options,
                     struct shore_activation_store **out, struct shore_diag *diag);

/* Call it before the fleet goes: waits for everything under way, and begins nothing new. Entries in memory can still be
 * got. */
void shore_store_end(struct shore_activation_store *store);
/* Closes the store and releases everything. Ownership: nobody uses its memory. NULL is allowed. */
void shore_store_close(struct shore_activation_store *store);

/* Begins a step; messages name it. If the store is empty, a round ends and the next one begins. If the store adapts,
 * the time that callers waited for the fleet in the last round, in the store or elsewhere (waited_ns of struct
 * shore_ledger), decides how much the next round may store. */
void shore_store_begin(struct shore_activation_store *store, uint64_t step);

/* Counts nanoseconds for which a device stood because of copies of entries: a store that adapts takes them for time
 * that callers waited. */
void shore_store_waited(struct shore_activation_store *store, uint64_t ns);

/* Gives memory for a new entry, for the caller to fill. wait: if the pool is full, waits for writes; otherwise a full
 * pool is SHORE_STORE_FULL. A key that exists is stored once and counted: drop it as often as it was taken. Units:
 * bytes are rounded up to SHORE_BUFFER_ALIGN_BYTES. Ownership: *memory is the caller's until shore_store_release().
 * Errors: -EINVAL (bytes; the key is being filled), the error of a write since the last shore_store_settle(),
 * SHORE_EMISSING (the fleet went), -ENOMEM. */
int shore_store_take(struct shore_activation_store *store, uint64_t key, uint64_t bytes, bool wait, void **memory,
                     struct shore_diag *diag);

/* The entry is filled; it is written when its turn comes. Errors: -ENOENT (no such key), -EINVAL (not being filled). */
int shore_store_put(struct shore_activation_store *store, uint64_t key, struct shore_diag *diag);
/* The same, once the event has passed: a device copies into the memory until then. The entry may be released, dropped
 * and asked for before: its memory stays, and shore_store_get() waits for the event. Errors: as of put; -EINVAL (an
 * event, and no device). If the device fails, those that need the entry, and settle, return its error. */
int shore_store_put_after(struct shore_activation_store *store, uint64_t key, struct shore_event until,
                          struct shore_diag *diag);

/* Prefetches an entry, if that takes no memory from entries that are needed sooner. If the read fails, get returns its
 * error. Errors: -ENOENT, -EINVAL (being filled). */
int shore_store_want(struct shore_activation_store *store, uint64_t key, struct shore_diag *diag);

/* Gives an entry's memory, for reading; waits until it is there. SHORE_STORE_FULL: all memory is in use, see
 * shore_store_read(). Ownership: *memory stays as it is until it was released as often as it was got. Errors: -ENOENT,
 * -EINVAL (being filled), those of shore_fleet_scratch_get(), SHORE_EMISSING (it went with the fleet). */
int shore_store_get(struct shore_activation_store *store, uint64_t key, void **memory, struct shore_diag *diag);

/* The same for a device, which copies from the memory after an event: *after is the one behind which a device has
 * filled the entry. The call waits for the drives alone. *after has no stream if it has passed. Errors: as of get. */
int shore_store_get_after(struct shore_activation_store *store, uint64_t key, void **memory, struct shore_event *after,
                          struct shore_diag *diag);
/* Whether shore_store_get_after() would not wait. */
bool shore_store_has(struct shore_activation_store *store, uint64_t key);

/* Ends one use of an entry. Errors: -ENOENT, -EINVAL (it is not in use). */
int shore_store_release(struct shore_activation_store *store, uint64_t key, struct shore_diag *diag);
/* The same, once the event has passed: a device copies from the memory until then. The caller's use ends now. Errors:
 * as of release; -EINVAL (an event, and no device). */
int shore_store_release_after(struct shore_activation_store *store, uint64_t key, struct shore_event until,
                              struct shore_diag *diag);

/* Drops an entry: its memory and scratch are given back once it is dropped as often as it was taken, and released.
 * Waits for nothing. Errors: -ENOENT. */
int shore_store_drop(struct shore_activation_store *store, uint64_t key, struct shore_diag *diag);

/* Writes a new entry from the caller's memory to scratch, without the pool; waits. Errors: -EINVAL (bytes; the key
 * exists), those of shore_store_take() and of shore_fleet_scratch_put(). */
int shore_store_write(struct shore_activation_store *store, uint64_t key, const void *src, uint64_t bytes,
                      struct shore_diag *diag);
/* Copies an entry into the caller's memory, which has whole pages and is aligned as the pool is; waits. Errors: as of
 * shore_store_get(). */
int shore_store_read(struct shore_activation_store *store, uint64_t key, void *dst, struct shore_diag *diag);

/* Waits for everything under way, on the device, too. From here on, a failed write is tried again. Errors: that of a
 * failed write, or of the device. */
int shore_store_settle(struct shore_activation_store *store, struct shore_diag *diag);
/* The same, and drops all entries, in use or not: a step has ended or was interrupted. Errors: as of settle. */
int shore_store_drop_all(struct shore_activation_store *store, struct shore_diag *diag);

struct shore_store_counts {
    size_t size;                                           /* set by the caller: sizeof(struct shore_store_counts) */
    uint64_t entries;                                      /* now */
    uint64_t pool_bytes, pool_used_bytes, pool_most_bytes; /* all of it, now, and the most since open */
    uint64_t scratch_bytes, scratch_used_bytes;
    /* since open */
    uint64_t taken_bytes, full_bytes;       /* taken, and refused by take with SHORE_STORE_FULL */
    uint64_t written_bytes, read_bytes;     /* by the drives */
    uint64_t forwarded_bytes;               /* given by get before they had left memory */
    uint64_t waited_take_ns, waited_get_ns; /* time that callers waited; read and write count as get */
};
/* Errors: -EINVAL (out->size). */
int shore_store_count(struct shore_activation_store *store, struct shore_store_counts *out);

#ifdef __cplusplus
}
#endif

#endif
