#include "longshore/store.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/sized.h"
#include "store/store_impl.h"

#define WRITES 4u

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static int check(const struct shore_fleet *fleet, const struct shore_store_options *o, struct shore_diag *diag) {
    struct shore_fleet_info info = {.size = sizeof info};
    int rc = fleet ? shore_fleet_info(fleet, &info) : -EINVAL;
    if (rc) return shore__fail(diag, rc, "a store needs a fleet");
    if (o->scratch_offset % SHORE_BUFFER_ALIGN_BYTES || o->scratch_bytes % SHORE_BUFFER_ALIGN_BYTES)
        return shore__fail(diag, -EINVAL, "the scratch of the store is not aligned");
    if (o->scratch_offset > info.scratch_bytes || o->scratch_bytes > info.scratch_bytes - o->scratch_offset)
        return shore__fail(diag, -EINVAL, "the scratch of the store ends beyond the %llu bytes that the fleet has",
                           (unsigned long long)info.scratch_bytes);
    for (uint32_t i = 0; i < o->npool; i++)
        if (!o->pool[i].at || ((uintptr_t)o->pool[i].at | o->pool[i].bytes) % SHORE_BUFFER_ALIGN_BYTES)
            return shore__fail(diag, -EINVAL, "part %u of the pool is not aligned", i);
    return 0;
}

static int fill(struct shore_activation_store *s, const struct shore_store_options *o, struct shore_diag *diag) {
    s->nranges = o->npool + 1;
    if (shore__extents_reserve(&s->pool, s->nranges + 1) || shore__extents_reserve(&s->scratch, 2))
        return shore__fail(diag, -ENOMEM, "out of memory for a store");
    if (o->pool_bytes) {
        s->memory_bytes = shore__arena_round(o->pool_bytes);
        int rc = shore_buffer_alloc(s->memory_bytes, 0, &s->memory, diag);
        if (rc) return rc;
        shore__extents_add(&s->pool, (uintptr_t)s->memory, s->memory_bytes);
    }
    for (uint32_t i = 0; i < o->npool; i++)
        shore__extents_add(&s->pool, (uintptr_t)o->pool[i].at, o->pool[i].bytes);
    shore__extents_add(&s->scratch, o->scratch_offset, o->scratch_bytes);
    return 0;
}

int shore_store_open(struct shore_fleet *fleet, const struct shore_store_options *options,
                     struct shore_activation_store **out, struct shore_diag *diag) {
    struct shore_store_options o;
    int rc = shore__sized_in(&o, sizeof o, options, "shore_store_options", diag);
    if (!rc) rc = check(fleet, &o, diag);
    if (rc) return rc;
    struct shore_activation_store *s = calloc(1, sizeof *s);
    if (!s) return shore__fail(diag, -ENOMEM, "out of memory for a store");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->fleet = fleet;
    s->writes_most = o.writes ? o.writes : WRITES;
    s->adapts = o.adapts;
    s->keeps = o.keeps;
    s->device = o.device;
    shore__round_open(&s->round);
    rc = fill(s, &o, diag);
    if (rc)
        shore_store_close(s);
    else
        *out = s;
    return rc;
}

/* Waits for a request, or else for an event. false: for neither. */
static bool wait_for_any(struct shore_activation_store *s, uint64_t *waited_ns) {
    if (s->under_way)
        shore__store_wait(s, waited_ns);
    else if (s->late.count)
        shore__late_wait(s);
    else
        return false;
    return true;
}

static void wait_for_all(struct shore_activation_store *s) {
    uint64_t unused = 0;
    while (wait_for_any(s, &unused)) {
    }
}

void shore_store_end(struct shore_activation_store *s) {
    pthread_mutex_lock(&s->lock);
    s->pauses = true;
    wait_for_all(s);
    s->fleet = NULL;
    pthread_mutex_unlock(&s->lock);
}

void shore_store_close(struct shore_activation_store *s) {
    if (!s) return;
    shore_store_end(s);
    while (s->nentries)
        shore__entry_free(s->entry[s->nentries - 1]);
    assert(!s->pool.used_bytes && !s->scratch.used_bytes);
    shore_buffer_free(s->memory, s->memory_bytes);
    free(s->pool.free);
    free(s->scratch.free);
    free(s->entry);
    free(s->late.items);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void shore_store_begin(struct shore_activation_store *s, uint64_t step) {
    pthread_mutex_lock(&s->lock);
    s->step = step;
    shore__late_look(s); /* entries of the last round that a device used until now */
    if (!s->nentries) shore__round_begin(s);
    pthread_mutex_unlock(&s->lock);
}

void shore_store_waited(struct shore_activation_store *s, uint64_t ns) {
    pthread_mutex_lock(&s->lock);
    s->counts.waited_take_ns += ns;
    pthread_mutex_unlock(&s->lock);
}

/* ---- what is asked for wrongly ----------------------------------------------------------------------------------- */

static int say_key(const struct shore_activation_store *s, int rc, uint64_t key, const char *what,
                   struct shore_diag *diag) {
    return shore__fail(diag, rc, "key %llu of step %llu %s", (unsigned long long)key, (unsigned long long)s->step,
                       what);
}

/* Finds an entry that was taken; filled: and put. */
static int known(struct shore_activation_store *s, uint64_t key, bool filled, struct entry **out,
                 struct shore_diag *diag) {
    struct entry *e = *out = shore__store_find(s, key);
    if (!e || (!e->taken && !e->uses))
        return say_key(s, -ENOENT, key, "is not in the store: it was never taken, or was dropped", diag);
    if (filled && !e->put) return say_key(s, -EINVAL, key, "is still being filled: put it first", diag);
    return 0;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Adds a new entry, or counts an existing one once more. */
static int enroll(struct shore_activation_store *s, uint64_t key, uint64_t bytes, bool counts, struct entry **out,
                  struct shore_diag *diag) {
    struct entry *e;
    if (!bytes || bytes > UINT64_MAX / 2) return say_key(s, -EINVAL, key, "has no bytes, or too many", diag);
    while ((e = shore__store_find(s, key)) && !e->taken && !e->uses) { /* of an earlier round: its request ends */
        if (e->late && s->late.count)
            shore__late_wait(s);
        else
            shore__store_wait(s, &s->counts.waited_take_ns);
    }
    if (e && !e->put) return say_key(s, -EINVAL, key, "is still being filled, and is taken twice", diag);
    if (e && (!counts || !e->taken)) return say_key(s, -EINVAL, key, "is in the store already", diag);
    if (e) {
        e->taken++;
        return SHORE_STORE_KNOWN;
    }
    if (s->failed) {
        if (diag) *diag = s->why;
        return s->failed;
    }
    if (!s->fleet) return say_key(s, SHORE_EMISSING, key, "cannot be stored: the drives are closed", diag);
    bytes = shore__arena_round(bytes);
    int rc = shore__round_allows(s, bytes) ? shore__store_add(s, key, bytes, out) : SHORE_STORE_FULL;
    return rc < 0 ? shore__fail(diag, rc, "out of memory for a store") : rc;
}

/* Whether memory comes back once something that is under way has ended. */
static bool will_free(const struct shore_activation_store *s) {
    for (size_t i = 0; i < s->nentries; i++) {
        const struct entry *e = s->entry[i];
        bool leaves = e->has_scratch || (!e->taken && !e->uses);
        if (e->memory && leaves && (e->late || e->state == ENTRY_WRITING || e->state == ENTRY_READING)) return true;
    }
    return false;
}

/* Finds memory for a new entry, by evicting entries that are written. */
static int find_memory(struct entry *e, bool waits, struct shore_diag *diag) {
    struct shore_activation_store *s = e->store;
    for (;;) {
        shore__store_write_some(s);
        if (shore__entry_give_memory(e, true)) return 0;
        if (s->failed) break;
        if (s->keeps && !s->presses)
            s->presses = true;
        else if (!waits || !will_free(s) || !wait_for_any(s, &s->counts.waited_take_ns))
            return SHORE_STORE_FULL;
    }
    if (diag) *diag = s->why;
    return s->failed;
}

int shore_store_take(struct shore_activation_store *s, uint64_t key, uint64_t bytes, bool wait, void **memory,
                     struct shore_diag *diag) {
    struct entry *e;
    pthread_mutex_lock(&s->lock);
    s->pauses = false;
    shore__late_look(s);
    int rc = enroll(s, key, bytes, true, &e, diag);
    if (!rc) {
        rc = find_memory(e, wait, diag);
        s->presses = false;
        if (rc) shore__entry_free(e);
    }
    if (!rc) {
        assert(e->state == ENTRY_FILLING && e->memory && !e->uses);
        e->uses = 1;
        *memory = e->memory;
        s->counts.taken_bytes += e->bytes;
    } else if (rc == SHORE_STORE_FULL) {
        s->counts.full_bytes += shore__arena_round(bytes);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int check_event(const struct shore_activation_store *s, uint64_t key, struct shore_event until,
                       struct shore_diag *diag) {
    if (!until.stream || s->device) return 0;
    return say_key(s, -EINVAL, key, "waits for an event, and the store has no device", diag);
}

int shore_store_put_after(struct shore_activation_store *s, uint64_t key, struct shore_event until,
                          struct shore_diag *diag) {
    struct entry *e;
    pthread_mutex_lock(&s->lock);
    int rc = known(s, key, false, &e, diag);
    if (!rc) rc = check_event(s, key, until, diag);
    if (!rc && (e->put || !e->memory)) rc = say_key(s, -EINVAL, key, "was put already", diag);
    if (!rc) {
        e->put = true;
        e->filled = until;
        rc = until.stream ? shore__late_add(e, until, true) : 0;
        if (rc) e->put = false;
    }
    if (!rc && !until.stream) {
        shore__entry_enter(e, ENTRY_WAITING);
        shore__store_write_some(s);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int shore_store_put(struct shore_activation_store *s, uint64_t key, struct shore_diag *diag) {
    return shore_store_put_after(s, key, (struct shore_event){NULL, 0}, diag);
}

int shore_store_write(struct shore_activation_store *s, uint64_t key, const void *src, uint64_t bytes,
                      struct shore_diag *diag) {
    struct entry *e;
    pthread_mutex_lock(&s->lock);
    int rc = enroll(s, key, bytes, false, &e, diag);
    if (!rc) {
        rc = e->has_scratch ? shore__entry_pass(e, true, (void *)(uintptr_t)src, diag) : SHORE_STORE_FULL;
        if (rc) {
            shore__entry_free(e);
        } else {
            shore__entry_enter(e, ENTRY_AWAY);
            e->put = true;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static int lost(const struct entry *e, int rc, const struct shore_diag *why, struct shore_diag *diag) {
    const char *text = why ? why->text : shore_error_text(rc);
    if (rc == SHORE_ELINK) return shore__fail(diag, rc, "%s", text);
    return shore__fail(diag, rc, "%s; this loses step %llu, too", text, (unsigned long long)e->store->step);
}

static bool is_there(const struct entry *e) {
    return e->state == ENTRY_WAITING || e->state == ENTRY_WRITING || e->state == ENTRY_STORED;
}

int shore_store_want(struct shore_activation_store *s, uint64_t key, struct shore_diag *diag) {
    struct entry *e;
    pthread_mutex_lock(&s->lock);
    shore__late_look(s);
    int rc = known(s, key, true, &e, diag);
    if (!rc) s->pauses = true;
    if (!rc && e->state == ENTRY_AWAY && s->fleet) {
        if (shore__entry_give_memory(e, false))
            shore__entry_read(e);
        else
            rc = SHORE_STORE_FULL;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* Waits until the device has filled the entry, which is in use. */
static int fill_late(struct entry *e, struct shore_diag *diag) {
    struct shore_activation_store *s = e->store;
    while (e->state == ENTRY_FILLING && e->late) {
        if (s->late.count)
            shore__late_wait(s);
        else
            shore__store_wait(s, &s->counts.waited_get_ns);
    }
    return e->state == ENTRY_FILLING ? lost(e, e->rc, e->why, diag) : 0;
}

/* Waits until the entry's memory holds it. */
static int bring(struct entry *e, struct shore_diag *diag) {
    struct shore_activation_store *s = e->store;
    int rc = fill_late(e, diag);
    if (rc) return rc;
    while (!is_there(e)) {
        if (e->state == ENTRY_AWAY) {
            if (!s->fleet) return say_key(s, SHORE_EMISSING, e->key, "was lost when the drives were closed", diag);
            if (shore__entry_give_memory(e, true)) {
                shore__entry_read(e);
            } else if (wait_for_any(s, &s->counts.waited_get_ns)) {
                continue;
            } else {
                return SHORE_STORE_FULL;
            }
        }
        while (e->state == ENTRY_READING)
            shore__store_wait(s, &s->counts.waited_get_ns);
        if (e->rc) return lost(e, e->rc, e->why, diag);
    }
    return 0;
}

static bool is_being_filled(const struct entry *e) {
    return e->state == ENTRY_FILLING && e->put && e->late;
}

/* after: NULL: whoever asks wants to read the memory at once. */
static int get(struct shore_activation_store *s, uint64_t key, void **memory, struct shore_event *after,
               struct shore_diag *diag) {
    struct entry *e;
    pthread_mutex_lock(&s->lock);
    shore__late_look(s);
    int rc = known(s, key, true, &e, diag);
    if (!rc) {
        bool late = after && is_being_filled(e);
        s->pauses = true;
        e->uses++; /* from here on it stays */
        if (after) *after = late ? e->filled : (struct shore_event){NULL, 0};
        rc = late ? 0 : bring(e, diag);
        *memory = e->memory;
        assert(rc || (e->memory && (late || is_there(e))));
        if (!rc && !e->came_back) s->counts.forwarded_bytes += e->bytes;
        if (!rc) e->asked = true;
        if (rc) e->uses--;
        shore__entry_leave(e);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int shore_store_get(struct shore_activation_store *s, uint64_t key, void **memory, struct shore_diag *diag) {
    return get(s, key, memory, NULL, diag);
}

int shore_store_get_after(struct shore_activation_store *s, uint64_t key, void **memory, struct shore_event *after,
                          struct shore_diag *diag) {
    return get(s, key, memory, after, diag);
}

bool shore_store_has(struct shore_activation_store *s, uint64_t key) {
    pthread_mutex_lock(&s->lock);
    const struct entry *e = shore__store_find(s, key);
    bool has = e && (is_being_filled(e) || is_there(e));
    pthread_mutex_unlock(&s->lock);
    return has;
}

int shore_store_read(struct shore_activation_store *s, uint64_t key, void *dst, struct shore_diag *diag) {
    struct entry *e;
    pthread_mutex_lock(&s->lock);
    shore__late_look(s);
    int rc = known(s, key, true, &e, diag);
    if (!rc) {
        s->pauses = true;
        e->uses++;
        rc = fill_late(e, diag);
        while (e->state == ENTRY_READING)
            shore__store_wait(s, &s->counts.waited_get_ns);
        if (rc) {
        } else if (is_there(e)) {
            pthread_mutex_unlock(&s->lock);
            memcpy(dst, e->memory, e->bytes);
            pthread_mutex_lock(&s->lock);
        } else if (!s->fleet) {
            rc = say_key(s, SHORE_EMISSING, key, "was lost when the drives were closed", diag);
        } else {
            struct shore_diag why;
            rc = shore__entry_pass(e, false, dst, &why);
            if (rc) lost(e, rc, &why, diag);
        }
        e->uses--;
        shore__entry_leave(e);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int shore_store_release_after(struct shore_activation_store *s, uint64_t key, struct shore_event until,
                              struct shore_diag *diag) {
    struct entry *e;
    pthread_mutex_lock(&s->lock);
    int rc = known(s, key, false, &e, diag);
    if (!rc) rc = check_event(s, key, until, diag);
    if (!rc && !e->uses) rc = say_key(s, -EINVAL, key, "is released, but not in use", diag);
    if (!rc && until.stream) rc = shore__late_add(e, until, false);
    if (!rc) {
        e->uses--;
        shore__entry_leave(e);
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int shore_store_release(struct shore_activation_store *s, uint64_t key, struct shore_diag *diag) {
    return shore_store_release_after(s, key, (struct shore_event){NULL, 0}, diag);
}

int shore_store_drop(struct shore_activation_store *s, uint64_t key, struct shore_diag *diag) {
    struct entry *e;
    pthread_mutex_lock(&s->lock);
    int rc = known(s, key, false, &e, diag);
    if (!rc && !e->taken) rc = say_key(s, -ENOENT, key, "was dropped already", diag);
    if (!rc) {
        e->taken--;
        shore__entry_leave(e);
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static int settle(struct shore_activation_store *s, struct shore_diag *diag) {
    wait_for_all(s);
    int rc = s->failed;
    if (rc && diag) *diag = s->why;
    s->failed = 0;
    return rc;
}

int shore_store_settle(struct shore_activation_store *s, struct shore_diag *diag) {
    pthread_mutex_lock(&s->lock);
    int rc = settle(s, diag);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int shore_store_drop_all(struct shore_activation_store *s, struct shore_diag *diag) {
    pthread_mutex_lock(&s->lock);
    int rc = settle(s, diag);
    while (s->nentries)
        shore__entry_free(s->entry[s->nentries - 1]);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int shore_store_count(struct shore_activation_store *s, struct shore_store_counts *out) {
    pthread_mutex_lock(&s->lock);
    struct shore_store_counts counts = s->counts;
    counts.entries = s->nentries;
    counts.pool_bytes = s->pool.total_bytes;
    counts.pool_used_bytes = s->pool.used_bytes;
    counts.scratch_bytes = s->scratch.total_bytes;
    counts.scratch_used_bytes = s->scratch.used_bytes;
    pthread_mutex_unlock(&s->lock);
    return shore__sized_out(out, &counts, sizeof counts);
}
