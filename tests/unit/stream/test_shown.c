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
#include "longshore/memory.h"
#include "longshore/pages.h"
#include "number/bf16.h"
#include "seed.h"

enum { PAGES = 7, STAYING = 3, CALLS = 1 << 14, OPS = 400, SAMPLE = 64, RESULTS = 512, BUFFERS = 5, STREAMS = 3 };
enum { RING_BYTES = 4 * 40000 }; /* a page goes through it in four parts, the last of which is smaller */
#define PAGE_BYTES ((size_t)SHORE_SEGMENT_ELEMS * 2)

static uint64_t seed, drawn;

static uint32_t pick(uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, 1, drawn++) % (last - first + 1));
}

/* ---- a device ---------------------------------------------------------------------------------------------------- */

struct call {
    void *to;
    const void *from;
    size_t bytes;
    struct shore_event follow; /* instead of a copy */
    bool widens;
};

struct stream {
    struct call calls[CALLS];
    uint64_t called, done;
};

/* What a stream was called runs when it is waited for; sometimes also when it is looked at. */
struct late {
    const char *reached, *ring; /* all that puts may read; NULL: they may read all */
    bool hangs, only_if_waited_for, refuses_put, refuses_widen;
    uint32_t nputs, nstaged, nstands; /* waits that had to wait */
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
        else if (c.widens)
            shore__f32_from_bf16_below(c.to, c.from, c.bytes / 2);
        else
            memcpy(c.to, c.from, c.bytes);
    }
}

static int late_put(void *ctx, void *stream, uint64_t to, const void *from, size_t bytes) {
    struct late *l = ctx;
    if (l->refuses_put) return -EIO;
    if (l->ring) {
        size_t in_ring = (size_t)((const char *)from - l->ring), in_range = (size_t)((const char *)from - l->reached);
        assert_true(in_ring + bytes <= RING_BYTES || in_range + bytes <= STAYING * PAGE_BYTES);
        l->nstaged += in_ring < RING_BYTES;
    }
    l->nputs++;
    l->put_on = stream;
    return call(stream, (struct call){.to = (void *)(uintptr_t)to, .from = from, .bytes = bytes});
}
static int late_get(void *ctx, void *stream, void *to, uint64_t from, size_t bytes) {
    return call(stream, (struct call){.to = to, .from = (const void *)(uintptr_t)from, .bytes = bytes});
}
static int late_widen(void *ctx, void *stream, uint64_t to, uint64_t from, size_t elems) {
    if (((struct late *)ctx)->refuses_widen) return -EIO;
    return call(stream, (struct call){
                            .to = (void *)(uintptr_t)to,
                            .from = (const void *)(uintptr_t)from,
                            .bytes = elems * 2,
                            .widens = true,
                        });
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
    bool looked_at = !timeout_ns && !l->only_if_waited_for && pick(0, 3) == 0;
    if (!l->hangs && (timeout_ns || looked_at)) run(event), passed = true;
    return passed ? 0 : -ETIMEDOUT;
}

/* ---- a world of pages on it -------------------------------------------------------------------------------------- */

struct world {
    struct late late;
    struct shore_device device;
    struct stream *computing[STREAMS], *copying;
    struct shore_pages *pages;
    struct shore_shown *shown;
    void *buffer[BUFFERS];
    void *reached, *ring; /* NULL: the device reaches all memory */
    bool widens;
    uint32_t nbuffers, ngiven, given[BUFFERS]; /* pages */
    uint64_t step;                             /* of the pages */
    _Atomic uint64_t changed[PAGES];           /* the step that has changed each one last, which a thread reads */
    struct sample {
        bool wide;
        uint16_t expected;
        _Alignas(4) unsigned char values[SAMPLE * 4];
    } result[RESULTS];
    uint32_t nresults;
    struct shore_diag diag;
};

static uint16_t content(uint32_t page, uint64_t step) {
    return (uint16_t)(page * 1000 + step);
}

static int read_page(void *ctx, uint32_t block, uint32_t segment, uint32_t count, void *dst, struct shore_diag *diag) {
    const struct world *w = ctx;
    for (uint32_t i = 0; i < SHORE_SEGMENT_ELEMS; i++)
        ((uint16_t *)dst)[i] = content(block, w->changed[block]);
    return 0;
}

/* Of pages, some stay and the others share `host` buffers; on the device all share `buffers`. ring: the device reaches
 * the pages that stay alone. */
static struct world *open_world_with(uint32_t host, uint32_t buffers, bool widens, bool ring) {
    struct world *w = calloc(1, sizeof *w);
    struct shore_pages_range ranges[PAGES];
    uint64_t there[BUFFERS];
    const struct shore_shown_pool shown = {there, buffers, widens};
    if (ring) w->late.reached = w->reached = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, STAYING * PAGE_BYTES);
    if (ring) w->late.ring = w->ring = malloc(RING_BYTES);
    for (uint32_t i = 0; i < PAGES; i++)
        ranges[i] = (struct shore_pages_range){.block = i, .count = 1, .pool = i < STAYING ? SHORE_PAGES_STAYS : 0};
    for (uint32_t i = 0; ring && i < STAYING; i++)
        ranges[i].memory = (char *)w->reached + i * PAGE_BYTES;
    for (uint32_t i = 0; i < buffers; i++)
        there[i] = (uintptr_t)(w->buffer[i] = calloc(2, PAGE_BYTES));
    const struct shore_pages_pool pool = {.nbuffers = host};
    const struct shore_pages_options pages = {.size = sizeof pages,
                                              .ranges = ranges,
                                              .nranges = PAGES,
                                              .pools = &pool,
                                              .npools = 1,
                                              .read = read_page,
                                              .read_ctx = w};
    w->step = 1;
    for (uint32_t i = 0; i < PAGES; i++)
        w->changed[i] = 1;
    w->nbuffers = buffers;
    w->widens = widens;
    assert_int_equal(shore_pages_open(NULL, &pages, &w->pages, &w->diag), 0);
    shore_pages_set_step(w->pages, w->step);
    for (int i = 0; i < STREAMS; i++)
        w->computing[i] = calloc(1, sizeof *w->computing[i]);
    w->copying = calloc(1, sizeof *w->copying);
    w->device = (struct shore_device){.size = sizeof w->device,
                                      .ctx = &w->late,
                                      .put = late_put,
                                      .get = late_get,
                                      .record = late_record,
                                      .follow = late_follow,
                                      .wait = late_wait,
                                      .widen = late_widen};
    const struct shore_shown_options options = {.size = sizeof options,
                                                .device = &w->device,
                                                .copying = w->copying,
                                                .pools = &shown,
                                                .npools = 1,
                                                .reached = w->reached,
                                                .reached_bytes = ring ? STAYING * PAGE_BYTES : 0,
                                                .ring = w->ring,
                                                .ring_bytes = ring ? RING_BYTES : 0};
    assert_int_equal(shore_shown_open(w->pages, &options, &w->shown, &w->diag), 0);
    return w;
}

static struct world *open_world(uint32_t host, uint32_t buffers, bool widens) {
    return open_world_with(host, buffers, widens, false);
}

static void check_results(struct world *w) {
    for (int i = 0; i < STREAMS; i++)
        run(late_record(&w->late, w->computing[i]));
    for (uint32_t i = 0; i < w->nresults; i++)
        for (uint32_t k = 0; k < SAMPLE; k++) {
            const struct sample *r = &w->result[i];
            uint32_t value = r->wide ? ((const uint32_t *)r->values)[k] >> 16 : ((const uint16_t *)r->values)[k];
            assert_int_equal(value, r->expected);
        }
    w->nresults = 0;
}

static void close_world(struct world *w) {
    if (!w->late.hangs) check_results(w);
    shore_shown_close(w->shown);
    shore_pages_close(w->pages);
    for (uint32_t i = 0; i < w->nbuffers; i++)
        free(w->buffer[i]);
    for (int i = 0; i < STREAMS; i++)
        free(w->computing[i]);
    free(w->copying);
    free(w->reached);
    free(w->ring);
    free(w);
}

static void leave(struct world *w, uint32_t at) {
    shore_shown_leave(w->shown, 0, w->given[at]);
    w->given[at] = w->given[--w->ngiven];
}

static bool is_given(const struct world *w, uint32_t page) {
    for (uint32_t i = 0; i < w->ngiven; i++)
        if (w->given[i] == page) return true;
    return false;
}

/* Leaves one of the pages that are given, if all buffers are in use. */
static uint64_t given(struct world *w, uint32_t page, int stream, const void **host) {
    uint64_t there;
    uint32_t most = w->nbuffers ? w->nbuffers : 1;
    if (!is_given(w, page)) {
        if (w->ngiven == most) {
            const void *none;
            assert_int_equal(shore_shown_get(w->shown, 0, page, w->computing[0], &none, &there, &w->diag), -EBUSY);
            leave(w, pick(0, w->ngiven - 1));
        }
        w->given[w->ngiven++] = page;
    }
    assert_int_equal(shore_shown_get(w->shown, 0, page, w->computing[stream], host, &there, &w->diag), 0);
    assert_int_equal(there != 0, w->nbuffers != 0);
    return there;
}

/* Computing with a page: some of it is copied, when the stream comes to it. */
static void compute_with(struct world *w, uint32_t page, int stream) {
    const void *host;
    if (w->nresults == RESULTS) check_results(w);
    uint64_t at = given(w, page, stream, &host);
    size_t value_bytes = w->widens && at ? 4 : 2, sample_bytes = SAMPLE * value_bytes;
    for (uint32_t i = pick(1, 3); i && w->nresults < RESULTS; i--) {
        uint64_t offset = pick(0, (uint32_t)(SHORE_SEGMENT_ELEMS / SAMPLE - 1)) * sample_bytes;
        struct sample *result = &w->result[w->nresults];
        *result = (struct sample){.wide = value_bytes == 4, .expected = content(page, w->changed[page])};
        w->nresults++;
        if (at)
            late_get(&w->late, w->computing[stream], result->values, at + offset, sample_bytes);
        else
            memcpy(result->values, (const char *)host + offset, sample_bytes);
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

/* Begins the next step, which carries some pages over (bit i of `carried`: page i), and changes the others. */
static void go_on(struct world *w, uint32_t carried) {
    w->step++;
    for (uint32_t i = 0; i < PAGES; i++)
        if (carried >> i & 1)
            shore_pages_carried(w->pages, i, w->step);
        else
            w->changed[i] = w->step;
    shore_pages_set_step(w->pages, w->step);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void what_is_computed_with_is_the_page(void **state) {
    for (uint32_t turn = 0; turn < 8 * (BUFFERS + 1); turn++) {
        uint32_t buffers = turn / 8;
        struct world *w = open_world_with(turn % 2 ? 3 : 1, buffers, turn % 4 / 2, turn % 8 / 4);
        for (int op = 0; op < OPS; op++) {
            uint32_t page = pick(0, PAGES - 1), what = pick(0, 99);
            w->late.refuses_put = w->late.refuses_widen = false;
            if (what < 50) {
                compute_with(w, page, pick(0, 9) ? 0 : (int)pick(1, STREAMS - 1));
            } else if (what < 80) {
                w->late.refuses_put = pick(0, 9) == 0;
                w->late.refuses_widen = pick(0, 9) == 0;
                shore_shown_want(w->shown, 0, page);
            } else if (what < 85) {
                if (w->ngiven) leave(w, pick(0, w->ngiven - 1));
            } else if (what < 92) {
                for (uint32_t i = 0; i < w->ngiven; i++)
                    if (w->given[i] == page) w->given[i--] = w->given[--w->ngiven];
                shore_shown_release(w->shown, 0, page);
            } else {
                while (w->ngiven) /* nobody computes with pages of another step */
                    leave(w, 0);
                if (pick(0, 1)) shore_shown_release_all(w->shown);
                if (what > 93) go_on(w, pick(0, (1 << PAGES) - 1));
            }
        }
        assert_int_equal(w->late.nstaged != 0, buffers && w->ring);
        close_world(w);
    }
}

/* The host waits for parts of the ring alone, and prefetches only where the ring would wait for nothing else. */
static void pages_that_the_device_does_not_reach(void **state) {
    struct world *w = open_world_with(2, 2, false, true);
    const void *host;
    w->late.only_if_waited_for = true;
    given(w, STAYING, 0, &host);
    assert_int_equal(w->late.nstaged, 4);
    assert_int_equal(w->late.nstands, 0);
    assert_true(is_free(w, STAYING)); /* the ring has it */
    given(w, STAYING + 1, 0, &host);
    assert_int_equal(w->late.nstands, 4);
    leave(w, 0);
    for (int i = 0; i < 2; i++) {
        while (shore_pages_want(w->pages, STAYING + 2) != SHORE_PAGE_THERE) {
        }
        w->late.nstaged = 0;
        shore_shown_want(w->shown, 0, STAYING + 2);
        assert_int_equal(w->late.nstaged, i ? 4 : 0);
        run(late_record(&w->late, w->computing[0]));
    }
    given(w, 0, 0, &host);
    assert_int_equal(w->late.nstaged, 4); /* that one is reached */
    close_world(w);
}

static void a_lost_device_with_a_ring(void **state) {
    struct world *w = open_world_with(2, 2, false, true);
    const void *host;
    uint64_t there;
    given(w, STAYING, 0, &host);
    w->late.hangs = true;
    assert_int_equal(shore_shown_get(w->shown, 0, STAYING + 1, w->computing[0], &host, &there, &w->diag), -ETIMEDOUT);
    assert_non_null(strstr(w->diag.text, "lost"));
    close_world(w);
}

static void the_next_page_is_put_while_this_one_is_computed_with(void **state) {
    struct world *w = open_world(1, 2, false);
    for (uint32_t i = 0; i < STAYING; i++)
        compute_with(w, i, 0), leave(w, 0); /* so that the host has them */
    w->late.nputs = 0;
    compute_with(w, 0, 0);
    shore_shown_want(w->shown, 0, 1);
    assert_int_equal(w->late.nputs, 2);
    assert_ptr_equal(w->late.put_on, w->copying);
    compute_with(w, 1, 0);
    shore_shown_want(w->shown, 0, 2); /* both buffers are in use */
    assert_int_equal(w->late.nputs, 2);
    leave(w, 0);
    compute_with(w, 0, 0); /* both are there still */
    assert_int_equal(w->late.nputs, 2);
    shore_shown_release(w->shown, 0, 0); /* its parameters change */
    w->ngiven = 1;
    w->given[0] = 1;
    compute_with(w, 0, 0);
    assert_int_equal(w->late.nputs, 3);
    shore_shown_release_all(w->shown);
    w->ngiven = 0;
    go_on(w, 0);
    compute_with(w, 1, 0);
    assert_int_equal(w->late.nputs, 4);
    close_world(w);
}

static void a_page_that_no_step_changes_is_put_once(void **state) {
    struct world *w = open_world(1, 2, false);
    compute_with(w, 0, 0);
    for (int step = 0; step < 3; step++) {
        leave(w, 0);
        go_on(w, 1);
        compute_with(w, 0, 0);
        assert_int_equal(w->late.nputs, 1);
    }
    leave(w, 0);
    go_on(w, 0);
    go_on(w, 1);
    compute_with(w, 0, 0);
    assert_int_equal(w->late.nputs, 2);
    close_world(w);
}

/* As many pages as are in memory: the host says all of a step before any of it has run. */
static void pages_that_stay_are_not_waited_for(void **state) {
    struct world *w = open_world(1, 2, false);
    for (uint32_t i = 0; i < 2 * STAYING; i++) {
        uint32_t page = i < STAYING ? i : 2 * STAYING - 1 - i;
        compute_with(w, page, 0);
        leave(w, 0);
        shore_shown_want(w->shown, 0, i + 1 < STAYING ? i + 1 : page ? page - 1 : 0);
    }
    assert_int_equal(w->late.nstands, 0);
    close_world(w);
}

/* Two streams read a buffer; what is put there next comes after both, whoever has left it. */
static void what_is_put_next_follows_every_stream_that_reads(void **state) {
    struct world *w = open_world(1, 1, false);
    compute_with(w, 0, 0);
    compute_with(w, 0, 1);
    leave(w, 0);
    compute_with(w, 1, 2);
    run(late_record(&w->late, w->computing[2]));
    assert_int_equal(w->computing[0]->done, w->computing[0]->called);
    assert_int_equal(w->computing[1]->done, w->computing[1]->called);
    close_world(w);
}

static void a_page_is_in_use_until_it_has_been_put(void **state) {
    struct world *w = open_world(1, 2, false);
    const void *host;
    given(w, 0, 0, &host);
    given(w, 1, 0, &host);
    leave(w, 0);
    given(w, 2, 0, &host); /* in the buffer of page 0, which may still have to be put into it */
    shore_shown_release(w->shown, 0, 1);
    assert_true(is_free(w, 0) && is_free(w, 1));
    assert_false(is_free(w, 2));
    shore_shown_settle(w->shown);
    assert_true(is_free(w, 2));
    w->late.nputs = 0;
    given(w, 2, 0, &host); /* it is given still */
    assert_int_equal(w->late.nputs, 0);
    close_world(w);
}

/* The error is told, nothing is given, the page is free once it may be, and the next get puts it. */
static void a_put_that_is_refused(void **state) {
    for (int widen = 0; widen < 2; widen++) {
        struct world *w = open_world(1, 1, true);
        const void *host;
        uint64_t there;
        *(widen ? &w->late.refuses_widen : &w->late.refuses_put) = true;
        assert_int_equal(shore_shown_get(w->shown, 0, 0, w->computing[0], &host, &there, &w->diag), -EIO);
        assert_non_null(strstr(w->diag.text, "put on the device"));
        assert_int_equal(is_free(w, 0), !widen);
        w->late.refuses_put = w->late.refuses_widen = false;
        compute_with(w, 0, 0);
        close_world(w);
    }
}

static void a_lost_device_is_waited_for_once(void **state) {
    struct world *w = open_world(1, 2, false);
    const void *host;
    for (uint32_t i = 0; i < STAYING; i++)
        given(w, i, 0, &host);
    w->late.hangs = true;
    w->device.timeout_ns = 2000000000;
    shore_shown_release_all(w->shown);
    assert_int_equal(w->late.nstands <= 1, true);
    w->ngiven = 0;
    given(w, 0, 0, &host);
    struct shore_event event = late_record(&w->late, w->copying);
    assert_false(shore_device_passed(&w->device, event));
    assert_int_equal(shore_device_wait(&w->device, event, &w->diag), -ETIMEDOUT);
    assert_non_null(strstr(w->diag.text, "lost"));
    assert_non_null(strstr(w->diag.text, "2 seconds"));
    assert_int_equal(w->diag.advice, SHORE_ADVICE_DEVICE_TIMEOUT);
    assert_int_equal(w->late.nstands, 1);
    assert_int_equal(w->late.timeout_ns, 2000000000);
    assert_true(w->device.lost);
    close_world(w);
}

static void a_device_has_five_minutes(void **state) {
    struct world *w = open_world(1, 2, false);
    const void *host;
    w->late.only_if_waited_for = true;
    given(w, 0, 0, &host);
    struct shore_event event = late_record(&w->late, w->copying);
    assert_int_equal(shore_device_wait(&w->device, event, &w->diag), 0);
    assert_int_equal(w->late.nstands, 1);
    assert_int_equal(w->device.waits, 1);
    assert_int_equal(w->late.timeout_ns, UINT64_C(300) * 1000000000);
    assert_true(shore_device_passed(&w->device, event));
    assert_true(shore_device_passed(&w->device, (struct shore_event){NULL, 0}));
    assert_int_equal(shore_device_wait(&w->device, (struct shore_event){NULL, 0}, &w->diag), 0);
    close_world(w);
}

static void what_cannot_be_is_refused(void **state) {
    struct world *w = open_world(1, 1, false);
    struct shore_shown_options options = {.npools = 0};
    struct shore_shown *shown;
    const void *host;
    uint64_t there;
    assert_int_equal(shore_shown_open(w->pages, &options, &shown, &w->diag), -EINVAL);
    assert_int_equal(shore_shown_get(w->shown, 0, PAGES, NULL, &host, &there, &w->diag), -EINVAL);
    assert_int_equal(shore_shown_get(w->shown, 1, 0, NULL, &host, &there, &w->diag), -EINVAL);
    const struct shore_shown_pool widens = {.widens = true};
    options = (struct shore_shown_options){.size = sizeof options, .device = &w->device, .pools = &widens, .npools = 1};
    w->device.widen = NULL;
    assert_int_equal(shore_shown_open(w->pages, &options, &shown, &w->diag), -EINVAL);
    assert_non_null(strstr(w->diag.text, "widen"));
    char ring[255];
    options =
        (struct shore_shown_options){.size = sizeof options, .device = &w->device, .ring = ring, .ring_bytes = 255};
    assert_int_equal(shore_shown_open(w->pages, &options, &shown, &w->diag), -EINVAL);
    close_world(w);
}

int main(void) {
    seed = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_computed_with_is_the_page),
        cmocka_unit_test(pages_that_the_device_does_not_reach),
        cmocka_unit_test(a_lost_device_with_a_ring),
        cmocka_unit_test(the_next_page_is_put_while_this_one_is_computed_with),
        cmocka_unit_test(a_page_that_no_step_changes_is_put_once),
        cmocka_unit_test(pages_that_stay_are_not_waited_for),
        cmocka_unit_test(what_is_put_next_follows_every_stream_that_reads),
        cmocka_unit_test(a_page_is_in_use_until_it_has_been_put),
        cmocka_unit_test(a_put_that_is_refused),
        cmocka_unit_test(a_lost_device_is_waited_for_once),
        cmocka_unit_test(a_device_has_five_minutes),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
