/* Updates and forgets pages. */
#include <assert.h>
#include <errno.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/fleet/fleet.h"
#include "stream/pages_impl.h"

/* ---- updates ----------------------------------------------------------------------------------------------------- */

int shore__page_end_update(struct shore_pages *p, struct page *page, bool ahead, bool *pending,
                           struct shore_diag *diag) {
    *pending = false;
    if (!page->updating) return 0;
    if (ahead && !shore_wait_is_done(&page->update)) {
        *pending = true;
        return 0;
    }
    if (page->in_parts) return shore__fail(diag, -EINVAL, "a page is wanted before all parts of its update have come");
    int rc = shore__fleet_wait(p->fleet, SHORE_LANE_DRIVE_UPDATE, &page->update, diag);
    bool all = page->covered == page->count,
         good = !rc && page->handed_back && (all || (page->whole && !page->partial));
    assert(!page->loading && (!good || page->at));
    if (all) page->partial = false;
    page->updating = false;
    page->step = good ? page->next_step : SHORE__NO_STEP;
    return rc;
}

/* Ends the wait for parts to come, which one completion of the page's wait stands for. */
static void end_parts(struct page *page) {
    if (!page->in_parts) return;
    page->in_parts = false;
    shore_wait_end(&page->update, 0);
}

static void part_ended(void *ctx, int rc, const struct shore_diag *diag) {
    struct page *page = ctx;
    struct shore_completion waited = shore_wait_completion(&page->update);
    if (page->then.fn) page->then.fn(page->then.ctx, rc, diag);
    waited.fn(waited.ctx, rc, diag); /* last: from here on the caller may use the page */
}

static void end_fetch(struct page *page) {
    if (page->loading) page_loaded(page, shore_wait(&page->load, NULL));
}

void shore_pages_settle(struct shore_pages *p, uint32_t number) {
    if (number < p->npages) end_fetch(&p->pages[number]);
}

/* Somebody changes segments of the page in a step: of the next step it holds nothing, also if it fetches the committed
 * segments again. */
static void outdate(struct page *page, uint64_t step) {
    page->step = SHORE__NO_STEP;
    page->touched = step;
    page->handed_back = false;
    page_changes(page, step);
}

void shore_pages_outdate(struct shore_pages *p, uint32_t number, uint64_t step) {
    if (number < p->npages) outdate(&p->pages[number], step);
}

static void begin_update(struct shore_pages *p, struct page *page, uint64_t next_step, struct shore_completion done) {
    /* end its last update, and a fetch that would write over the new parameters */
    bool pending;
    if (page->updating) shore__page_end_update(p, page, false, &pending, NULL);
    end_fetch(page);
    assert(!page->users && !page->updating && !page->loading);
    page->handed_back = !page->parted && shore__pages_hands_back(p, (uint32_t)(page - p->pages));
    page->whole = page->step + 1 == next_step && page->touched != next_step;
    page->covered = 0;
    page->from = page->to = 0;
    page->then = done;
    page->step = SHORE__NO_STEP;
    page->next_step = next_step;
    page->updating = page->in_parts = true;
    shore_wait_init(&page->update);
}

/* Outdates other pages with one of these segments. */
static void touch(struct shore_pages *p, struct page *page, uint32_t from, uint32_t to) {
    assert(page->updating && from >= page->segment && to - page->segment <= page->count);
    if (page->from == page->to || from < page->from) page->from = from;
    if (to > page->to) page->to = to;
    page->touched = page->next_step;
    page_changes(page, page->next_step);
    for (uint32_t i = 0; page->shares && i < p->npages; i++) {
        struct page *other = &p->pages[i];
        if (other != page && page_meets(other, page->block, from, to)) outdate(other, page->next_step);
    }
}

/* A part of the page's update begins: of one that is under way, or of a new one. */
static int begin_part(struct shore_pages *p, uint32_t number, uint64_t next_step, uint32_t segment, uint32_t count,
                      struct shore_completion done) {
    if (number >= p->npages || !p->fleet) return -EINVAL;
    struct page *page = &p->pages[number];
    if (segment < page->segment || (uint64_t)segment + count > (uint64_t)page->segment + page->count) return -EINVAL;
    if (page->users) return -EBUSY;
    if (!page->in_parts) begin_update(p, page, next_step, done);
    return page->then.ctx != done.ctx || page->next_step != next_step ? -EINVAL : 0;
}

int shore__pages_carry(struct shore_pages *p, uint32_t number, uint64_t base_step, uint64_t attempt, uint32_t segment,
                       uint32_t count, struct shore_completion done) {
    int rc = begin_part(p, number, base_step + 1, segment, count, done);
    if (rc) return rc;
    struct page *page = &p->pages[number];
    shore_wait_add(&page->update);
    rc = shore_fleet_carry(p->fleet, base_step, attempt, page->block, segment, count,
                           (struct shore_completion){part_ended, page});
    if (rc) shore_wait_end(&page->update, rc);
    return rc;
}

int shore__pages_part(struct shore_pages *p, uint32_t number, struct shore_update *update,
                      struct shore_completion *done) {
    int rc = begin_part(p, number, update->base_step + 1, update->segment, update->count, *done);
    if (rc) return rc;
    struct page *page = &p->pages[number];
    touch(p, page, update->segment, update->segment + update->count);
    update->block = page->block;
    update->params_out = page->handed_back ? page_segment(page, update->segment - page->segment) : NULL;
    page->covered += update->count;
    shore_wait_add(&page->update);
    *done = (struct shore_completion){part_ended, page};
    return 0;
}

int shore_pages_update(struct shore_pages *p, uint32_t number, struct shore_update *update,
                       struct shore_completion done) {
    int rc = shore__pages_part(p, number, update, &done);
    if (rc) return rc;
    rc = shore_fleet_update(p->fleet, update, done);
    if (rc) shore_wait_end(&p->pages[number].update, rc);
    return rc;
}

void shore_pages_update_end(struct shore_pages *p, uint32_t number) {
    if (number < p->npages) end_parts(&p->pages[number]);
}

void shore_pages_updated(struct shore_pages *p, uint32_t number, uint64_t step) {
    struct page *page = &p->pages[number < p->npages ? number : 0];
    if (number >= p->npages || !page_stays(page) || page->users) return;
    if (!page->in_parts) begin_update(p, page, step, (struct shore_completion){NULL, NULL});
    touch(p, page, page->segment, page->segment + page->count);
    page->whole = true;
    end_parts(page);
}

void shore_pages_carried(struct shore_pages *p, uint32_t number, uint64_t step) {
    if (number >= p->npages) return;
    struct page *page = &p->pages[number];
    bool pending;
    if (page->updating && !page->in_parts) shore__page_end_update(p, page, false, &pending, NULL);
    if (page->touched == step) return;
    if (!page->updating && page->step + 1 == step) page->step = step;
    if (page->same_to + 1 != step) page->same_from = step - 1;
    page->same_to = step;
}

bool shore__pages_hands_back(const struct shore_pages *p, uint32_t number) {
    const struct page *page = &p->pages[number];
    return page_stays(page) && (!p->fleet || p->fleet->config.fp32_params == (page->kind == SHORE_FETCH_MASTER));
}

void shore_pages_discarded(struct shore_pages *p) {
    struct shore_fleet_info info = {.size = sizeof info};
    if (p->fleet) shore_fleet_info(p->fleet, &info);
    for (uint32_t i = 0; i < p->npages; i++) {
        struct page *page = &p->pages[i];
        end_parts(page);
        if (page->updating) shore_wait(&page->update, NULL);
        if (page->updating || page->step > info.step) page->step = SHORE__NO_STEP;
        page->updating = false;
        page->touched = SHORE__NO_STEP;
        if (page->same_to > info.step) page->same_to = info.step; /* the next attempt may change it */
    }
}

/* ---- updates that are computed here ------------------------------------------------------------------------------ */

uint32_t shore__pages_segments(const struct shore_pages *p, uint32_t number) {
    return number < p->npages ? p->pages[number].count : 0;
}

static const struct page *page_at(const struct shore_pages *p, uint32_t block, uint32_t segment) {
    for (uint32_t i = 0; i < p->npages; i++)
        if (page_stays(&p->pages[i]) && page_meets(&p->pages[i], block, segment, segment + 1)) return &p->pages[i];
    return NULL;
}

void *shore__pages_params(const struct shore_pages *p, uint32_t block, uint32_t segment) {
    const struct page *page = page_at(p, block, segment);
    return page ? page_segment(page, segment - page->segment) : NULL;
}

/* Whether the page keeps all its segments itself, instead of a page that shares them. */
static bool holds_all(const struct shore_pages *p, const struct page *page) {
    for (uint32_t s = 0; page->shares && s < page->count; s++)
        if (page_at(p, page->block, page->segment + s) != page) return false;
    return page_stays(page);
}

void shore__pages_hold(struct shore_pages *p, uint64_t step) {
    for (uint32_t i = 0; i < p->npages; i++) {
        struct page *page = &p->pages[i];
        assert(!page->users && !page->updating);
        end_fetch(page);
        page->step = holds_all(p, page) ? step : SHORE__NO_STEP;
        page->partial = false;
        page_changes(page, step);
    }
}

void shore_pages_forget(struct shore_pages *p) {
    shore_pages_discarded(p);
    for (uint32_t i = 0; i < p->npages; i++) {
        struct page *page = &p->pages[i];
        end_fetch(page);
        page->step = SHORE__NO_STEP;
    }
}
