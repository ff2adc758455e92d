/* The page table of a cache: which page holds which part of which key's bytes. A key's pages may lie anywhere in the
 * cache. All are on one drive, because the fleet sends everything with one key to the same drive. Nothing here outlives
 * the process. */
#ifndef SHORE_DRIVE_LOCAL_CACHE_PAGES_H
#define SHORE_DRIVE_LOCAL_CACHE_PAGES_H

#include "drive/function.h"

#define SHORE__NO_PAGE UINT32_MAX

struct shore__cache_page {
    struct shore__cache_key key;
    uint32_t part;          /* which page of the key's bytes this is */
    uint32_t next;          /* next page of the bucket, or next free page */
    unsigned char seal[16]; /* of the bytes that were put */
    bool taken;
};

struct shore__cache_pages {
    struct shore__cache_page *page;
    uint32_t *bucket;
    uint32_t count, nbuckets, used, free;
};

/* Bytes of a table of so many pages. */
uint64_t shore__cache_pages_bytes(uint32_t count);
void shore__cache_pages_init(struct shore__cache_pages *p, void *memory, uint32_t count);
/* SHORE__NO_PAGE: there is none. */
uint32_t shore__cache_pages_find(const struct shore__cache_pages *p, const struct shore__cache_key *key, uint32_t part);
/* The existing page, or a new one; SHORE__NO_PAGE: all are taken. */
uint32_t shore__cache_pages_take(struct shore__cache_pages *p, const struct shore__cache_key *key, uint32_t part);
/* Frees all pages of a key, or of all keys that match it (SHORE__CACHE_ANY matches any). Returns their number. Checks
 * every page of the cache. */
uint32_t shore__cache_pages_free(struct shore__cache_pages *p, const struct shore__cache_key *key);

#endif
