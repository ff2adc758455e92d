/* Copies of pages on a device: the buffers of a pool there take turns.
 *
 *     host      fetch l + 1            fetch l + 2
 *     copying              put l + 1              put l + 2     follows the last readers of the buffer
 *     computing      layer l                layer l + 1         follows the put
 *
 * A buffer, of one page at a time:
 *
 *     empty ──want, get: put──► filled ──get──► given ──leave──► filled ──► empty: another takes its turn
 *                                                 └────────release────────────┘
 *
 * The host's page is in use until it has been put. `putting` lists the pages whose put may still be under way, in
 * stream order. Each request for a page checks them, and waits where a page has to be free. Without buffers, the host's
 * page itself is filled and given.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/events.h"
#include "base/sized.h"
#include "stream/pages_impl.h"
#include "stream/staging.h"

#define NO_PAGE UINT32_MAX

/* A stream that computes with a slot's page: the next put follows what was called on it before the page was left. */
struct reader {
    void *stream;
    struct shore_event last;
};

struct slot {
    enum { EMPTY, FILLED, GIVEN } state;
    uint64_t buffer; /* 0: none, the host's page itself */
    const void *host;
    uint32_t page;          /* the page in the slot, or NO_PAGE */
    uint64_t step;          /* the step of that page */
    uint64_t used;          /* clock when it was last asked for */
    struct shore_event put; /* once it has passed, the buffer holds the page */
    struct reader *readers; /* since it was filled last */
    uint32_t nreaders, room;
};

struct turns {
    struct slot *slots;
    uint32_t nslots;
    bool copies, widens;
};

struct putting {
    struct shore_event until; /* first, as a fifo asks */
    uint32_t page;
};

struct shore_shown {
    struct shore_pages *pages;
    struct shore_device *device;
    void *copying;
    uint64_t clock;
    uint32_t npools, nslots;
    struct turns *pools;
    struct slot *slots; /* of all pools */
    struct shore__fifo putting;
    struct shore__staging staging;
};

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static int check(const struct shore_shown_options *o, struct shore_diag *diag) {
    for (uint32_t i = 0; i < o->npools; i++)
        if (o->pools[i].widens && !o->device->widen)
            return shore__fail(diag, -EINVAL, "the device cannot widen bf16 to fp32, as pool %u asks for", i);
    return 0;
}

static void lay_out(struct shore_shown *s, const struct shore_shown_pool *pools) {
    struct slot *slot = s->slots;
    for (uint32_t i = 0; i < s->npools; i++) {
        const struct shore_shown_pool *from = &pools[i];
        struct turns *pool = &s->pools[i];
        *pool = (struct turns){slot, from->nbuffers ? from->nbuffers : 1, from->nbuffers > 0, from->widens};
        for (uint32_t b = 0; b < pool->nslots; b++)
            *slot++ = (struct slot){.buffer = pool->copies ? from->buffers[b] : 0, .page = NO_PAGE};
    }
    assert(slot == s->slots + s->nslots);
}

int shore_shown_open(struct shore_pages *pages, const struct shore_shown_options *options, struct shore_shown **out,
                     struct shore_diag *diag) {
    struct shore_shown_options o;
    *out = NULL;
    int rc = shore__sized_in(&o, sizeof o, options, "shore_shown_options", diag);
    struct shore__staging staging = {0};
    if (!rc) rc = check(&o, diag);
    if (!rc) rc = shore__staging_open(&staging, &o, diag);
    if (rc) return rc;
    struct shore_shown *s = calloc(1, sizeof *s);
    if (s) {
        *s = (struct shore_shown){
            .pages = pages, .device = o.device, .copying = o.copying, .npools = o.npools, .staging = staging};
        for (uint32_t i = 0; i < o.npools; i++)
            s->nslots += o.pools[i].nbuffers ? o.pools[i].nbuffers : 1;
        s->pools = calloc(s->npools ? s->npools : 1, sizeof *s->pools);
        s->slots = calloc(s->nslots ? s->nslots : 1, sizeof *s->slots);
    }
    if (!s || !s->pools || !s->slots) {
        shore_shown_close(s);
        return shore__fail(diag, -ENOMEM, "out of memory for the parameter pages");
    }
    lay_out(s, o.pools);
    *out = s;
    return 0;
}

void shore_shown_close(struct shore_shown *s) {
    if (!s) return;
    if (s->pools && s->slots) shore_shown_release_all(s);
    shore__staging_close(&s->staging);
    for (uint32_t i = 0; s->slots && i < s->nslots; i++)
        free(s->slots[i].readers);
    free(s->putting.items);
    free(s->slots);
    free(s->pools);
    free(s);
}

/* ---- pages that are being put ------------------------------------------------------------------------------------ */

/* Waits until the device has the first page of `putting`, so that the host may reuse it. The next call on the stream
 * reports a failure. */
static void end_first(struct shore_shown *s) {
    struct putting first;
    shore__fifo_take(&s->putting, &first, sizeof first);
    assert(s->pages->pages[first.page].users);
    shore_device_wait(s->device, first.until, NULL);
    shore_pages_release(s->pages, first.page);
}

static void end_passed(struct shore_shown *s) {
    while (s->putting.count && shore_device_passed(s->device, shore__fifo_event(&s->putting)))
        end_first(s);
}

/* Ends puts in order, up to the last one of this page. */
static void end_page(struct shore_shown *s, uint32_t page) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->putting.count; i++)
        if (((struct putting *)s->putting.items)[i].page == page) count = i + 1;
    while (count--)
        end_first(s);
}

static void add_putting(struct shore_shown *s, uint32_t page, struct shore_event until) {
    assert(until.stream == s->copying || !until.stream);
    if (s->putting.count > 2 * s->pages->npages) end_first(s); /* a tied table is there twice */
    if (shore__fifo_add(&s->putting, &(struct putting){until, page}, sizeof(struct putting))) return;
    shore_device_wait(s->device, until, NULL); /* out of memory */
    shore_pages_release(s->pages, page);
}

/* Gets a page from the host, after the device has received the pages whose buffers it needs. */
static int get_page(struct shore_shown *s, uint32_t page, const void **host, struct shore_diag *diag) {
    int rc;
    while ((rc = shore_pages_get(s->pages, page, host, diag)) == -EBUSY && s->putting.count)
        end_first(s);
    return rc;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static struct slot *slot_of(struct turns *pool, uint32_t page) {
    for (uint32_t i = 0; i < pool->nslots; i++)
        if (pool->slots[i].state != EMPTY && pool->slots[i].page == page) return &pool->slots[i];
    return NULL;
}

/* Whether the slot's page is a copy, and not the host's own. A page that holds nothing is not copied. */
static bool is_copy(const struct slot *slot) {
    return slot->buffer && slot->host;
}

static int note_reader(struct slot *slot, void *stream) {
    for (uint32_t i = 0; i < slot->nreaders; i++)
        if (slot->readers[i].stream == stream) return 0;
    if (slot->nreaders == slot->room) {
        uint32_t room = slot->room ? 2 * slot->room : 2;
        struct reader *readers = realloc(slot->readers, room * sizeof *readers);
        if (!readers) return -ENOMEM;
        slot->readers = readers;
        slot->room = room;
    }
    slot->readers[slot->nreaders++] = (struct reader){.stream = stream};
    return 0;
}

/* Records that everything called so far reads the slot, and nothing more will. */
static void leave(struct shore_shown *s, struct slot *slot) {
    assert(slot->state == GIVEN && slot->page != NO_PAGE);
    for (uint32_t i = 0; i < slot->nreaders; i++)
        slot->readers[i].last = s->device->record(s->device->ctx, slot->readers[i].stream);
    slot->state = FILLED;
}

static void empty(struct shore_shown *s, struct slot *slot) {
    assert(slot->state == FILLED && slot->page != NO_PAGE);
    if (!is_copy(slot)) shore_pages_release(s->pages, slot->page);
    slot->page = NO_PAGE;
    slot->state = EMPTY;
}

/* Puts the host's page into the slot. Whatever fails, the page stays in use as long as its copy may be under way. What
 * goes through the ring is not in use any more. */
static int put(struct shore_shown *s, const struct turns *pool, struct slot *slot, struct shore_diag *diag) {
    struct shore_device *d = s->device;
    const struct page *page = &s->pages->pages[slot->page];
    size_t bytes = pages_bytes(page->kind, page->count);
    bool widens = pool->widens && page->kind == SHORE_FETCH_BF16;
    uint64_t to = slot->buffer + (widens ? bytes : 0);
    int rc = 0;
    for (uint32_t i = 0; !rc && i < slot->nreaders; i++)
        if (slot->readers[i].last.stream) rc = d->follow(d->ctx, s->copying, slot->readers[i].last);
    if (!rc) slot->nreaders = 0;
    bool staged = shore__staging_takes(&s->staging, slot->host, bytes);
    if (!rc && staged) rc = shore__staging_put(&s->staging, to, slot->host, bytes, diag);
    if (!rc && !staged) rc = d->put(d->ctx, s->copying, to, slot->host, bytes);
    bool under_way = !rc && !staged;
    if (!rc && widens) rc = d->widen(d->ctx, s->copying, slot->buffer, to, bytes / 2);
    slot->put = d->record(d->ctx, s->copying);
    if (under_way)
        add_putting(s, slot->page, slot->put);
    else
        shore_pages_release(s->pages, slot->page);
    if (!rc || rc == -ETIMEDOUT) return rc; /* the ring has said that the device is lost */
    return shore__fail(diag, rc, "parameters cannot be put on the device: %s", shore_error_text(rc));
}

static int fill(struct shore_shown *s, struct turns *pool, struct slot *slot, uint32_t page, struct shore_diag *diag) {
    assert(slot->state != GIVEN && !slot_of(pool, page));
    if (slot->state == FILLED) empty(s, slot);
    int rc = get_page(s, page, &slot->host, diag);
    if (rc) return rc;
    slot->page = page;
    slot->step = s->pages->step;
    if (is_copy(slot)) rc = put(s, pool, slot, diag);
    slot->state = rc ? EMPTY : FILLED;
    return rc;
}

/* Finds the slot of a page in its current step. Nobody computes any more with slots that hold other parameters. */
static struct slot *find(struct shore_shown *s, struct turns *pool, uint32_t page) {
    struct slot *slot = slot_of(pool, page);
    if (!slot) return NULL;
    if (page_is_same(&s->pages->pages[page], slot->step, s->pages->step)) {
        slot->step = s->pages->step;
        return slot;
    }
    if (slot->state == GIVEN) leave(s, slot);
    empty(s, slot);
    return NULL;
}

/* The slot whose turn it is: of those that are not given, the one that was asked for longest ago. NULL: all are. */
static struct slot *next_slot(struct turns *pool) {
    struct slot *next = NULL;
    for (uint32_t i = 0; i < pool->nslots; i++)
        if (pool->slots[i].state != GIVEN && (!next || pool->slots[i].used < next->used)) next = &pool->slots[i];
    return next;
}

/* Whether a put into the slot begins at once: nobody reads it, and nothing is being put. */
static bool is_idle(struct shore_shown *s, const struct slot *slot) {
    for (uint32_t i = 0; i < slot->nreaders; i++)
        if (!shore_device_passed(s->device, slot->readers[i].last)) return false;
    return !s->putting.count && shore__staging_is_free(&s->staging);
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

static bool exists(const struct shore_shown *s, uint32_t pool, uint32_t page) {
    return pool < s->npools && page < s->pages->npages;
}

int shore_shown_get(struct shore_shown *s, uint32_t number, uint32_t page, void *stream, const void **host,
                    uint64_t *there, struct shore_diag *diag) {
    if (!exists(s, number, page)) return shore__fail(diag, -EINVAL, "there is no page %u, or no pool %u", page, number);
    struct turns *pool = &s->pools[number];
    struct shore_device *d = s->device;
    end_passed(s);
    struct slot *slot = find(s, pool, page);
    int rc = 0;
    if (!slot) {
        slot = next_slot(pool);
        if (!slot) return shore__fail(diag, -EBUSY, "all buffers for this page on the device are in use");
        rc = fill(s, pool, slot, page, diag);
        if (rc) return rc;
    }
    assert(slot->state != EMPTY && slot->page == page);
    if (is_copy(slot) && slot->put.stream) rc = d->follow(d->ctx, stream, slot->put);
    if (!rc && is_copy(slot)) rc = note_reader(slot, stream);
    if (rc) return shore__fail(diag, rc, "parameters cannot be put on the device: %s", shore_error_text(rc));
    slot->state = GIVEN;
    slot->used = ++s->clock;
    *host = slot->host;
    *there = is_copy(slot) ? slot->buffer : 0;
    return 0;
}

void shore_shown_want(struct shore_shown *s, uint32_t number, uint32_t page) {
    if (!exists(s, number, page)) return;
    struct turns *pool = &s->pools[number];
    end_passed(s);
    if (find(s, pool, page) || shore_pages_want(s->pages, page) != SHORE_PAGE_THERE) return;
    struct slot *slot = pool->copies ? next_slot(pool) : NULL;
    if (slot && s->staging.ring && !is_idle(s, slot)) slot = NULL; /* the ring would wait for what comes before */
    if (slot && !fill(s, pool, slot, page, NULL)) slot->used = ++s->clock;
}

void shore_shown_leave(struct shore_shown *s, uint32_t number, uint32_t page) {
    if (!exists(s, number, page)) return;
    struct slot *slot = slot_of(&s->pools[number], page);
    if (slot && slot->state == GIVEN) leave(s, slot);
}

void shore_shown_release(struct shore_shown *s, uint32_t number, uint32_t page) {
    if (!exists(s, number, page)) return;
    shore_shown_leave(s, number, page);
    struct slot *slot = slot_of(&s->pools[number], page);
    if (slot) empty(s, slot);
    end_page(s, page);
}

void shore_shown_settle(struct shore_shown *s) {
    while (s->putting.count)
        end_first(s);
}

void shore_shown_release_all(struct shore_shown *s) {
    for (uint32_t i = 0; i < s->npools; i++)
        for (uint32_t b = 0; b < s->pools[i].nslots; b++)
            if (s->pools[i].slots[b].state != EMPTY) shore_shown_release(s, i, s->pools[i].slots[b].page);
    shore_shown_settle(s);
}
