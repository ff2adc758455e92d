#include "drive/local/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/units.h"
#include "drive/lane.h"
#include "drive/local/cache_pages.h"
#include "storage/cache_file.h"
#include "storage/hash.h"

#define DEPTH 32u /* pages under way */

struct cache_job {
    struct shore__job job;
    struct shore__call call;
    struct shore_completion done;
};

struct shore__cache {
    const char *volume;
    const uint64_t *fleet_id;
    const struct shore__drive_config *config;
    pthread_mutex_t start; /* guards starting the lane */
    struct shore__lane lane;
    /* used by the lane */
    struct shore__cache_pages pages;
    void *taken; /* memory that an arena does not take back; the next cache reuses it */
    uint64_t taken_bytes;
    void *table;           /* page table; NULL: no cache is open */
    unsigned char *memory; /* instead of a file */
    struct shore__file file;
    struct shore__io *queue;
    size_t page_bytes;
};

static const char *name_of(const struct shore__cache *c) {
    return c->volume ? c->volume : "ram:";
}

static void close_cache(struct shore__cache *c) {
    shore__io_close(c->queue);
    shore__cache_file_remove(&c->file);
    c->queue = NULL;
    c->table = NULL;
    c->memory = NULL;
    if (c->config->arena) return;
    shore__arena_free(NULL, c->taken);
    c->taken = NULL;
    c->taken_bytes = 0;
}

/* Takes memory from the drive's arena, if it has one: whoever opens a cache there has planned for it. */
static int take_memory(struct shore__cache *c, uint64_t table_bytes, uint64_t bytes, struct shore_diag *diag) {
    struct shore_arena *arena = c->config->arena;
    if (bytes > c->taken_bytes) {
        void *taken = shore__arena_alloc(arena, bytes);
        if (!taken) {
            char needs[32], has[32];
            shore__format_size_up(bytes, needs, sizeof needs);
            return arena ? shore__fail(diag, SHORE_EBUDGET, "%s: its cache needs %s of memory, and %s is free",
                                       name_of(c), needs, shore__format_size(shore__arena_left(arena), has, sizeof has))
                         : shore__fail(diag, -ENOMEM, "%s: out of memory for a cache", name_of(c));
        }
        c->taken = taken;
        c->taken_bytes = bytes;
    }
    c->table = c->taken;
    if (!c->volume) c->memory = (unsigned char *)c->taken + shore__arena_round(table_bytes);
    return 0;
}

static int open_cache(struct shore__cache *c, const struct shore__call *call, struct shore_diag *diag) {
    uint64_t pages = call->bytes / call->start;
    if (c->table) return shore__fail(diag, SHORE_EBUSY, "%s: its cache is open already", name_of(c));
    if (pages == 0 || pages >= SHORE__NO_PAGE)
        return shore__fail(diag, -EINVAL, "%s: a cache cannot have %llu pages", name_of(c), (unsigned long long)pages);
    c->page_bytes = call->start;
    uint64_t table_bytes = shore__cache_pages_bytes((uint32_t)pages), most = c->config->cache_memory_bytes;
    uint64_t bytes = shore__arena_round(table_bytes) + (c->volume ? 0 : pages * c->page_bytes);
    if (most && bytes > most) {
        char needs[32], has[32];
        return shore__fail(diag, SHORE_EBUDGET, "%s: a cache of %llu pages needs %s of memory, and %s is free",
                           name_of(c), (unsigned long long)pages, shore__format_size_up(bytes, needs, sizeof needs),
                           shore__format_size(most, has, sizeof has));
    }
    int rc = take_memory(c, table_bytes, bytes, diag);
    if (!rc) shore__cache_pages_init(&c->pages, c->table, (uint32_t)pages);
    if (!rc && c->volume)
        rc = shore__cache_file_make(c->volume, c->fleet_id, pages * c->page_bytes, c->config->io, &c->file, diag);
    if (!rc && c->volume) rc = shore__io_open(&c->file, c->config->io, DEPTH, NULL, 0, &c->queue, diag);
    if (rc) close_cache(c);
    return rc;
}

/* The memory of a page of the call. */
static void *buffer_of(const struct shore__cache *c, const struct shore__call *call, uint64_t i) {
    bool put = call->function == SHORE__CACHE_PUT;
    return (unsigned char *)(uintptr_t)(put ? call->in : call->out) + i * c->page_bytes;
}

/* Transfers n pages at once. */
static int transfer(struct shore__cache *c, bool put, const uint32_t *page, void *const *buffer, unsigned n,
                    struct shore_diag *diag) {
    struct shore__io_op ops[DEPTH], *done[DEPTH];
    int rc = 0;
    for (unsigned i = 0; i < n; i++) {
        uint64_t offset = (uint64_t)page[i] * c->page_bytes;
        if (c->memory) {
            unsigned char *stored = c->memory + offset;
            memcpy(put ? (void *)stored : buffer[i], put ? buffer[i] : (void *)stored, c->page_bytes);
            continue;
        }
        ops[i] = (struct shore__io_op){.kind = put ? SHORE__IO_WRITE : SHORE__IO_READ,
                                       .buffer = buffer[i],
                                       .offset = SHORE__CACHE_FILE_HEAD + offset,
                                       .bytes = (uint32_t)c->page_bytes};
        int refused = shore__io_submit(c->queue, &ops[i]); /* the thread owns requests under way, and their code */
        if (!refused) continue;
        ops[i].rc = refused;
        if (!rc) rc = shore__io_explain(c->file.path, &ops[i], diag);
    }
    while (c->queue && shore__io_in_flight(c->queue))
        for (unsigned i = shore__io_reap(c->queue, done, DEPTH, 1); i--;)
            if (done[i]->rc && !rc) rc = shore__io_explain(c->file.path, done[i], diag);
    return rc;
}

/* Seals a page that is put, or checks one that was fetched. */
static int seal(struct shore__cache *c, bool put, uint32_t page, const void *buffer, struct shore_diag *diag) {
    unsigned char found[16];
    shore__hash128(buffer, c->page_bytes, page, found);
    if (put) memcpy(c->pages.page[page].seal, found, 16);
    if (put || memcmp(c->pages.page[page].seal, found, 16) == 0) return 0;
    return shore__fail(diag, SHORE_ECORRUPT, "%s: page %u of its cache does not match its checksum; check the drive",
                       name_of(c), page);
}

static int move(struct shore__cache *c, const struct shore__call *call, struct shore_diag *diag) {
    bool put = call->function == SHORE__CACHE_PUT;
    uint64_t first = call->start / c->page_bytes, n = call->bytes / c->page_bytes;
    if (call->start % c->page_bytes || call->bytes % c->page_bytes || first + n > SHORE__NO_PAGE)
        return shore__fail(diag, -EINVAL, "%s: its cache moves whole pages of %zu bytes", name_of(c), c->page_bytes);
    int rc = 0;
    for (uint64_t at = 0; at < n && !rc; at += DEPTH) {
        unsigned count = n - at < DEPTH ? (unsigned)(n - at) : DEPTH;
        uint32_t page[DEPTH];
        void *buffer[DEPTH];
        for (unsigned i = 0; i < count; i++) {
            uint32_t part = (uint32_t)(first + at + i);
            page[i] = put ? shore__cache_pages_take(&c->pages, &call->key, part)
                          : shore__cache_pages_find(&c->pages, &call->key, part);
            buffer[i] = buffer_of(c, call, at + i);
            if (page[i] == SHORE__NO_PAGE)
                return put ? shore__fail(diag, -ENOSPC, "%s: its cache of %u pages is full", name_of(c), c->pages.count)
                           : shore__fail(diag, SHORE_EMISSING, "%s: its cache has no such page", name_of(c));
            if (put) seal(c, true, page[i], buffer[i], diag);
        }
        rc = transfer(c, put, page, buffer, count, diag);
        for (unsigned i = 0; i < count && !put && !rc; i++)
            rc = seal(c, false, page[i], buffer[i], diag);
    }
    return rc;
}

static int run(struct shore__cache *c, const struct shore__call *call, struct shore_diag *diag) {
    if (call->function == SHORE__CACHE_OPEN) return open_cache(c, call, diag);
    if (!c->table) return shore__fail(diag, SHORE_EMISSING, "%s: its cache is not open", name_of(c));
    if (call->function == SHORE__CACHE_FREE)
        shore__cache_pages_free(&c->pages, &call->key);
    else if (call->function == SHORE__CACHE_CLOSE)
        close_cache(c);
    else
        return move(c, call, diag);
    return 0;
}

static void *cache_lane(void *ctx) {
    struct shore__cache *c = ctx;
    struct shore__job *next;
    while ((next = shore__lane_pop(&c->lane, true))) {
        struct cache_job *job = (struct cache_job *)next;
        struct shore_diag diag = {0};
        int rc = run(c, &job->call, &diag);
        struct shore_completion done = job->done;
        free(job);
        done.fn(done.ctx, rc, rc ? &diag : NULL);
        shore__lane_finished(&c->lane);
    }
    return NULL;
}

int shore__cache_new(const char *volume, const uint64_t fleet_id[2], const struct shore__drive_config *config,
                     struct shore__cache **out) {
    struct shore__cache *c = *out = calloc(1, sizeof *c);
    if (!c) return -ENOMEM;
    c->volume = volume;
    c->fleet_id = fleet_id;
    c->config = config;
    c->file.fd = -1;
    pthread_mutex_init(&c->start, NULL);
    return 0;
}

int shore__cache_call(struct shore__cache *c, const struct shore__call *call, struct shore_completion done) {
    pthread_mutex_lock(&c->start);
    int rc = c->lane.started ? 0 : shore__lane_start(&c->lane, "shore-cache", cache_lane, c);
    pthread_mutex_unlock(&c->start);
    struct cache_job *job = rc ? NULL : calloc(1, sizeof *job);
    if (!job) return rc ? rc : -ENOMEM;
    job->call = *call;
    job->done = done;
    shore__lane_push(&c->lane, &job->job);
    return 0;
}

void shore__cache_forked(struct shore__cache *c) {
    if (!c || !c->queue) return;
    shore__io_forked(c->queue);
    shore__file_forked(&c->file);
}

void shore__cache_free(struct shore__cache *c) {
    if (!c) return;
    shore__lane_stop(&c->lane);
    close_cache(c);
    pthread_mutex_destroy(&c->start);
    free(c);
}
