/* Pages on a device: on one that is made up, whose streams run as late as they may, and that can be lost. */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "longshore/device.h"
#include "longshore/pages.h"
#include "seed.h"

enum { PAGES = 5, STAYING = 3, CALLS = 1 << 14, OPS = 400, SAMPLE = 64, RESULTS = 512 };
#define PAGE_BYTES ((size_t)SHORE_SEGMENT_ELEMS * 2)

static uint64_t seed, drawn;

static uint32_t pick(uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, 1, drawn++) % (last - first + 1));
}

/* ---- a device ------------------------------------------------------------------------------------------------------
 */

struct call {
    void *to;
    const void *from;
    size_t bytes;
    struct shore_event follow; /* instead of a copy */
};

struct stream {
    struct call calls[CALLS];
    uint64_t called, done;
};

/* What a stream was called runs when it is waited for; sometimes also when it is looked at. */
struct late {
    bool hangs;
    uint32_t nputs, nstands; /* waits that had to wait */
    struct stream *put_on;
    uint64_t timeout_ns; /* of the last one */
};

static int call(struct stream *s, struct call c) {
    assert_true(s->called < CALLS);
    s->calls[s->called++] = c;
    return 0;
}

static void run(struct shore_event until) {
    struct stream *s = until.stream;
    while (s->done < until.position) {
        struct call c = s->calls[s->done++];
        if (c.follow.stream)
            run(c.follow);
        else
            memcpy(c.to, c.from, c.bytes);
    }
}

static int late_put(void *ctx, void *stream, uint64_t to, const void *from, size_t bytes) {
    struct late *l = ctx;
    l->nputs++;
    l->put_on = stream;
    return call(stream, (struct call){.to = (void *)(uintptr_t)to, .from = from, .bytes = bytes});
}
static int late_get(void *ctx, void *stream, void *to, uint64_t from, size_t bytes) {
    return call(stream, (struct call){.to = to, .from = (const void *)(uintptr_t)from, .bytes = bytes});
}
static struct shore_event late_record(void *ctx, void *stream) {
    return (struct shore_event){stream, ((struct stream *)stream)->called};
}
static int late_follow(void *ctx, void *stream, struct shore_event event) {
    return call(stream, (struct call){.follow = event});
}
static int late_wait(void *ctx, struct shore_event event, uint64_t timeout_ns, struct shore_diag *diag) {
    struct late *l = ctx;
    bool passed = ((struct stream *)event.stream)->done >= event.position;
    if (timeout_ns) l->timeout_ns = timeout_ns;
    l->nstands += !passed && timeout_ns;
    if (!l->hangs && (timeout_ns || pick(0, 3) == 0)) run(event), passed = true;
    return passed ? 0 : -ETIMEDOUT;
}

/* ---- a world of pages on it ----------------------------------------------------------------------------------------
 */

struct world {
    struct late late;
    struct shore_device device;
    struct stream *computing, *copying;
    struct shore_pages *pages;
    struct shore_shown *shown;
    void *buffer[SHORE_SHOWN_BUFFERS];
    _Atomic uint64_t step; /* of the pages, which a thread reads */
    uint16_t result[RESULTS][SAMPLE], expected[RESULTS];
    uint32_t nresults;
    struct shore_diag diag;
};

static uint16_t content(uint32_t page, uint64_t step) {
    return (uint16_t)(page * 1000 + step);
}

static int read_page(void *ctx, uint32_t block, uint32_t segment, uint32_t count, void *dst, struct shore_diag *diag) {
    const struct world *w = ctx;
    for (uint32_t i = 0; i < SHORE_SEGMENT_ELEMS; i++)
        ((uint16_t *)dst)[i] = content(block, w->step);
    return 0;
}

/* Of pages, some stay and the others share one buffer; on the device all share `buffers`. */
static struct world *open_world(uint32_t buffers) {
    struct world *w = calloc(1, sizeof *w);
    struct shore_pages_range ranges[PAGES];
    struct shore_shown_pool there = {{0}};
    for (uint32_t i = 0; i < PAGES; i++)
        ranges[i] = (struct shore_pages_range){.block = i, .count = 1, .pool = i < STAYING ? SHORE_PAGES_STAYS : 0};
    for (uint32_t i = 0; i < buffers; i++)
        there.buffer[i] = (uintptr_t)(w->buffer[i] = calloc(1, PAGE_BYTES));
    const struct shore_pages_pool pool = {.nbuffers = 1};
    const struct shore_pages_options pages = {.size = sizeof pages,
                                              .ranges = ranges,
                                              .nranges = PAGES,
                                              .pools = &pool,
                                              .npools = 1,
                                              .read = read_page,
                                              .read_ctx = w};
    w->step = 1;
    assert_int_equal(shore_pages_open(NULL, &pages, &w->pages, &w->diag), 0);
    shore_pages_set_step(w->pages, w->step);
    w->computing = calloc(1, sizeof *w->computing);
    w->copying = calloc(1, sizeof *w->copying);
    w->device = (struct shore_device){.size = sizeof w->device,
                                      .ctx = &w->late,
                                      .put = late_put,
                                      .get = late_get,
                                      .record = late_record,
                                      .follow = late_follow,
                                      .wait = late_wait};
    const struct shore_shown_options options = {.size = sizeof options,
                                                .device = &w->device,
                                                .computing = w->computing,
                                                .copying = w->copying,
                                                .pools = &there,
                                                .npools = 1};
    assert_int_equal(shore_shown_open(w->pages, &options, &w->shown, &w->diag), 0);
    return w;
}

static void check_results(struct world *w) {
    run(late_record(&w->late, w->computing));
    for (uint32_t i = 0; i < w->nresults; i++)
        for (uint32_t k = 0; k < SAMPLE; k++)
            assert_int_equal(w->result[i][k], w->expected[i]);
    w->nresults = 0;
}

static void close_world(struct world *w) {
    if (!w->late.hangs) check_results(w);
    shore_shown_close(w->shown);
    shore_pages_close(w->pages);
    for (uint32_t i = 0; i < SHORE_SHOWN_BUFFERS; i++)
        free(w->buffer[i]);
    free(w->computing);
    free(w->copying);
    free(w);
}

static uint64_t given(struct world *w, uint32_t page, const void **host) {
    uint64_t there;
    assert_int_equal(shore_shown_get(w->shown, 0, page, host, &there, &w->diag), 0);
    assert_int_equal(there != 0, w->buffer[0] != NULL);
    return there;
}

/* Computing with a page: some of it is copied, when the stream comes to it. */
static void compute_with(struct world *w, uint32_t page) {
    const void *host;
    if (w->nresults == RESULTS) check_results(w);
    uint64_t at = given(w, page, &host);
    for (uint32_t i = pick(1, 3); i && w->nresults < RESULTS; i--) {
        uint64_t offset = pick(0, PAGE_BYTES / sizeof w->result[0] - 1) * sizeof w->result[0];
        uint16_t *result = w->result[w->nresults];
        w->expected[w->nresults++] = content(page, w->step);
        if (at)
            late_get(&w->late, w->computing, result, at + offset, sizeof w->result[0]);
        else
            memcpy(result, (const char *)host + offset, sizeof w->result[0]);
    }
}

/* In use by nobody on the host's side. */
static bool is_free(struct world *w, uint32_t page) {
    float *out = malloc(PAGE_BYTES * 2);
    int rc = shore_pages_take(w->pages, page, out, &w->diag);
    free(out);
    assert_true(rc == 0 || rc == -EBUSY);
    return rc == 0;
}

/* ---- tests ---------------------------------------------------------------------------------------------------------
 */

static void what_is_computed_with_is_the_page(void **state) {
    for (uint32_t buffers = 0; buffers <= SHORE_SHOWN_BUFFERS; buffers++) {
        struct world *w = open_world(buffers);
        for (int op = 0; op < OPS; op++) {
            uint32_t page = pick(0, PAGES - 1), what = pick(0, 99);
            if (what < 50)
                compute_with(w, page);
            else if (what < 85)
                shore_shown_want(w->shown, 0, page);
            else if (what < 92)
                shore_shown_release(w->shown, 0, page);
            else if (what < 94)
                shore_shown_release_all(w->shown);
            else
                shore_pages_set_step(w->pages, ++w->step);
        }
        close_world(w);
    }
}

static void the_next_page_is_put_while_this_one_is_computed_with(void **state) {
    struct world *w = open_world(SHORE_SHOWN_BUFFERS);
    for (uint32_t i = 0; i < STAYING; i++)
        compute_with(w, i); /* so that the host has them */
    w->late.nputs = 0;
    compute_with(w, 0);
    shore_shown_want(w->shown, 0, 1);
    assert_int_equal(w->late.nputs, 2);
    assert_ptr_equal(w->late.put_on, w->copying);
    compute_with(w, 1);
    assert_int_equal(w->late.nputs, 2);
    compute_with(w, 0); /* both are there still */
    assert_int_equal(w->late.nputs, 2);
    shore_shown_release(w->shown, 0, 0); /* its parameters change */
    compute_with(w, 0);
    assert_int_equal(w->late.nputs, 3);
    shore_pages_set_step(w->pages, ++w->step);
    compute_with(w, 1);
    assert_int_equal(w->late.nputs, 4);
    close_world(w);
}

/* As many pages as are in memory: the host says all of a step before any of it has run. */
static void pages_that_stay_are_not_waited_for(void **state) {
    struct world *w = open_world(SHORE_SHOWN_BUFFERS);
    for (uint32_t i = 0; i < 2 * STAYING; i++) {
        uint32_t page = i < STAYING ? i : 2 * STAYING - 1 - i;
        compute_with(w, page);
        shore_shown_want(w->shown, 0, i + 1 < STAYING ? i + 1 : page ? page - 1 : 0);
    }
    assert_int_equal(w->late.nstands, 0);
    close_world(w);
}

static void a_page_is_in_use_until_it_has_been_put(void **state) {
    struct world *w = open_world(SHORE_SHOWN_BUFFERS);
    const void *host;
    given(w, 0, &host);
    given(w, 1, &host);
    given(w, 2, &host); /* in the buffer of page 0, which may still have to be put into it */
    shore_shown_release(w->shown, 0, 1);
    assert_true(is_free(w, 0) && is_free(w, 1));
    assert_false(is_free(w, 2));
    shore_shown_release_all(w->shown);
    assert_true(is_free(w, 2));
    close_world(w);
}

static void a_lost_device_is_waited_for_once(void **state) {
    struct world *w = open_world(SHORE_SHOWN_BUFFERS);
    const void *host;
    for (uint32_t i = 0; i < STAYING; i++)
        given(w, i, &host);
    w->late.hangs = true;
    w->device.timeout_ns = 2000000000;
    shore_shown_release_all(w->shown);
    assert_int_equal(w->late.nstands <= 1, true);
    given(w, 0, &host);
    struct shore_event event = late_record(&w->late, w->copying);
    assert_false(shore_device_passed(&w->device, event));
    assert_int_equal(shore_device_wait(&w->device, event, &w->diag), -ETIMEDOUT);
    assert_non_null(strstr(w->diag.text, "lost"));
    assert_non_null(strstr(w->diag.text, "2 seconds"));
    assert_int_equal(w->late.nstands, 1);
    assert_int_equal(w->late.timeout_ns, 2000000000);
    assert_true(w->device.lost);
    close_world(w);
}

static void a_device_has_five_minutes(void **state) {
    struct world *w = open_world(SHORE_SHOWN_BUFFERS);
    const void *host;
    given(w, 0, &host);
    struct shore_event event = late_record(&w->late, w->copying);
    assert_int_equal(shore_device_wait(&w->device, event, &w->diag), 0);
    assert_int_equal(w->late.timeout_ns, UINT64_C(300) * 1000000000);
    assert_true(shore_device_passed(&w->device, event));
    assert_true(shore_device_passed(&w->device, (struct shore_event){NULL, 0}));
    assert_int_equal(shore_device_wait(&w->device, (struct shore_event){NULL, 0}, &w->diag), 0);
    close_world(w);
}

static void what_cannot_be_is_refused(void **state) {
    struct world *w = open_world(1);
    struct shore_shown_options options = {.npools = 0};
    struct shore_shown *shown;
    const void *host;
    uint64_t there;
    assert_int_equal(shore_shown_open(w->pages, &options, &shown, &w->diag), -EINVAL);
    assert_int_equal(shore_shown_get(w->shown, 0, PAGES, &host, &there, &w->diag), -EINVAL);
    assert_int_equal(shore_shown_get(w->shown, 1, 0, &host, &there, &w->diag), -EINVAL);
    close_world(w);
}

int main(void) {
    seed = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_computed_with_is_the_page),
        cmocka_unit_test(the_next_page_is_put_while_this_one_is_computed_with),
        cmocka_unit_test(pages_that_stay_are_not_waited_for),
        cmocka_unit_test(a_page_is_in_use_until_it_has_been_put),
        cmocka_unit_test(a_lost_device_is_waited_for_once),
        cmocka_unit_test(a_device_has_five_minutes),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
