/* Pages of a cache: which page holds which part of which key's bytes. A key's pages lie anywhere; all of them are on
 * one drive, since the fleet sends all that has a key to the same one. Nothing here is kept after the process. */
#ifndef SHORE_DRIVE_LOCAL_CACHE_PAGES_H
#define SHORE_DRIVE_LOCAL_CACHE_PAGES_H

#include "drive/function.h"

#define SHORE__NO_PAGE UINT32_MAX

struct shore__cache_page {
    struct shore__cache_key key;
    uint32_t part;          /* of the key's bytes: this page of them */
    uint32_t next;          /* in its bucket, or among the free ones */
    unsigned char seal[16]; /* of what was put */
    bool taken;
};

struct shore__cache_pages {
    struct shore__cache_page *page;
    uint32_t *bucket;
    uint32_t count, nbuckets, used, free;
};

/* Memory of a table of so many pages. */
uint64_t shore__cache_pages_bytes(uint32_t count);
void shore__cache_pages_init(struct shore__cache_pages *p, void *memory, uint32_t count);
/* SHORE__NO_PAGE: there is none. */
uint32_t shore__cache_pages_find(const struct shore__cache_pages *p, const struct shore__cache_key *key, uint32_t part);
/* The page that there is, or a new one; SHORE__NO_PAGE: all are taken. */
uint32_t shore__cache_pages_take(struct shore__cache_pages *p, const struct shore__cache_key *key, uint32_t part);
/* All pages of a key, or of all keys that differ in what it says SHORE__CACHE_ANY for. Returns how many. Looks at each
 * page of the cache. */
uint32_t shore__cache_pages_free(struct shore__cache_pages *p, const struct shore__cache_key *key);

#endif
