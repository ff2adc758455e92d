/* Copies of pages on a device: the buffers of a pool there take turns.
 *
 *     host      fetch l + 1            fetch l + 2
 *     copying              put l + 1              put l + 2     follows the last reader of the buffer
 *     computing      layer l                layer l + 1         follows the put
 *
 * A buffer, of one page at a time:
 *
 *     empty ──want, get: put──► filled ──get──► given ──get: of another──► filled ──► empty: another takes its turn
 *                                                 └──────────────release──────────────────┘
 *
 * The host's page is in use until it has been put. `putting` lists the pages whose put may still be under way, in
 * stream order. Each request for a page checks them, and waits where a page has to be free. Without buffers, the host's
 * page itself is filled and given.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/sized.h"
#include "longshore/device.h"
#include "stream/pages_impl.h"

#define NO_PAGE UINT32_MAX

struct slot {
    enum { EMPTY, FILLED, GIVEN } state;
    uint64_t buffer; /* 0: none, the host's page itself */
    const void *host;
    uint32_t page;           /* the page in the slot, or NO_PAGE */
    uint64_t step;           /* the step of that page */
    struct shore_event put;  /* once it has passed, the buffer holds the page */
    struct shore_event read; /* once it has passed, nobody reads the previous page */
};

struct turns {
    struct slot slot[SHORE_SHOWN_BUFFERS];
    uint32_t nslots, current; /* current: the slot given last */
};

struct putting {
    uint32_t page;
    struct shore_event until;
};

struct shore_shown {
    struct shore_pages *pages;
    struct shore_device *device;
    void *computing, *copying;
    uint32_t npools;
    struct turns *pools;
    struct putting *putting; /* a ring with room for more than a pass puts */
    uint32_t nring, first, nputting;
};

int shore_shown_open(struct shore_pages *pages, const struct shore_shown_options *options, struct shore_shown **out,
                     struct shore_diag *diag) {
    struct shore_shown_options o;
    *out = NULL;
    int rc = shore__sized_in(&o, sizeof o, options, "shore_shown_options", diag);
    if (rc) return rc;
    struct shore_shown *s = calloc(1, sizeof *s);
    if (s) s->pools = calloc(o.npools ? o.npools : 1, sizeof *s->pools);
    if (s) s->nring = 2 * pages->npages + 1; /* a tied table is there twice */
    if (s) s->putting = calloc(s->nring, sizeof *s->putting);
    if (!s || !s->pools || !s->putting) {
        shore_shown_close(s);
        return shore__fail(diag, -ENOMEM, "out of memory for the parameter pages");
    }
    s->pages = pages;
    s->device = o.device;
    s->computing = o.computing;
    s->copying = o.copying;
    s->npools = o.npools;
    for (uint32_t i = 0; i < s->npools; i++)
        for (uint32_t b = 0; b < SHORE_SHOWN_BUFFERS; b++) {
            s->pools[i].slot[b] = (struct slot){.buffer = o.pools[i].buffer[b], .page = NO_PAGE};
            if (b == 0 || o.pools[i].buffer[b]) s->pools[i].nslots++;
        }
    *out = s;
    return 0;
}

void shore_shown_close(struct shore_shown *s) {
    if (!s) return;
    shore_shown_release_all(s);
    free(s->putting);
    free(s->pools);
    free(s);
}

/* ---- pages that are being put --------------------------------------------------------------------------------------
 */

static struct putting *putting_at(const struct shore_shown *s, uint32_t i) {
    assert(s->nring);
    return &s->putting[(s->first + i) % s->nring];
}

/* Waits until the device has the first page in the ring, so that the host may reuse it. The next call on the stream
 * reports a failure. */
static void end_first(struct shore_shown *s) {
    struct putting *first = putting_at(s, 0);
    assert(s->nputting && s->pages->pages[first->page].users);
    shore_device_wait(s->device, first->until, NULL);
    shore_pages_release(s->pages, first->page);
    s->first = (s->first + 1) % s->nring;
    s->nputting--;
}

static void end_passed(struct shore_shown *s) {
    while (s->nputting && shore_device_passed(s->device, putting_at(s, 0)->until))
        end_first(s);
}

/* Ends puts in order, up to the last one of this page. */
static void end_page(struct shore_shown *s, uint32_t page) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->nputting; i++)
        if (putting_at(s, i)->page == page) count = i + 1;
    while (count--)
        end_first(s);
}

static void add_putting(struct shore_shown *s, uint32_t page, struct shore_event until) {
    assert(until.stream == s->copying || !until.stream);
    if (s->nputting == s->nring) end_first(s);
    *putting_at(s, s->nputting++) = (struct putting){page, until};
}

/* Gets a page from the host, after the device has received the pages whose buffers it needs. */
static int get_page(struct shore_shown *s, uint32_t page, const void **host, struct shore_diag *diag) {
    int rc;
    while ((rc = shore_pages_get(s->pages, page, host, diag)) == -EBUSY && s->nputting)
        end_first(s);
    return rc;
}

/* ---- slots ---------------------------------------------------------------------------------------------------------
 */

static struct slot *slot_of(struct turns *pool, uint32_t page) {
    for (uint32_t i = 0; i < pool->nslots; i++)
        if (pool->slot[i].state != EMPTY && pool->slot[i].page == page) return &pool->slot[i];
    return NULL;
}

static bool is_copy(const struct slot *slot) {
    return slot->buffer && slot->host;
}

/* Records that everything called so far reads the slot, and nothing more will. */
static void leave(struct shore_shown *s, struct slot *slot) {
    assert(slot->state == GIVEN && slot->page != NO_PAGE);
    if (is_copy(slot)) slot->read = s->device->record(s->device->ctx, s->computing);
    slot->state = FILLED;
}

static void empty(struct shore_shown *s, struct slot *slot) {
    assert(slot->state == FILLED && slot->page != NO_PAGE);
    if (!is_copy(slot)) shore_pages_release(s->pages, slot->page);
    slot->page = NO_PAGE;
    slot->state = EMPTY;
}

static int put(struct shore_shown *s, struct slot *slot, struct shore_diag *diag) {
    struct shore_device *d = s->device;
    const struct page *page = &s->pages->pages[slot->page];
    int rc = slot->read.stream ? d->follow(d->ctx, s->copying, slot->read) : 0;
    if (!rc) rc = d->put(d->ctx, s->copying, slot->buffer, slot->host, pages_bytes(page->kind, page->count));
    if (rc) return shore__fail(diag, rc, "parameters cannot be put: %s", shore_error_text(rc));
    slot->put = d->record(d->ctx, s->copying);
    add_putting(s, slot->page, slot->put);
    return 0;
}

static int fill(struct shore_shown *s, struct turns *pool, struct slot *slot, uint32_t page, struct shore_diag *diag) {
    assert(slot->state != GIVEN && !slot_of(pool, page));
    if (slot->state == FILLED) empty(s, slot);
    int rc = get_page(s, page, &slot->host, diag);
    if (rc) return rc;
    slot->page = page;
    slot->step = s->pages->step;
    rc = is_copy(slot) ? put(s, slot, diag) : 0;
    slot->state = rc ? EMPTY : FILLED;
    if (rc) shore_pages_release(s->pages, page);
    return rc;
}

/* Finds the slot of a page in its current step. Slots of earlier steps have no readers any more. */
static struct slot *find(struct shore_shown *s, struct turns *pool, uint32_t page) {
    struct slot *slot = slot_of(pool, page);
    if (!slot || slot->step == s->pages->step) return slot;
    if (slot->state == GIVEN) leave(s, slot);
    empty(s, slot);
    return NULL;
}

/* The slot that was not given last; a pool of one has only that one. */
static struct slot *other_slot(struct turns *pool) {
    return &pool->slot[pool->nslots > 1 ? 1 - pool->current : 0];
}

/* ---- pages ---------------------------------------------------------------------------------------------------------
 */

static bool exists(const struct shore_shown *s, uint32_t pool, uint32_t page) {
    return pool < s->npools && page < s->pages->npages;
}

int shore_shown_get(struct shore_shown *s, uint32_t number, uint32_t page, const void **host, uint64_t *there,
                    struct shore_diag *diag) {
    if (!exists(s, number, page)) return shore__fail(diag, -EINVAL, "there is no page %u, or no pool %u", page, number);
    struct turns *pool = &s->pools[number];
    struct shore_device *d = s->device;
    end_passed(s);
    struct slot *slot = find(s, pool, page);
    if (pool->slot[pool->current].state == GIVEN) leave(s, &pool->slot[pool->current]);
    if (!slot) {
        slot = other_slot(pool);
        int rc = fill(s, pool, slot, page, diag);
        if (rc) return rc;
    }
    assert(slot->state == FILLED && slot->page == page);
    slot->state = GIVEN;
    pool->current = (uint32_t)(slot - pool->slot);
    *host = slot->host;
    *there = is_copy(slot) ? slot->buffer : 0;
    int rc = is_copy(slot) && slot->put.stream ? d->follow(d->ctx, s->computing, slot->put) : 0;
    return rc ? shore__fail(diag, rc, "parameters cannot be put: %s", shore_error_text(rc)) : 0;
}

void shore_shown_want(struct shore_shown *s, uint32_t number, uint32_t page) {
    if (!exists(s, number, page)) return;
    struct turns *pool = &s->pools[number];
    end_passed(s);
    if (find(s, pool, page) || shore_pages_want(s->pages, page) != SHORE_PAGE_THERE) return;
    if (pool->nslots > 1) fill(s, pool, other_slot(pool), page, NULL);
}

void shore_shown_release(struct shore_shown *s, uint32_t number, uint32_t page) {
    if (!exists(s, number, page)) return;
    struct slot *slot = slot_of(&s->pools[number], page);
    if (slot && slot->state == GIVEN) leave(s, slot);
    if (slot) empty(s, slot);
    end_page(s, page);
}

void shore_shown_release_all(struct shore_shown *s) {
    for (uint32_t i = 0; i < s->npools; i++)
        for (uint32_t b = 0; b < s->pools[i].nslots; b++)
            if (s->pools[i].slot[b].state != EMPTY) shore_shown_release(s, i, s->pools[i].slot[b].page);
    while (s->nputting)
        end_first(s);
}
