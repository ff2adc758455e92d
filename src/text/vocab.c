#include "text/vocab.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "text/vector.h"

static uint32_t *slot_of(const struct shore__vocab *v, const char *text, size_t bytes) {
    uint32_t at = (uint32_t)XXH3_64bits(text, bytes) & (v->nslots - 1);
    for (;; at = (at + 1) & (v->nslots - 1)) {
        uint32_t held = v->slots[at];
        if (held == 0) return &v->slots[at];
        const struct shore__vocab_entry *e = &v->entries[held - 1];
        if (e->bytes == bytes && !memcmp(v->bytes.bytes + e->offset, text, bytes)) return &v->slots[at];
    }
}

static int grow_slots(struct shore__vocab *v) {
    uint32_t *old = v->slots, nold = v->nslots;
    v->nslots = nold ? nold * 2 : 1024;
    v->slots = calloc(v->nslots, sizeof *v->slots);
    if (!v->slots) {
        v->slots = old;
        v->nslots = nold;
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < nold; i++) {
        if (!old[i]) continue;
        const struct shore__vocab_entry *e = &v->entries[old[i] - 1];
        *slot_of(v, v->bytes.bytes + e->offset, e->bytes) = old[i];
    }
    free(old);
    return 0;
}

static int grow_entries(struct shore__vocab *v, uint32_t id) {
    uint32_t capacity = v->ids_capacity ? v->ids_capacity : 1024;
    while (capacity <= id)
        capacity *= 2;
    struct shore__vocab_entry *entries = realloc(v->entries, capacity * sizeof *entries);
    if (!entries) return -ENOMEM;
    for (uint32_t i = v->ids_capacity; i < capacity; i++)
        entries[i].bytes = SHORE__VOCAB_NONE;
    v->entries = entries;
    v->ids_capacity = capacity;
    return 0;
}

int shore__vocab_add(struct shore__vocab *v, const char *text, size_t bytes, uint32_t id) {
    if (id >= SHORE__VOCAB_ID_LIMIT || v->bytes.count + bytes > UINT32_MAX / 4) return SHORE_EINPUT;
    if (id >= v->ids_capacity && grow_entries(v, id)) return -ENOMEM;
    if (3 * (uint64_t)v->nslots <= 4 * (uint64_t)v->count && grow_slots(v)) return -ENOMEM;
    if (!text) text = ""; /* empty */
    uint32_t *slot = slot_of(v, text, bytes);
    if (*slot || v->entries[id].bytes != SHORE__VOCAB_NONE) return SHORE_EINPUT;
    size_t offset = v->bytes.count;
    if (shore__text_append(&v->bytes, text, bytes) || shore__text_append(&v->bytes, "", 1)) return -ENOMEM;
    v->entries[id] = (struct shore__vocab_entry){(uint32_t)offset, (uint32_t)bytes};
    *slot = id + 1;
    v->count++;
    if (id >= v->nids) v->nids = id + 1;
    return 0;
}

uint32_t shore__vocab_find(const struct shore__vocab *v, const char *text, size_t bytes) {
    return v->nslots ? *slot_of(v, text, bytes) - 1 : SHORE__VOCAB_NONE;
}

const char *shore__vocab_text(const struct shore__vocab *v, uint32_t id, size_t *bytes) {
    if (id >= v->nids || v->entries[id].bytes == SHORE__VOCAB_NONE) return NULL;
    *bytes = v->entries[id].bytes;
    return v->bytes.bytes + v->entries[id].offset;
}

void shore__vocab_fini(struct shore__vocab *v) {
    free(v->bytes.bytes);
    free(v->entries);
    free(v->slots);
    *v = (struct shore__vocab){0};
}
