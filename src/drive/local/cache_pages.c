#include "drive/local/cache_pages.h"

#include <assert.h>
#include <string.h>

#include "base/arena.h"

static uint32_t buckets_of(uint32_t count) {
    uint32_t n = 1;
    while (n < count && n < UINT32_C(1) << 31)
        n *= 2;
    return n;
}

uint64_t shore__cache_pages_bytes(uint32_t count) {
    return shore__arena_round(count * sizeof(struct shore__cache_page)) + buckets_of(count) * sizeof(uint32_t);
}

void shore__cache_pages_init(struct shore__cache_pages *p, void *memory, uint32_t count) {
    *p = (struct shore__cache_pages){.page = memory, .count = count, .nbuckets = buckets_of(count)};
    p->bucket = (uint32_t *)(void *)((char *)memory + shore__arena_round(count * sizeof *p->page));
    for (uint32_t i = 0; i < count; i++)
        p->page[i] = (struct shore__cache_page){.next = i + 1 < count ? i + 1 : SHORE__NO_PAGE};
    memset(p->bucket, 0xFF, p->nbuckets * sizeof *p->bucket);
    p->free = count ? 0 : SHORE__NO_PAGE;
}

static uint32_t *bucket_of(const struct shore__cache_pages *p, const struct shore__cache_key *key, uint32_t part) {
    uint64_t hash = shore__cache_key_hash(key) + part * UINT64_C(0x9E3779B97F4A7C15);
    return &p->bucket[(hash ^ hash >> 32) & (p->nbuckets - 1)];
}

uint32_t shore__cache_pages_find(const struct shore__cache_pages *p, const struct shore__cache_key *key,
                                 uint32_t part) {
    uint32_t at = *bucket_of(p, key, part), passed = 0;
    while (at != SHORE__NO_PAGE && (p->page[at].part != part || !shore__cache_key_fits(key, &p->page[at].key))) {
        assert(at < p->count && passed < p->used);
        at = p->page[at].next;
        passed++;
    }
    return at;
}

uint32_t shore__cache_pages_take(struct shore__cache_pages *p, const struct shore__cache_key *key, uint32_t part) {
    uint32_t at = shore__cache_pages_find(p, key, part);
    if (at != SHORE__NO_PAGE || p->free == SHORE__NO_PAGE) return at;
    uint32_t *bucket = bucket_of(p, key, part);
    at = p->free;
    assert(!p->page[at].taken);
    p->free = p->page[at].next;
    p->page[at] = (struct shore__cache_page){.key = *key, .part = part, .next = *bucket, .taken = true};
    *bucket = at;
    p->used++;
    assert(p->used <= p->count);
    return at;
}

static void give_back(struct shore__cache_pages *p, uint32_t page) {
    uint32_t *link = bucket_of(p, &p->page[page].key, p->page[page].part);
    while (*link != page)
        link = &p->page[*link].next;
    *link = p->page[page].next;
    p->page[page] = (struct shore__cache_page){.next = p->free};
    p->free = page;
    p->used--;
}

uint32_t shore__cache_pages_free(struct shore__cache_pages *p, const struct shore__cache_key *key) {
    uint32_t before = p->used;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->page[i].taken && shore__cache_key_fits(key, &p->page[i].key)) give_back(p, i);
    return before - p->used;
}
