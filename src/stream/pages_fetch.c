/* Fetches, lends and releases pages. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
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

/* Segments that somebody asks for: some spans of a page, or (0) all of it. */
struct asked {
    const struct shore_pages_span *spans;
    uint32_t nspans;
};
static const struct asked whole_page = {NULL, 0};

/* Whether a page that holds, or fetches, parameters of the step has all that is asked for. coming: or fetches it. */
static bool has(const struct page *page, const struct asked *a, bool coming) {
    bool found = a->nspans || !page->partial;
    for (uint32_t i = 0; page->partial && i < a->nspans; i++)
        for (uint32_t s = a->spans[i].segment - page->segment, n = a->spans[i].count; n; s++, n--)
            found &= page->has[s] || (coming && page->has[page->count + s]);
    return found;
}

/* Notes what is to be fetched into a page. adds: to what it holds. */
static int note(struct page *page, const struct asked *a, bool adds) {
    const struct shore_pages_span whole = {page->segment, page->count};
    const struct asked of = a->nspans ? *a : (struct asked){&whole, 1};
    assert(!adds || page->partial);
    page->partial = adds || a->nspans;
    if (!page->partial) return 0;
    if (!page->has) page->has = calloc(page->count, 2 * sizeof *page->has);
    if (!page->has) return -ENOMEM;
    memset(page->has + (adds ? page->count : 0), 0, (adds ? 1 : 2) * page->count * sizeof *page->has);
    for (uint32_t i = 0; i < of.nspans; i++)
        for (uint32_t s = of.spans[i].segment - page->segment, n = of.spans[i].count; n; s++, n--)
            page->has[page->count + s] = !page->has[s];
    return 0;
}

static int fetch(struct shore_pages *p, struct page *page) {
    int rc = 0;
    for (uint32_t from = 0, n; !rc && (n = page_next_span(page, &from)); from += n) {
        shore_wait_add(&page->load);
        rc = shore_fleet_fetch(p->fleet, p->step, page->block, page->segment + from, n, page->kind,
                               page_segment(page, from), shore_wait_completion(&page->load));
        if (rc) shore_wait_end(&page->load, rc);
    }
    shore_wait_end(&page->load, 0);
    return rc ? shore_wait(&page->load, NULL) : 0;
}

static int load(struct shore_pages *p, struct page *page, const struct asked *a, bool adds, struct shore_diag *diag) {
    assert(page->at && (!page->users || adds) && !page->loading && !page->updating);
    int rc = note(page, a, adds);
    shore_wait_init(&page->load);
    if (!rc && p->reader)
        shore__reader_begin(p->reader, page);
    else if (!rc)
        rc = fetch(p, page);
    page->loading = !rc;
    page->step = rc ? SHORE__NO_STEP : p->step;
    return rc ? shore__fail(diag, rc, "parameters cannot be fetched: %s", shore_error_text(rc)) : 0;
}

/* Whether what is fetched is added to what the page holds, which may be in use. */
static bool grows(const struct shore_pages *p, const struct page *page) {
    return page->at && page->step == p->step && page->partial;
}

/* Makes sure that what is asked for is there or on its way. ahead: only without waiting. */
static int start(struct shore_pages *p, struct page *page, const struct asked *a, bool ahead, struct shore_diag *diag) {
    bool pending;
    if (page->loading && page->step == p->step) return 0; /* of other spans, too: get waits, and asks again */
    int rc = end_updates(p, page, ahead, &pending, diag);
    if (rc || pending) return rc;
    if (page->loading || (page->at && page->step == p->step && has(page, a, false))) return 0;
    assert(!page->users || grows(p, page));
    if (!page->at && !take_buffer(p, page, ahead))
        return ahead ? 0 : shore__fail(diag, -EBUSY, "all buffers for this page are in use");
    return load(p, page, a, grows(p, page), diag);
}

static bool is_there(const struct shore_pages *p, const struct page *page, const struct asked *a) {
    bool of_step = page->at && !page->loading && page->step == p->step;
    return !page->count || (of_step && has(page, a, false));
}

static enum shore_page_state want(struct shore_pages *p, uint32_t number, const struct asked *a) {
    if (number >= p->npages) return SHORE_PAGE_LATER;
    struct page *page = &p->pages[number];
    if (!is_there(p, page, a) && !page->users) start(p, page, a, true, NULL);
    if (is_there(p, page, a)) return SHORE_PAGE_THERE;
    if (!page->loading || page->step != p->step || !has(page, a, true)) return SHORE_PAGE_LATER;
    return is_coming(page) ? SHORE_PAGE_COMING : SHORE_PAGE_THERE;
}

static int get(struct shore_pages *p, uint32_t number, const struct asked *a, const void **out,
               struct shore_diag *diag) {
    if (number >= p->npages) return shore__fail(diag, -EINVAL, "there is no page %u", number);
    struct page *page = &p->pages[number];
    for (unsigned tries = 0; !is_there(p, page, a); tries++) { /* again, if something else was fetched */
        assert(tries < 2);
        if (page->users && !grows(p, page))
            return shore__fail(diag, -EBUSY, "page %u is in use, with the parameters of another step", number);
        int rc = start(p, page, a, false, diag);
        if (!rc && page->loading) {
            bool asked_for = page->step == p->step; /* otherwise nobody needs what has come, or whether it has */
            rc = shore__fleet_wait(p->fleet, SHORE_LANE_DRIVE_READ, &page->load, diag);
            page_loaded(page, rc);
            if (!asked_for) rc = 0;
        }
        if (rc) return rc;
    }
    page->users++;
    if (page->buffer) page->buffer->used = ++p->clock;
    *out = page->at;
    return 0;
}

enum shore_page_state shore_pages_want(struct shore_pages *p, uint32_t page) {
    return want(p, page, &whole_page);
}

int shore_pages_get(struct shore_pages *p, uint32_t page, const void **out, struct shore_diag *diag) {
    return get(p, page, &whole_page, out, diag);
}

static bool are_within(const struct shore_pages *p, uint32_t number, const struct asked *a) {
    bool good = number < p->npages && a->nspans;
    for (uint32_t i = 0; good && i < a->nspans; i++) {
        const struct page *page = &p->pages[number];
        const struct shore_pages_span *span = &a->spans[i];
        good = span->segment >= page->segment &&
               (uint64_t)span->segment + span->count <= (uint64_t)page->segment + page->count;
    }
    return good;
}

enum shore_page_state shore_pages_want_spans(struct shore_pages *p, uint32_t page, const struct shore_pages_span *spans,
                                             uint32_t nspans) {
    const struct asked a = {spans, nspans};
    return are_within(p, page, &a) ? want(p, page, &a) : SHORE_PAGE_LATER;
}

int shore_pages_get_spans(struct shore_pages *p, uint32_t page, const struct shore_pages_span *spans, uint32_t nspans,
                          const void **out, struct shore_diag *diag) {
    const struct asked a = {spans, nspans};
    if (are_within(p, page, &a)) return get(p, page, &a, out, diag);
    return shore__fail(diag, -EINVAL, "there is no page %u with these spans", page);
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
