/* Whatever is asked for in whatever order, what a page holds is what the fleet has of the step, it stays so while it is
 * in use, and what is refused is refused for a reason. */
#include "unit/stream/world.h"

enum { OPS = 3000, WORLDS = 6 };

/* ---- operations -------------------------------------------------------------------------------------------------- */

static uint64_t waited_ns(const struct world *w) {
    struct shore_ledger ledger = {.size = sizeof ledger};
    shore_fleet_ledger(w->fleet, &ledger);
    return ledger.waited_ns[SHORE_LANE_DRIVE_READ] + ledger.waited_ns[SHORE_LANE_DRIVE_UPDATE];
}

static void want(struct world *w, uint32_t number) {
    struct expected *page = &w->page[number];
    if (!can_be_asked_for(w, page)) return;
    uint64_t before = waited_ns(w);
    if (shore_pages_want(w->pages, number) != SHORE_PAGE_THERE || pick(0, 1)) return;
    const void *at;
    assert_ok(w, shore_pages_get(w->pages, number, &at, &w->diag));
    assert_int_equal(waited_ns(w), before);
    shore_pages_release(w->pages, number);
}

/* Some segments of a page: wanted, got, or both. Memory of the others is not touched, but by earlier requests. */
static void spans(struct world *w, uint32_t number) {
    const struct shore_pages_range *r = &w->page[number].range;
    struct shore_pages_span span[3];
    uint32_t n = pick(1, 3), what = pick(0, 3);
    for (uint32_t i = 0; i < n; i++) {
        span[i].segment = r->segment + pick(0, r->count);
        span[i].count = pick(0, r->segment + r->count - span[i].segment);
    }
    if (what && can_be_asked_for(w, &w->page[number])) {
        uint64_t before = waited_ns(w);
        bool there = shore_pages_want_spans(w->pages, number, span, n) == SHORE_PAGE_THERE;
        get_spans(w, number, span, n);
        if (there) assert_int_equal(waited_ns(w), before);
    } else {
        get_spans(w, number, span, n);
    }
}

/* What a caller puts there is not written over by a fetch that was wanted. */
static void settle(struct world *w, uint32_t number) {
    if (!can_be_asked_for(w, &w->page[number]) || shore_pages_want(w->pages, number) != SHORE_PAGE_COMING) return;
    shore_pages_settle(w->pages, number);
    assert_int_equal(shore_pages_want(w->pages, number), SHORE_PAGE_THERE);
}

/* In fp32: into memory of one's own, or into that at whose end the page lies. */
static void take(struct world *w, uint32_t number) {
    const struct expected *page = &w->page[number];
    if (!can_be_asked_for(w, page)) return;
    uint32_t count = page->range.count;
    float *own = aligned_alloc(4096, fp32_bytes(count + 1)), *out = w->memory[number] ? w->memory[number] : own;
    int rc = shore_pages_take(w->pages, number, out, &w->diag);
    if (page->uses)
        assert_int_equal(rc, -EBUSY);
    else if (!may_be(w, page, rc))
        fail_msg("page %u: %d (%s)", number, rc, w->diag.text);
    for (uint32_t s = 0; !rc && s < count; s++) {
        uint32_t value = (w->step > w->base ? w->next : w->value)[page->range.block][page->range.segment + s];
        for (size_t i = 0; i < SHORE_SEGMENT_ELEMS; i++)
            if (out[s * (size_t)SHORE_SEGMENT_ELEMS + i] != element(value, page->range.segment + s, i))
                fail_msg("page %u, segment %u, element %zu: taken is another value", number, s, i);
    }
    free(own);
}

static void count_completion(void *ctx, int rc, const struct shore_diag *diag) {
    struct world *w = ctx;
    assert_true(rc == 0 || rc == SHORE_EDISCARDED);
    w->completions++;
}

/* Of pages that are used, those that hold a segment are of no step any more. */
static void mark_stale(struct world *w, uint32_t block, uint32_t segment, uint32_t count) {
    const struct expected touched = {.range = {.block = block, .segment = segment, .count = count}};
    for (uint32_t i = 0; i < w->npages; i++)
        if (meet(&w->page[i], &touched)) w->page[i].stale = true;
}

static void update(struct world *w, uint32_t number) {
    struct expected *page = &w->page[number];
    const struct shore_hyper hyper = {.lr = 1};
    uint32_t b = page->range.block, s = page->range.segment, end = s + page->range.count;
    while (s < end && (w->done[b][s] != UNTOUCHED || pick(0, 3) == 0))
        s++;
    uint32_t n = 0;
    while (s + n < end && w->done[b][s + n] == UNTOUCHED && (!n || pick(0, 2)))
        n++;
    if (!n) return;
    bool refused = page->uses;
    for (uint32_t i = s; i < s + n && !refused; i++)
        w->next[b][i] = pick(0, 200);
    struct shore_update u = {
        .size = sizeof u,
        .base_step = w->base,
        .attempt = shore_fleet_attempt(w->fleet),
        .segment = s,
        .count = n,
        .gradient = refused ? NULL : gradient_of(w, b, s, n),
        .coefficient = 1,
        .groups = &hyper,
        .ngroups = 1,
    };
    int rc = shore_pages_update(w->pages, number, &u, (struct shore_completion){count_completion, w});
    assert_code(w, rc, refused ? -EBUSY : 0, __LINE__);
    if (refused) return;
    w->submitted++;
    for (uint32_t i = s; i < s + n; i++)
        w->done[b][i] = UPDATED;
    mark_stale(w, b, s, n);
    page->in_parts = true;
}

static void update_end(struct world *w, uint32_t number) {
    shore_pages_update_end(w->pages, number);
    w->page[number].in_parts = false;
}

static void carry_segments(struct world *w, uint32_t b, uint32_t s, uint32_t n) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    assert_ok(
        w, shore_fleet_carry(w->fleet, w->base, shore_fleet_attempt(w->fleet), b, s, n, shore_wait_completion(&wait)));
    assert_ok(w, shore_wait(&wait, &w->diag));
    for (uint32_t i = s; i < s + n; i++)
        w->done[b][i] = CARRIED;
}

/* A page that stays and is not updated holds the next step's parameters as soon as it has the committed one's. */
static void carry(struct world *w, uint32_t number) {
    struct expected *page = &w->page[number];
    const void *at;
    if (page->range.pool != SHORE_PAGES_STAYS || page->uses || w->step > w->base || page->in_parts) return;
    for (uint32_t s = 0; s < page->range.count; s++)
        if (w->done[page->range.block][page->range.segment + s] != UNTOUCHED) return;
    if (!page->range.count || is_in_parts(w, page)) return;
    assert_ok(w, shore_pages_get(w->pages, number, &at, &w->diag));
    shore_pages_release(w->pages, number);
    carry_segments(w, page->range.block, page->range.segment, page->range.count);
    shore_pages_updated(w->pages, number, w->base + 1);
    mark_stale(w, page->range.block, page->range.segment, page->range.count);
}

static void end_attempt(struct world *w) {
    memset(w->done, 0, sizeof w->done);
    for (uint32_t i = 0; i < w->npages; i++)
        w->page[i].in_parts = false;
    forget_gradients(w);
}

static void discard(struct world *w) {
    shore_fleet_discard(w->fleet);
    shore_pages_discarded(w->pages);
    for (uint32_t i = 0; i < w->npages; i++)
        w->page[i].stale |= w->page[i].step > w->base;
    memcpy(w->next, w->value, sizeof w->next);
    shore_pages_set_step(w->pages, w->step = w->base);
    end_attempt(w);
}

static void forget(struct world *w) {
    for (uint32_t i = 0; i < w->npages; i++)
        if (w->page[i].uses) return;
    shore_fleet_discard(w->fleet);
    shore_pages_forget(w->pages);
    memcpy(w->next, w->value, sizeof w->next);
    shore_pages_set_step(w->pages, w->step = w->base);
    end_attempt(w);
}

/* The rest is carried. */
static void commit(struct world *w) {
    struct shore_wait wait;
    for (uint32_t i = 0; i < w->npages; i++)
        update_end(w, i);
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t s = 0; s < segments_of[b]; s++)
            if (w->done[b][s] == UNTOUCHED) carry_segments(w, b, s, 1);
    shore_wait_init(&wait);
    assert_ok(w, shore_fleet_commit(w->fleet, w->base, false, "", 0, shore_wait_completion(&wait)));
    assert_ok(w, shore_wait(&wait, &w->diag));
    assert_int_equal(w->completions, w->submitted);
    memcpy(w->value, w->next, sizeof w->value);
    shore_pages_set_step(w->pages, w->step = ++w->base);
    end_attempt(w);
}

static void set_step(struct world *w) {
    w->step = w->base + pick(0, 1);
    shore_pages_set_step(w->pages, w->step);
}

static void one(struct world *w) {
    uint32_t number = pick(0, w->npages - 1), what = pick(0, 99);
    if (what < 20)
        want(w, number);
    else if (what < 37)
        get(w, number);
    else if (what < 50)
        spans(w, number);
    else if (what < 68)
        release(w, number);
    else if (what < 69)
        take(w, number);
    else if (what < 70)
        settle(w, number);
    else if (what < 80)
        update(w, number);
    else if (what < 88)
        update_end(w, number);
    else if (what < 90)
        carry(w, number);
    else if (what < 95)
        discard(w);
    else if (what < 96)
        forget(w);
    else if (what < 98)
        commit(w);
    else
        set_step(w);
}

static void pages_hold_what_the_fleet_has(void **state) {
    for (int i = 0; i < WORLDS; i++) {
        struct world w;
        open_world(&w, "ram:");
        for (int op = 0; op < OPS; op++)
            one(&w);
        close_world(&w);
    }
}

static uint64_t fetched(const struct world *w) {
    struct shore_ledger ledger = {.size = sizeof ledger};
    shore_fleet_ledger(w->fleet, &ledger);
    return ledger.link_out_params;
}

static void segments_that_nobody_asked_for_are_not_fetched(void **state) {
    const struct shore_pages_span few[] = {{1, 1}, {4, 1}}, more[] = {{2, 0}, {4, 1}, {0, 2}};
    struct world w;
    open_world(&w, "ram:");
    shore_pages_close(w.pages);
    free_memory(&w);
    const struct shore_pages_range range = {.segment = 0, .count = 5, .pool = SHORE_PAGES_STAYS, .kind = w.kind};
    const struct shore_pages_options options = {.size = sizeof options, .ranges = &range, .nranges = 1};
    assert_ok(&w, shore_pages_open(w.fleet, &options, &w.pages, &w.diag));
    w.page[0] = (struct expected){.range = range};
    w.npages = 1;
    uint64_t before = fetched(&w);
    get_spans(&w, 0, few, 2);
    assert_int_equal(fetched(&w) - before, bytes_of(is_fp32(&range), 2));
    get_spans(&w, 0, more, 3);
    assert_int_equal(fetched(&w) - before, bytes_of(is_fp32(&range), 3));
    release(&w, 0);
    get(&w, 0);
    assert_int_equal(fetched(&w) - before, bytes_of(is_fp32(&range), 5));
    const struct shore_pages_span outside = {4, 2};
    const void *at;
    assert_int_equal(shore_pages_get_spans(w.pages, 0, &outside, 1, &at, &w.diag), -EINVAL);
    assert_int_equal(shore_pages_get_spans(w.pages, 0, few, 0, &at, &w.diag), -EINVAL);
    assert_int_equal(shore_pages_want_spans(w.pages, 1, few, 2), SHORE_PAGE_LATER);
    close_world(&w);
}

int main(void) {
    take_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(pages_hold_what_the_fleet_has),
                                       cmocka_unit_test(segments_that_nobody_asked_for_are_not_fetched)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
