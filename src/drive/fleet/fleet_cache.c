#include "drive/fleet/fleet_cache.h"

#include <errno.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/diag.h"
#include "drive/address.h"
#include "drive/fleet/fleet.h"
#include "drive/local/cache_pages.h"

struct shore__fleet_cache {
    struct shore_fleet *fleet;
    uint64_t bytes, pages;
    uint64_t upto[]; /* by drive: pages of this drive and of those before it */
};

uint64_t shore__fleet_cache_memory_bytes(const struct shore_fleet_options *o, uint64_t bytes, uint32_t page_bytes) {
    uint64_t tables = 0, pages = bytes / page_bytes, memory = 0;
    for (uint32_t d = 0; d < o->ndrives; d++) { /* enough however the drives share the pages */
        const struct shore__kind *kind = shore__kind_of(o->drives[d]);
        if (kind->id == SHORE__KIND_RAM) memory = pages * page_bytes;
        if (kind->id == SHORE__KIND_RAM || kind->has_file) tables++;
    }
    if (!tables) return 0;
    return memory + 2 * shore__cache_pages_bytes((uint32_t)pages) + (tables - 1) * 2 * SHORE__ARENA_ALIGN;
}

static uint64_t pages_of(const struct shore__fleet_cache *c, uint32_t d) {
    return c->upto[d] - (d ? c->upto[d - 1] : 0);
}

/* Shares the pages as the state is shared, by segments; equally if no drive has any. */
static void share(struct shore__fleet_cache *c, uint64_t pages) {
    const struct shore_fleet *f = c->fleet;
    uint64_t segments = 0, through = 0;
    for (uint32_t d = 0; d < f->ndrives; d++)
        segments += f->drives[d]->desc->segments;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        through += segments ? f->drives[d]->desc->segments : 1;
        c->upto[d] = (uint64_t)((unsigned __int128)pages * through / (segments ? segments : f->ndrives));
    }
    c->pages = pages;
}

static int ask(struct shore__fleet_cache *c, uint32_t d, const struct shore__call *call, struct shore_diag *diag) {
    struct shore__drive *drive = c->fleet->drives[d];
    struct shore_wait wait;
    shore_wait_init(&wait);
    int rc = drive->ops->call(drive, call, shore_wait_completion(&wait));
    if (rc)
        return shore__fail(diag, rc, "%s: refuses %s: %s", drive->path, shore__function(call->function)->name,
                           shore_error_text(rc));
    return shore_wait(&wait, diag);
}

int shore__fleet_cache_open(struct shore_fleet *f, uint64_t bytes, uint32_t page_bytes, struct shore__fleet_cache **out,
                            struct shore_diag *diag) {
    *out = NULL;
    uint64_t pages = page_bytes ? bytes / page_bytes : 0;
    if (!pages)
        return shore__fail(diag, -EINVAL, "a cache of %llu bytes is smaller than a page of %u",
                           (unsigned long long)bytes, page_bytes);
    struct shore__fleet_cache *c = calloc(1, sizeof *c + f->ndrives * sizeof c->upto[0]);
    if (!c) return shore__fail(diag, -ENOMEM, "out of memory");
    c->fleet = f;
    c->bytes = pages * page_bytes;
    share(c, pages);
    for (uint32_t d = 0; d < f->ndrives; d++) {
        struct shore__call call = {
            .function = SHORE__CACHE_OPEN, .start = page_bytes, .bytes = pages_of(c, d) * page_bytes};
        int rc = pages_of(c, d) ? ask(c, d, &call, diag) : 0;
        if (!rc) continue;
        for (; d < f->ndrives; d++) /* the drives that were not opened get no pages: nothing to close */
            c->upto[d] = d ? c->upto[d - 1] : 0;
        shore__fleet_cache_close(c, NULL);
        return rc;
    }
    *out = c;
    return 0;
}

uint64_t shore__fleet_cache_bytes(const struct shore__fleet_cache *c) {
    return c->bytes;
}

uint32_t shore__fleet_cache_drive(const struct shore__fleet_cache *c, const struct shore__cache_key *key) {
    uint64_t at = (uint64_t)((unsigned __int128)shore__cache_key_hash(key) * c->pages >> 64);
    uint32_t d = 0;
    while (c->upto[d] <= at)
        d++;
    return d;
}

static int move(struct shore__fleet_cache *c, const struct shore__call *call, struct shore_completion done) {
    uint32_t d = shore__fleet_cache_drive(c, &call->key);
    struct shore__drive *drive = c->fleet->drives[d];
    int rc = drive->ops->call(drive, call, done);
    if (!rc) shore__link_count(c->fleet, d, shore__function(call->function)->link, shore__call_bytes(call));
    return rc;
}

int shore__fleet_cache_put(struct shore__fleet_cache *c, const struct shore__cache_key *key, uint64_t start,
                           uint64_t bytes, const void *src, struct shore_completion done) {
    struct shore__call call = {.function = SHORE__CACHE_PUT, .key = *key, .start = start, .bytes = bytes, .in = src};
    return move(c, &call, done);
}

int shore__fleet_cache_get(struct shore__fleet_cache *c, const struct shore__cache_key *key, uint64_t start,
                           uint64_t bytes, void *dst, struct shore_completion done) {
    struct shore__call call = {.function = SHORE__CACHE_GET, .key = *key, .start = start, .bytes = bytes, .out = dst};
    return move(c, &call, done);
}

/* Calls every drive that has pages, or one alone. Returns the first error. */
static int ask_all(struct shore__fleet_cache *c, const struct shore__call *call, const uint32_t *alone,
                   struct shore_diag *diag) {
    int rc = 0;
    for (uint32_t d = 0; d < c->fleet->ndrives; d++) {
        if (!pages_of(c, d) || (alone && d != *alone)) continue;
        int one = ask(c, d, call, rc ? NULL : diag);
        if (!rc) rc = one;
    }
    return rc;
}

int shore__fleet_cache_free(struct shore__fleet_cache *c, const struct shore__cache_key *key, struct shore_diag *diag) {
    struct shore__call call = {.function = SHORE__CACHE_FREE, .key = *key};
    bool all = key->layer == SHORE__CACHE_ANY || key->head == SHORE__CACHE_ANY;
    uint32_t d = shore__fleet_cache_drive(c, key);
    return ask_all(c, &call, all ? NULL : &d, diag);
}

int shore__fleet_cache_close(struct shore__fleet_cache *c, struct shore_diag *diag) {
    struct shore__call call = {.function = SHORE__CACHE_CLOSE};
    int rc = ask_all(c, &call, NULL, diag);
    free(c);
    return rc;
}
