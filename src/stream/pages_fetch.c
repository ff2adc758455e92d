/* Fetches, lends and releases pages. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/diag.h"
#include "number/bf16.h"
#include "stream/pages_impl.h"

void shore_pages_set_step(struct shore_pages *p, uint64_t step) {
    p->step = step;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static void leave(struct page *page) {
    assert(!page->users && page->buffer->holds == page);
    if (page->loading) shore_wait(&page->load, NULL);
    page->loading = false;
    page->step = SHORE__NO_STEP;
    page->at = NULL;
    page->buffer->holds = NULL;
    page->buffer->used = 0;
    page->buffer = NULL;
}

static bool is_coming(struct page *page) {
    return page->loading && !shore_wait_is_done(&page->load);
}

/* Takes a free buffer of the page's pool, or the least recently requested one. ahead: only without waiting. */
static bool take_buffer(struct shore_pages *p, struct page *page, bool ahead) {
    const struct pool *pool = &p->pools[page->pool];
    struct buffer *chosen = NULL;
    for (uint32_t i = 0; i < pool->nbuffers; i++) {
        struct buffer *b = &pool->buffers[i];
        if (b->holds && (b->holds->users || (ahead && is_coming(b->holds)))) continue;
        if (!chosen || b->used < chosen->used) chosen = b;
    }
    if (!chosen) return false;
    if (chosen->holds) leave(chosen->holds);
    assert(!chosen->holds && !page->buffer);
    chosen->holds = page;
    chosen->used = ++p->clock;
    page->buffer = chosen;
    page->at = chosen->at;
    return true;
}

/* ---- fetching ---------------------------------------------------------------------------------------------------- */

/* Ends the update of the page, and of others that have touched it. */
static int end_updates(struct shore_pages *p, struct page *page, bool ahead, bool *pending, struct shore_diag *diag) {
    int rc = shore__page_end_update(p, page, ahead, pending, diag);
    for (uint32_t i = 0; page->shares && !rc && !*pending && i < p->npages; i++) {
        struct page *other = &p->pages[i];
        if (other != page && other->updating && page_meets(page, other->block, other->from, other->to))
            rc = shore__page_end_update(p, other, ahead, pending, diag);
    }
    return rc;
}

int shore__pages_await(struct shore_pages *p, uint32_t page, uint64_t *step, struct shore_diag *diag) {
    bool pending;
    *step = p->step;
    return end_updates(p, &p->pages[page], false, &pending, diag);
}

static int load(struct shore_pages *p, struct page *page, struct shore_diag *diag) {
    int rc = 0;
    assert(page->at && !page->users && !page->loading && !page->updating);
    shore_wait_init(&page->load);
    if (p->reader)
        shore__reader_begin(p->reader, page);
    else
        rc = shore_fleet_fetch(p->fleet, p->step, page->block, page->segment, page->count, page->kind, page->at,
                               shore_wait_completion(&page->load));
    page->loading = !rc;
    page->step = rc ? SHORE__NO_STEP : p->step;
    return rc ? shore__fail(diag, rc, "parameters cannot be fetched: %s", shore_error_text(rc)) : 0;
}

/* Makes sure that the page is there or on its way. ahead: only without waiting. */
static int start(struct shore_pages *p, struct page *page, bool ahead, struct shore_diag *diag) {
    bool pending;
    if (page->loading && page->step == p->step) return 0;
    int rc = end_updates(p, page, ahead, &pending, diag);
    if (rc || pending) return rc;
    if (page->loading || (page->at && page->step == p->step)) return 0;
    assert(!page->users);
    if (!page->at && !take_buffer(p, page, ahead))
        return ahead ? 0 : shore__fail(diag, -EBUSY, "all buffers for this page are in use");
    return load(p, page, diag);
}

static bool is_there(const struct shore_pages *p, const struct page *page) {
    return !page->count || (page->at && !page->loading && page->step == p->step);
}

enum shore_page_state shore_pages_want(struct shore_pages *p, uint32_t number) {
    if (number >= p->npages) return SHORE_PAGE_LATER;
    struct page *page = &p->pages[number];
    if (!is_there(p, page) && !page->users) start(p, page, true, NULL);
    if (is_there(p, page)) return SHORE_PAGE_THERE;
    if (!page->loading || page->step != p->step) return SHORE_PAGE_LATER;
    return is_coming(page) ? SHORE_PAGE_COMING : SHORE_PAGE_THERE;
}

int shore_pages_get(struct shore_pages *p, uint32_t number, const void **out, struct shore_diag *diag) {
    if (number >= p->npages) return shore__fail(diag, -EINVAL, "there is no page %u", number);
    struct page *page = &p->pages[number];
    for (unsigned tries = 0; !is_there(p, page); tries++) { /* again, if it was fetched for an earlier step */
        assert(tries < 2);
        if (page->users)
            return shore__fail(diag, -EBUSY, "page %u is in use, with the parameters of another step", number);
        int rc = start(p, page, false, diag);
        if (!rc && page->loading) {
            bool asked_for = page->step == p->step; /* otherwise nobody needs what has come, or whether it has */
            rc = shore__fleet_wait(p->fleet, SHORE_LANE_DRIVE_READ, &page->load, diag);
            page->loading = false;
            if (rc) page->step = SHORE__NO_STEP;
            if (!asked_for) rc = 0;
        }
        if (rc) return rc;
    }
    page->users++;
    if (page->buffer) page->buffer->used = ++p->clock;
    *out = page->at;
    return 0;
}

void shore_pages_release(struct shore_pages *p, uint32_t number) {
    if (number < p->npages && p->pages[number].users) p->pages[number].users--;
}

int shore_pages_take(struct shore_pages *p, uint32_t number, float *out, struct shore_diag *diag) {
    const void *at;
    if (number < p->npages && p->pages[number].users)
        return shore__fail(diag, -EBUSY, "page %u is in use, and cannot be taken", number);
    int rc = shore_pages_get(p, number, &at, diag);
    if (rc) return rc;
    struct page *page = &p->pages[number];
    size_t elems = (size_t)page->count * SHORE_SEGMENT_ELEMS;
    page->users--;
    if (elems && page->kind == SHORE_FETCH_MASTER)
        memmove(out, at, elems * sizeof *out);
    else if (elems)
        shore__f32_from_bf16_below(out, at, elems);
    page->step = SHORE__NO_STEP;
    return 0;
}
