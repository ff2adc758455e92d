#include "plan/regions.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void shore__regions_open(struct shore__region_list *r, uint32_t phases, bool one_memory) {
    *r = (struct shore__region_list){.phases = phases, .one_memory = one_memory};
}

void shore__regions_close(struct shore__region_list *r) {
    free(r->item);
    free(r->by_offset);
    r->item = NULL;
    r->by_offset = NULL;
    r->count = r->room = r->placed = 0;
}

void shore__regions_clear(struct shore__region_list *r) {
    r->count = r->placed = 0;
}

static void add(struct shore__region_list *r, uint32_t key, uint32_t index, const char *name, enum shore_place place,
                uint64_t bytes, struct shore__lifetime live) {
    enum { FIRST = 128 };
    assert(live.from < r->phases && live.to < r->phases);
    if (r->count == r->room) {
        uint32_t room = r->room ? 2 * r->room : FIRST;
        struct shore__region *item = realloc(r->item, room * sizeof *item);
        if (item) r->item = item;
        uint32_t *by_offset = realloc(r->by_offset, room * sizeof *by_offset);
        if (by_offset) r->by_offset = by_offset;
        if (!item || !by_offset) {
            r->failed = true;
            return;
        }
        r->room = room;
    }
    r->item[r->count++] = (struct shore__region){
        .key = key,
        .index = index,
        .name = name,
        .place = place,
        .bytes = shore__arena_round(bytes),
        .live = live,
    };
}

void shore__regions_add(struct shore__region_list *r, uint32_t key, uint32_t index, const char *name,
                        enum shore_place place, uint64_t bytes, struct shore__lifetime live) {
    bool both = place == SHORE_PLACE_BOTH;
    add(r, key, index, name, both || r->one_memory ? SHORE_PLACE_DEVICE : place, bytes, live);
    if (both && !r->one_memory) add(r, key, index, name, SHORE_PLACE_PINNED, bytes, live);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Whether two rows must not share a place. */
static bool meet(const struct shore__region *a, const struct shore__region *b) {
    return a->place == b->place && a->bytes && b->bytes &&
           (shore__lifetime_has(a->live, b->live.from) || shore__lifetime_has(b->live, a->live.from));
}

static uint64_t end_of(const struct shore__region *row) {
    return row->offset + row->bytes;
}

/* Inserts row i in the order of offsets. */
static void note_offset(struct shore__region_list *r, uint32_t i) {
    uint32_t at = r->placed++;
    for (; at && r->item[r->by_offset[at - 1]].offset > r->item[i].offset; at--)
        r->by_offset[at] = r->by_offset[at - 1];
    r->by_offset[at] = i;
}

/* Finds the lowest offset for row i among the placed rows. Sweeps upwards, past each row that it meets, to the first
 * gap that is large enough. */
static void find_offset(struct shore__region_list *r, uint32_t i) {
    struct shore__region *row = &r->item[i];
    row->offset = 0;
    if (!row->bytes) return;
    row->offset = r->taken[row->place];
    for (uint32_t k = 0; k < r->placed; k++) {
        const struct shore__region *other = &r->item[r->by_offset[k]];
        if (!meet(row, other)) continue;
        if (end_of(row) <= other->offset) break;
        if (end_of(other) > row->offset) row->offset = end_of(other);
    }
}

uint64_t shore__regions_lay_out(struct shore__region_list *r) {
    uint64_t sum = 0;
    memset(r->bytes, 0, sizeof r->bytes);
    memset(r->taken, 0, sizeof r->taken);
    r->placed = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct shore__region *row = &r->item[i];
        find_offset(r, i);
        if (!row->bytes) continue;
        if (end_of(row) > r->bytes[row->place]) r->bytes[row->place] = end_of(row);
        if (row->offset == r->taken[row->place] && row->live.from == 0 && row->live.to == r->phases - 1)
            r->taken[row->place] = end_of(row); /* all below its end is always in use: later rows start there */
        else
            note_offset(r, i);
    }
    for (uint32_t k = 0; k < SHORE_PLACES; k++)
        sum += r->bytes[k];
    return sum;
}

/* Free bytes from `at` to the next row that meets this one; 0: `at` is in use. */
static uint64_t free_from(const struct shore__region_list *r, const struct shore__region *row, uint64_t at) {
    uint64_t end = r->bytes[row->place];
    for (uint32_t i = 0; i < r->count; i++) {
        const struct shore__region *other = &r->item[i];
        if (other == row || !meet(row, other) || end_of(other) <= at) continue;
        if (other->offset <= at) return 0;
        if (other->offset < end) end = other->offset;
    }
    return end > at ? end - at : 0;
}

void shore__regions_grow(struct shore__region_list *r, struct shore__region *row) {
    if (!row->bytes) return;
    uint64_t best = row->offset, bytes = free_from(r, row, row->offset);
    assert(bytes >= row->bytes);
    for (uint32_t i = 0; i <= r->count; i++) { /* free stretches begin at 0, or where a row ends */
        const struct shore__region *other = i < r->count ? &r->item[i] : NULL;
        if (other && (other == row || !meet(row, other))) continue;
        uint64_t at = other ? end_of(other) : 0, room = free_from(r, row, at);
        if (room <= bytes) continue;
        best = at;
        bytes = room;
    }
    row->bytes = bytes;
    if (best == row->offset) return;
    uint32_t i = (uint32_t)(row - r->item), left = 0;
    for (uint32_t k = 0; k < r->placed; k++)
        if (r->by_offset[k] != i) r->by_offset[left++] = r->by_offset[k];
    r->placed = left;
    row->offset = best;
    note_offset(r, i);
}

struct shore__region *shore__regions_find(const struct shore__region_list *r, uint32_t key, uint32_t index) {
    for (uint32_t i = 0; i < r->count; i++)
        if (r->item[i].index == index && r->item[i].key == key) return &r->item[i];
    return NULL;
}

int shore__memory_open(struct shore__memory *memory, const struct shore__region_list *regions, struct shore__compute *c,
                       struct shore_diag *diag) {
    int rc = 0;
    *memory = (struct shore__memory){.regions = regions};
    for (int k = 0; !rc && k < SHORE_PLACES; k++)
        if (regions->bytes[k]) rc = c->ops->alloc(c, (enum shore_place)k, regions->bytes[k], &memory->span[k], diag);
    if (rc) shore__memory_close(memory, c);
    return rc;
}

void shore__memory_close(struct shore__memory *memory, struct shore__compute *c) {
    for (int k = 0; k < SHORE_PLACES; k++)
        if (memory->span[k].bytes) c->ops->free(c, &memory->span[k]);
}

struct shore__memory shore__memory_lent(const struct shore__region_list *regions, struct shore__both lent) {
    assert(regions->one_memory);
    return (struct shore__memory){regions, {{.host = lent.host, .device = lent.device}}};
}

struct shore__both shore__memory_both(const struct shore__memory *memory, uint32_t key, uint32_t index) {
    const struct shore__region_list *r = memory->regions;
    struct shore__both b = {NULL, SHORE__NO_BUF};
    for (uint32_t i = 0; i < r->count; i++) {
        const struct shore__region *row = &r->item[i];
        const struct shore__span *span = &memory->span[row->place];
        if (row->index != index || !row->bytes || row->key != key) continue;
        if (span->host) b.host = (char *)span->host + row->offset;
        if (!shore__buf_is_none(span->device)) b.device = shore__at(span->device, row->offset);
    }
    return b;
}

shore__buf shore__memory_seen(const struct shore__memory *memory, const void *host) {
    for (int k = 0; host && k < SHORE_PLACES; k++) {
        const struct shore__span *span = &memory->span[k];
        uintptr_t at = (uintptr_t)host - (uintptr_t)span->host;
        if (span->host && at < span->bytes && !shore__buf_is_none(span->device)) return shore__at(span->device, at);
    }
    return SHORE__NO_BUF;
}

/* ---- raising ----------------------------------------------------------------------------------------------------- */

void shore__raise(size_t *field, size_t most, uint64_t room, uint64_t (*bytes)(void *ctx), void *ctx) {
    size_t least = *field;
    if (most <= least) return;
    *field = most;
    if (bytes(ctx) <= room) return;
    most--;
    while (least < most) {
        *field = least + (most - least + 1) / 2;
        if (bytes(ctx) <= room)
            least = *field;
        else
            most = *field - 1;
    }
    *field = least;
}
