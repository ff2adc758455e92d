/* Pages on a device whose memory is not the host's and whose streams run late: what is computed with is what the page
 * was when it was asked for, and the next one is put meanwhile. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "conformance/compute_away.h"
#include "pass/shown.h"

enum { PAGES = 6, STAYING = 4, RESULTS = 64, OPS = 4000, PAGE_BYTES = SHORE_SEGMENT_ELEMS * 2, SAMPLE_BYTES = 64 };

static uint64_t seed, drawn;

static uint32_t pick(uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, 1, drawn++) % (last - first + 1));
}

struct world {
    struct shore__compute *c;
    struct shore__compute_ops ops; /* the backend's, counted */
    struct shore__stream *computing;
    struct shore__region_list rows;
    struct shore__memory memory;
    struct shore_pages *pages;
    struct shore__shown *shown;
    _Atomic uint64_t step;      /* of the pages, which a thread reads */
    struct shore__both results; /* of what was computed with each page: a sample of it */
    uint16_t expected[RESULTS];
    uint32_t nresults;
    struct shore_diag diag;
};

/* ---- counting ---- */

static const struct shore__compute_ops *away;
static struct shore__stream *put_on;
static uint32_t nputs, nwaits;

static int count_put(struct shore__compute *c, struct shore__stream *s, shore__buf dst, const void *src, size_t bytes) {
    nputs++;
    put_on = s;
    return away->put(c, s, dst, src, bytes);
}
static int count_wait(struct shore__compute *c, struct shore__event event, struct shore_diag *diag) {
    nwaits++;
    return away->wait(c, event, diag);
}

/* ---- the world ---- */

static uint16_t content(uint32_t page, uint64_t step) {
    return (uint16_t)(page * 1000 + step);
}

static int read_page(void *ctx, uint32_t block, uint32_t segment, uint32_t count, void *dst, struct shore_diag *diag) {
    const struct world *w = ctx;
    for (uint32_t i = 0; i < SHORE_SEGMENT_ELEMS; i++)
        ((uint16_t *)dst)[i] = content(block, w->step);
    return 0;
}

static void add_rows(struct world *w, uint32_t buffers) {
    shore__regions_open(&w->rows, 1, false);
    for (uint32_t i = 0; i < STAYING + 1; i++)
        shore__regions_add_always(&w->rows, SHORE__ROW_PAGE, i, SHORE__REGION_PINNED, PAGE_BYTES);
    for (uint32_t i = 0; i < buffers; i++)
        shore__regions_add_always(&w->rows, SHORE__ROW_LAYER_THERE, i, SHORE__REGION_DEVICE, PAGE_BYTES);
    shore__regions_add_always(&w->rows, SHORE__ROW_LOSS, 0, SHORE__REGION_BOTH, RESULTS * SAMPLE_BYTES);
    shore__regions_lay_out(&w->rows);
    assert_false(w->rows.failed);
}

/* Of pages, some stay and the others share one buffer; on the device all share `buffers`. */
static void open_world(struct world *w, uint32_t buffers) {
    *w = (struct world){.step = 1};
    const struct shore__compute_options options = {.device = "away"};
    assert_int_equal(shore__compute_open(&options, &w->c, &w->diag), 0);
    away = w->c->ops;
    w->ops = *away;
    w->ops.put = count_put;
    w->ops.wait = count_wait;
    w->c->ops = &w->ops;
    assert_int_equal(w->c->ops->stream_open(w->c, &w->computing, &w->diag), 0);
    add_rows(w, buffers);
    assert_int_equal(shore__memory_open(&w->memory, &w->rows, w->c, &w->diag), 0);
    struct shore_pages_range ranges[PAGES];
    for (uint32_t i = 0; i < PAGES; i++) {
        ranges[i] = (struct shore_pages_range){.block = i, .count = 1};
        if (i < STAYING)
            ranges[i].pool = SHORE_PAGES_STAYS, ranges[i].memory = shore__memory_host(&w->memory, SHORE__ROW_PAGE, i);
    }
    void *buffer[] = {shore__memory_host(&w->memory, SHORE__ROW_PAGE, STAYING)};
    const struct shore_pages_pool pool = {1, buffer};
    const struct shore_pages_options pages = {.size = sizeof pages,
                                              .ranges = ranges,
                                              .nranges = PAGES,
                                              .pools = &pool,
                                              .npools = 1,
                                              .read = read_page,
                                              .read_ctx = w};
    assert_int_equal(shore_pages_open(NULL, &pages, &w->pages, &w->diag), 0);
    shore_pages_set_step(w->pages, w->step);
    struct shore__shown_pool there = {{SHORE__NO_BUF}};
    for (uint32_t i = 0; i < buffers; i++)
        there.buffer[i] = shore__memory_at(&w->memory, SHORE__ROW_LAYER_THERE, i);
    assert_int_equal(shore__shown_open(w->pages, w->c, w->computing, &w->memory, &there, 1, &w->shown, &w->diag), 0);
    w->results = shore__memory_both(&w->memory, SHORE__ROW_LOSS, 0);
    nputs = nwaits = 0;
}

static void check_results(struct world *w) {
    struct shore__both all = w->results;
    assert_int_equal(w->c->ops->get(w->c, w->computing, all.host, all.device, RESULTS * SAMPLE_BYTES), 0);
    assert_int_equal(shore__sync(w->c, w->computing, &w->diag), 0);
    for (uint32_t i = 0; i < w->nresults; i++) {
        const uint16_t *got = (const uint16_t *)(const void *)((const char *)all.host + i * SAMPLE_BYTES);
        for (uint32_t k = 0; k < SAMPLE_BYTES / 2; k++)
            assert_int_equal(got[k], w->expected[i]);
    }
    w->nresults = 0;
}

static void close_world(struct world *w) {
    check_results(w);
    shore__shown_close(w->shown);
    shore_pages_close(w->pages);
    w->c->ops->stream_close(w->c, w->computing);
    shore__memory_close(&w->memory, w->c);
    w->c->ops->close(w->c);
    shore__regions_close(&w->rows);
}

/* Computing with a page: some of it is copied, when the stream comes to it. */
static void compute_with(struct world *w, uint32_t page) {
    shore__buf at;
    if (w->nresults == RESULTS) check_results(w);
    assert_int_equal(shore__shown_get(w->shown, 0, page, PAGE_BYTES, &at, &w->diag), 0);
    for (uint32_t i = pick(1, 3); i && w->nresults < RESULTS; i--) {
        shore__buf sample = shore__at(at, pick(0, PAGE_BYTES / SAMPLE_BYTES - 1) * SAMPLE_BYTES);
        shore__buf result = shore__at(w->results.device, w->nresults * SAMPLE_BYTES);
        assert_int_equal(w->c->ops->copy(w->c, w->computing, result, sample, SAMPLE_BYTES), 0);
        w->expected[w->nresults++] = content(page, w->step);
    }
}

/* ---- tests ---- */

static void what_is_computed_with_is_the_page(void **state) {
    for (uint32_t buffers = 1; buffers <= SHORE__SHOWN_BUFFERS; buffers++) {
        struct world w;
        open_world(&w, buffers);
        for (int op = 0; op < OPS; op++) {
            uint32_t page = pick(0, PAGES - 1), what = pick(0, 99);
            if (what < 50)
                compute_with(&w, page);
            else if (what < 85)
                shore__shown_want(w.shown, 0, page, PAGE_BYTES);
            else if (what < 92)
                shore__shown_release(w.shown, 0, page);
            else if (what < 94)
                shore__shown_release_all(w.shown);
            else
                shore_pages_set_step(w.pages, ++w.step);
        }
        close_world(&w);
    }
}

static void the_next_page_is_put_while_this_one_is_computed_with(void **state) {
    struct world w;
    open_world(&w, SHORE__SHOWN_BUFFERS);
    for (uint32_t i = 0; i < 3; i++)
        compute_with(&w, i); /* so that the host has them */
    nputs = nwaits = 0;
    compute_with(&w, 0);
    uint32_t waited = nwaits;
    shore__shown_want(w.shown, 0, 1, PAGE_BYTES);
    assert_int_equal(nputs, 2);
    assert_ptr_not_equal(put_on, w.computing);
    assert_int_equal(nwaits, waited); /* and nothing is waited for */
    compute_with(&w, 1);
    assert_int_equal(nputs, 2);
    compute_with(&w, 0); /* both are there still */
    assert_int_equal(nputs, 2);
    shore__shown_release(w.shown, 0, 0); /* its parameters change */
    compute_with(&w, 0);
    assert_int_equal(nputs, 3);
    shore_pages_set_step(w.pages, ++w.step);
    compute_with(&w, 1);
    assert_int_equal(nputs, 4);
    close_world(&w);
}

int main(void) {
    const char *given = getenv("SEED");
    seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    print_message("SEED=%" PRIu64 "\n", seed);
    away_seed = seed;
    shore__compute_register(&away_backend);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_computed_with_is_the_page),
        cmocka_unit_test(the_next_page_is_put_while_this_one_is_computed_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
