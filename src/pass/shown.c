#include "pass/shown.h"

#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"

#define NO_PAGE UINT32_MAX

/* A buffer of the device; or, of memory that it sees, the page that is in use. */
struct slot {
    shore__buf buffer;
    shore__buf shown;         /* where the page is seen */
    uint32_t page;            /* or NO_PAGE */
    uint64_t step;            /* of which */
    bool in_use;              /* the host's page is */
    struct shore__event put;  /* until then it is; of no stream: it is over */
    struct shore__event read; /* until then the buffer is read; of no stream: it was not */
};

struct pool {
    struct slot slot[SHORE__SHOWN_BUFFERS];
    uint32_t nslots, current; /* current: what was got last */
};

struct shore__shown {
    struct shore_pages *pages;
    struct shore__compute *c;
    struct shore__stream *computing, *copying; /* copying: NULL where the device's memory is the host's */
    const struct shore__memory *memory;
    uint32_t npools;
    struct pool *pools;
};

int shore__shown_open(struct shore_pages *pages, struct shore__compute *c, struct shore__stream *stream,
                      const struct shore__memory *memory, const struct shore__shown_pool *pools, uint32_t npools,
                      struct shore__shown **out, struct shore_diag *diag) {
    struct shore__shown *s = calloc(1, sizeof *s);
    if (s) s->pools = calloc(npools, sizeof *s->pools);
    if (!s || !s->pools) {
        free(s);
        return shore__fail(diag, -ENOMEM, "out of memory for the parameter pages");
    }
    s->c = c;
    s->computing = stream;
    s->memory = memory;
    s->npools = npools;
    for (uint32_t i = 0; i < npools; i++) {
        struct pool *pool = &s->pools[i];
        for (uint32_t b = 0; b < SHORE__SHOWN_BUFFERS; b++) {
            pool->slot[b] = (struct slot){.buffer = pools[i].buffer[b], .page = NO_PAGE};
            if (b == 0 || !shore__buf_is_none(pools[i].buffer[b])) pool->nslots++;
        }
    }
    int rc = c->unified ? 0 : c->ops->stream_open(c, &s->copying, diag);
    if (rc) {
        free(s->pools);
        free(s);
        return rc;
    }
    s->pages = pages;
    *out = s;
    return 0;
}

void shore__shown_close(struct shore__shown *s) {
    if (!s) return;
    shore__shown_release_all(s);
    if (s->copying) {
        shore__sync(s->c, s->computing, NULL); /* which follows the other */
        s->c->ops->stream_close(s->c, s->copying);
    }
    free(s->pools);
    free(s);
}

/* ---- slots ---------------------------------------------------------------------------------------------------------
 */

static bool is_copy(const struct slot *slot) {
    return !shore__buf_is_none(slot->buffer) && slot->shown.handle == slot->buffer.handle;
}

/* Waits until the device has the page, which the host may then do with what it likes. What fails on the stream is said
 * to who uses it next. */
static void end_put(struct shore__shown *s, struct slot *slot) {
    if (!slot->in_use) return;
    if (slot->put.stream) s->c->ops->wait(s->c, slot->put, NULL);
    slot->put.stream = NULL;
    shore_pages_release(s->pages, slot->page);
    slot->in_use = false;
    if (!is_copy(slot)) slot->page = NO_PAGE;
}

/* What has been called until here reads it, and nothing else will. */
static void leave(struct shore__shown *s, struct slot *slot) {
    if (is_copy(slot)) slot->read = s->c->ops->record(s->c, s->computing);
}

static void drop(struct shore__shown *s, struct slot *slot) {
    end_put(s, slot);
    leave(s, slot);
    slot->page = NO_PAGE;
}

static int put(struct shore__shown *s, struct slot *slot, const void *host, uint64_t bytes, struct shore_diag *diag) {
    slot->shown = slot->buffer;
    int rc = slot->read.stream ? s->c->ops->follow(s->c, s->copying, slot->read) : 0;
    if (!rc) rc = s->c->ops->put(s->c, s->copying, slot->buffer, host, bytes);
    if (rc) return shore__fail(diag, rc, "parameters cannot be put: %s", shore_error_text(rc));
    slot->put = s->c->ops->record(s->c, s->copying);
    return 0;
}

static int fill(struct shore__shown *s, struct slot *slot, uint32_t page, uint64_t bytes, struct shore_diag *diag) {
    const void *host;
    end_put(s, slot);
    slot->page = NO_PAGE;
    int rc = shore_pages_get(s->pages, page, &host, diag);
    if (rc) return rc;
    slot->page = page;
    slot->step = shore__pages_step(s->pages);
    slot->in_use = true;
    slot->shown = shore__memory_seen(s->memory, host);
    if (!shore__buf_is_none(slot->shown) || !bytes) return 0;
    rc = put(s, slot, host, bytes, diag);
    if (rc) drop(s, slot);
    return rc;
}

static struct slot *slot_of(struct pool *pool, uint32_t page) {
    for (uint32_t i = 0; i < pool->nslots; i++)
        if (pool->slot[i].page == page) return &pool->slot[i];
    return NULL;
}

/* Of a page as it is in the step; one of an earlier step nobody reads any more. */
static struct slot *find(struct shore__shown *s, struct pool *pool, uint32_t page) {
    struct slot *slot = slot_of(pool, page);
    if (!slot || slot->step == shore__pages_step(s->pages)) return slot;
    drop(s, slot);
    return NULL;
}

/* The one that is not read. */
static struct slot *other_slot(struct pool *pool) {
    return &pool->slot[pool->nslots > 1 ? 1 - pool->current : 0];
}

/* ---- pages ---------------------------------------------------------------------------------------------------------
 */

int shore__shown_get(struct shore__shown *s, uint32_t number, uint32_t page, uint64_t bytes, shore__buf *out,
                     struct shore_diag *diag) {
    struct pool *pool = &s->pools[number];
    struct slot *slot = find(s, pool, page);
    leave(s, &pool->slot[pool->current]);
    for (uint32_t i = 0; i < pool->nslots; i++)
        if (&pool->slot[i] != slot) end_put(s, &pool->slot[i]);
    if (!slot) {
        slot = other_slot(pool);
        int rc = fill(s, slot, page, bytes, diag);
        if (rc) return rc;
    }
    pool->current = (uint32_t)(slot - pool->slot);
    *out = slot->shown;
    int rc = slot->put.stream ? s->c->ops->follow(s->c, s->computing, slot->put) : 0;
    return rc ? shore__fail(diag, rc, "parameters cannot be put: %s", shore_error_text(rc)) : 0;
}

void shore__shown_want(struct shore__shown *s, uint32_t number, uint32_t page, uint64_t bytes) {
    struct pool *pool = &s->pools[number];
    if (find(s, pool, page) || shore_pages_want(s->pages, page) != SHORE_PAGE_THERE) return;
    if (pool->nslots > 1) fill(s, other_slot(pool), page, bytes, NULL);
}

void shore__shown_release(struct shore__shown *s, uint32_t number, uint32_t page) {
    struct slot *slot = slot_of(&s->pools[number], page);
    if (slot) drop(s, slot);
}

void shore__shown_release_all(struct shore__shown *s) {
    for (uint32_t i = 0; i < s->npools; i++)
        for (uint32_t b = 0; b < s->pools[i].nslots; b++)
            if (s->pools[i].slot[b].page != NO_PAGE) drop(s, &s->pools[i].slot[b]);
}
