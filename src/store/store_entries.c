/* Entries of a store by key, and the choice of which entry to evict. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "drive/fleet/fleet.h"
#include "store/store_impl.h"

void shore__entry_enter(struct entry *e, enum entry_state state) {
    static const unsigned next[] = {
        [ENTRY_FILLING] = 1u << ENTRY_WAITING | 1u << ENTRY_AWAY,
        [ENTRY_WAITING] = 1u << ENTRY_WRITING,
        [ENTRY_WRITING] = 1u << ENTRY_STORED | 1u << ENTRY_WAITING,
        [ENTRY_STORED] = 1u << ENTRY_AWAY,
        [ENTRY_AWAY] = 1u << ENTRY_READING,
        [ENTRY_READING] = 1u << ENTRY_STORED | 1u << ENTRY_AWAY,
    };
    struct shore_activation_store *s = e->store;
    assert(next[e->state] & 1u << state);
    assert(!e->memory == (state == ENTRY_AWAY));
    if (e->has_scratch) s->waiting += (state == ENTRY_WAITING) - (e->state == ENTRY_WAITING);
    s->writing += (state == ENTRY_WRITING) - (e->state == ENTRY_WRITING);
    assert(s->waiting <= s->nentries && s->writing <= s->writes_most);
    e->state = state;
}

size_t shore__store_index(const struct shore_activation_store *s, uint64_t key) {
    size_t low = 0, high = s->nentries;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->entry[middle]->key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct entry *shore__store_find(const struct shore_activation_store *s, uint64_t key) {
    size_t i = shore__store_index(s, key);
    return i < s->nentries && s->entry[i]->key == key ? s->entry[i] : NULL;
}

/* Reserves so that giving back never fails: each entry takes one range of each room. */
static int reserve(struct shore_activation_store *s) {
    size_t ranges = s->nentries + 1 + s->nranges + 1;
    if (shore__extents_reserve(&s->pool, ranges) || shore__extents_reserve(&s->scratch, ranges)) return -ENOMEM;
    if (s->nentries < s->capacity) return 0;
    struct entry **larger = realloc(s->entry, 2 * ranges * sizeof *larger);
    if (!larger) return -ENOMEM;
    s->entry = larger;
    s->capacity = 2 * ranges;
    return 0;
}

int shore__store_add(struct shore_activation_store *s, uint64_t key, uint64_t bytes, struct entry **out) {
    size_t index = shore__store_index(s, key);
    uint64_t at = 0;
    if (reserve(s)) return -ENOMEM;
    bool has_scratch = shore__extents_take(&s->scratch, bytes, &at);
    if (!has_scratch && !s->keeps) return SHORE_STORE_FULL;
    size_t seals = has_scratch ? (size_t)shore__fleet_scratch_parts(s->fleet, at, bytes) * 16 : 0;
    struct entry *e = calloc(1, sizeof *e + seals);
    if (!e) {
        if (has_scratch) shore__extents_give(&s->scratch, at, bytes);
        return -ENOMEM;
    }
    e->store = s;
    e->key = key;
    e->has_scratch = has_scratch;
    e->at = at;
    e->bytes = bytes;
    e->taken = 1;
    assert(s->nentries < s->capacity && (index == s->nentries || s->entry[index]->key > key));
    memmove(s->entry + index + 1, s->entry + index, (s->nentries++ - index) * sizeof *s->entry);
    s->entry[index] = e;
    *out = e;
    return 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Eviction order, lowest first: requested already; requested, and perhaps again; still of forward; prefetched.
 * Negative: not to be evicted. */
static int rank(const struct entry *e, uint64_t key) {
    if (e->state != ENTRY_STORED || e->uses || e->late) return -1;
    if (e->asked) return e->key > key ? 0 : 1;
    return e->came_back ? 3 : 2;
}

/* The entry to evict for another, the one needed last if several may be; NULL: none. */
static struct entry *spare(const struct entry *for_it, bool any) {
    struct shore_activation_store *s = for_it->store;
    size_t end = any ? s->nentries : shore__store_index(s, for_it->key);
    int best = any ? 4 : 3;
    struct entry *out = NULL;
    for (size_t i = 0; i < end && best > 0; i++) {
        int r = rank(s->entry[i], for_it->key);
        if (r < 0 || r >= best) continue;
        best = r;
        out = s->entry[i];
    }
    return out;
}

void shore__entry_take_memory(struct entry *e) {
    if (e->memory) shore__extents_give(&e->store->pool, (uintptr_t)e->memory, e->bytes);
    e->memory = NULL;
}

bool shore__entry_give_memory(struct entry *e, bool any) {
    struct shore_activation_store *s = e->store;
    uint64_t at;
    for (size_t taken = 0; !shore__extents_take(&s->pool, e->bytes, &at); taken++) {
        struct entry *other = spare(e, any);
        assert(taken < s->nentries && other != e);
        if (!other) return false;
        shore__entry_take_memory(other);
        shore__entry_enter(other, ENTRY_AWAY);
    }
    assert(!e->memory && s->pool.used_bytes <= s->pool.total_bytes);
    if (s->counts.pool_most_bytes < s->pool.used_bytes) s->counts.pool_most_bytes = s->pool.used_bytes;
    e->memory = (unsigned char *)(uintptr_t)at;
    return true;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

void shore__entry_free(struct entry *e) {
    struct shore_activation_store *s = e->store;
    size_t index = shore__store_index(s, e->key);
    assert(index < s->nentries && s->entry[index] == e && !e->late);
    assert(e->state != ENTRY_WRITING && e->state != ENTRY_READING);
    s->waiting -= e->has_scratch && e->state == ENTRY_WAITING;
    shore__entry_take_memory(e);
    if (e->has_scratch) shore__extents_give(&s->scratch, e->at, e->bytes);
    memmove(s->entry + index, s->entry + index + 1, (--s->nentries - index) * sizeof *s->entry);
    free(e->why);
    free(e);
}

void shore__entry_leave(struct entry *e) {
    if (!e->taken && !e->uses && !e->late && e->state != ENTRY_WRITING && e->state != ENTRY_READING)
        shore__entry_free(e);
}
