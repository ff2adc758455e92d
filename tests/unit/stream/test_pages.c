/* Pages against a plain model of them: whatever is asked for in whatever order, what a page holds is what the fleet has
 * of the step, it stays so while it is in use, and what is refused is refused for a reason.
 *
 * Every element of a segment is a small number: where it lies, plus what updates have made of the segment. Numbers up
 * to 256 are exact in bf16, and so are the sums of SGD. */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/prng.h"
#include "longshore/pages.h"
#include "number/bf16.h"
#include "storage/blockio.h"

enum { BLOCKS = 4, SEGMENTS_MOST = 5, POOLS = 3, PAGES_MOST = 24, LOANS = 3, OPS = 3000, USES_MOST = 3 };
static const uint32_t segments_of[BLOCKS] = {5, 3, 1, 4};

static uint64_t seed, drawn;

static uint32_t pick(uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, 1, drawn++) % (last - first + 1));
}

/* What is expected of a page. */
struct expected {
    struct shore_pages_range range;
    uint32_t uses;
    const void *at;
    uint64_t step;                  /* of which it is used */
    uint32_t values[SEGMENTS_MOST]; /* the same */
    bool stale;                     /* while it is used, a segment of it was updated, or it is of no step any more */
    bool in_parts, lent;
};

struct world {
    struct shore_layout *layout;
    struct shore_fleet *fleet;
    struct shore_arena *arena;
    struct shore_pages *pages;
    enum shore_fetch_kind kind;
    uint32_t npages, nbuffers[POOLS];
    struct expected page[PAGES_MOST];
    void *memory[PAGES_MOST]; /* given to pages that stay, or NULL */
    void *loan[LOANS];
    uint64_t step, base; /* that is asked for; committed */
    uint32_t value[BLOCKS][SEGMENTS_MOST], next[BLOCKS][SEGMENTS_MOST];
    enum { UNTOUCHED, UPDATED, CARRIED } done[BLOCKS][SEGMENTS_MOST];
    void *gradients[64]; /* of this attempt */
    uint32_t ngradients;
    uint32_t submitted;
    atomic_uint completions;
    struct shore_diag diag;
};

#define assert_ok(w, rc) assert_code(w, rc, 0, __LINE__)
static void assert_code(struct world *w, int rc, int expected, int line) {
    if (rc != expected) fail_msg("line %d: %d instead of %d: %s", line, rc, expected, w->diag.text);
}

static size_t elem_bytes(const struct world *w) {
    return w->kind == SHORE_FETCH_MASTER ? 4 : 2;
}
static size_t bytes_of(const struct world *w, uint32_t segments) {
    return (size_t)segments * SHORE_SEGMENT_ELEMS * elem_bytes(w);
}
static float element(uint32_t value, uint32_t segment, size_t i) {
    return (float)(value + (i + segment) % 13);
}

/* ---- the world -----------------------------------------------------------------------------------------------------
 */

static void random_ranges(struct world *w) {
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t s = 0, n; s < segments_of[b]; s += n) {
            n = pick(1, segments_of[b] - s);
            w->page[w->npages++].range = (struct shore_pages_range){.block = b, .segment = s, .count = n};
        }
    for (uint32_t i = pick(0, 4); i; i--) { /* others, that share their segments */
        uint32_t b = pick(0, BLOCKS - 1), s = pick(0, segments_of[b] - 1), n = pick(0, segments_of[b] - s);
        w->page[w->npages++].range = (struct shore_pages_range){.block = b, .segment = s, .count = n};
    }
    for (uint32_t i = 0; i < w->npages; i++) {
        struct shore_pages_range *r = &w->page[i].range;
        r->pool = pick(0, 2) ? pick(0, POOLS - 1) : SHORE_PAGES_STAYS;
        if (r->pool != SHORE_PAGES_STAYS || !r->count || pick(0, 1)) continue;
        assert_ok(w, shore_buffer_alloc(bytes_of(w, r->count), 0, &w->memory[i], &w->diag));
        r->memory = w->memory[i];
    }
}

static void open_fleet(struct world *w, const char *drive) {
    struct shore_tensor_spec tensor[BLOCKS];
    struct shore_block_spec block[BLOCKS];
    for (uint32_t b = 0; b < BLOCKS; b++) {
        tensor[b] = (struct shore_tensor_spec){"w", (uint64_t)segments_of[b] * SHORE_SEGMENT_ELEMS, 0};
        block[b] = (struct shore_block_spec){"b", &tensor[b], 1};
    }
    assert_ok(w, shore_layout_make(block, BLOCKS, &w->layout));
    const char *const drives[] = {drive, drive};
    const struct shore_fleet_options options = {
        .size = sizeof options,
        .drives = drives,
        .ndrives = strcmp(drive, "ram:") ? 1 : pick(1, 2),
        .optimizer = SHORE_SGD,
        .fp32_params = pick(0, 3) ? w->kind == SHORE_FETCH_MASTER : pick(0, 1),
        .chunk_segments = 1,
        .ring_bytes = 1,
    };
    assert_ok(w, shore_fleet_create(w->layout, &options, &w->fleet, &w->diag));
    float *masters = malloc((size_t)SHORE_SEGMENT_ELEMS * 4);
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t s = 0; s < segments_of[b]; s++) {
            w->value[b][s] = pick(0, 200);
            for (size_t i = 0; i < SHORE_SEGMENT_ELEMS; i++)
                masters[i] = element(w->value[b][s], s, i);
            assert_ok(w, shore_fleet_init_block(w->fleet, b, s, 1, masters, NULL, NULL, &w->diag));
        }
    free(masters);
    assert_ok(w, shore_fleet_seal(w->fleet, 0, &w->diag));
    memcpy(w->next, w->value, sizeof w->next);
}

static void open_world(struct world *w, const char *drive) {
    *w = (struct world){.kind = pick(0, 1) ? SHORE_FETCH_MASTER : SHORE_FETCH_BF16};
    struct shore_pages_pool pools[POOLS];
    struct shore_pages_range ranges[PAGES_MOST];
    open_fleet(w, drive);
    random_ranges(w);
    for (uint32_t i = 0; i < POOLS; i++)
        pools[i] = (struct shore_pages_pool){.nbuffers = w->nbuffers[i] = pick(1, 3)};
    for (uint32_t i = 0; i < w->npages; i++)
        ranges[i] = w->page[i].range;
    struct shore_pages_options options = {
        .size = sizeof options,
        .ranges = ranges,
        .nranges = w->npages,
        .pools = pools,
        .npools = POOLS,
        .kind = w->kind,
    };
    uint64_t bytes = shore_pages_bytes(&options);
    if (pick(0, 1)) {
        assert_ok(w, shore_arena_open(bytes, 0, &w->arena, &w->diag));
        options.arena = w->arena;
    }
    assert_ok(w, shore_pages_open(w->fleet, &options, &w->pages, &w->diag));
    if (w->arena) assert_int_equal(shore_arena_left(w->arena), 0);
    for (int i = 0; i < LOANS; i++)
        assert_ok(w, shore_buffer_alloc(bytes_of(w, SEGMENTS_MOST), 0, &w->loan[i], &w->diag));
}

static void forget_gradients(struct world *w) {
    while (w->ngradients)
        free(w->gradients[--w->ngradients]);
}

static void close_world(struct world *w) {
    if (pick(0, 1)) {
        shore_pages_close(w->pages);
        shore_fleet_close(w->fleet);
    } else {
        shore_fleet_close(w->fleet);
        shore_pages_close(w->pages);
    }
    forget_gradients(w);
    shore_arena_close(w->arena);
    for (uint32_t i = 0; i < w->npages; i++)
        shore_buffer_free(w->memory[i], bytes_of(w, w->page[i].range.count));
    for (int i = 0; i < LOANS; i++)
        shore_buffer_free(w->loan[i], bytes_of(w, SEGMENTS_MOST));
    shore_layout_free(w->layout);
}

/* ---- what is expected ----------------------------------------------------------------------------------------------
 */

static void assert_content(const struct world *w, const struct expected *page) {
    for (uint32_t s = 0; s < page->range.count; s++) {
        const char *at = (const char *)page->at + bytes_of(w, s);
        for (size_t i = 0; i < SHORE_SEGMENT_ELEMS; i++) {
            float want = element(page->values[s], page->range.segment + s, i), got;
            got = w->kind == SHORE_FETCH_MASTER ? ((const float *)(const void *)at)[i]
                                                : shore__bf16_to_f32(((const uint16_t *)(const void *)at)[i]);
            if (got != want)
                fail_msg("block %u, segment %u, element %zu of step %" PRIu64 ": %g instead of %g", page->range.block,
                         page->range.segment + s, i, page->step, (double)got, (double)want);
        }
    }
}

/* The step that is being written can be asked for where all of the page is written or carried. */
static bool can_be_asked_for(const struct world *w, const struct expected *page) {
    for (uint32_t s = 0; w->step > w->base && s < page->range.count; s++)
        if (w->done[page->range.block][page->range.segment + s] == UNTOUCHED) return false;
    return true;
}

static bool meet(const struct expected *a, const struct expected *b) {
    return a->range.block == b->range.block && a->range.segment < b->range.segment + b->range.count &&
           b->range.segment < a->range.segment + a->range.count;
}

/* Itself, or one that it shares segments with, has more parts to come. */
static bool is_in_parts(const struct world *w, const struct expected *page) {
    for (uint32_t i = 0; i < w->npages; i++)
        if (w->page[i].in_parts && (page == &w->page[i] || meet(page, &w->page[i]))) return true;
    return false;
}

static bool all_in_use(const struct world *w, const struct expected *page) {
    uint32_t n = 0;
    if (page->range.pool == SHORE_PAGES_STAYS || page->lent) return false;
    for (uint32_t i = 0; i < w->npages; i++)
        n += w->page[i].uses && !w->page[i].lent && w->page[i].range.count && w->page[i].range.pool == page->range.pool;
    return n == w->nbuffers[page->range.pool];
}

/* Whether a code of get is one that this page may get now. */
static bool may_be(const struct world *w, const struct expected *page, int rc) {
    bool good = !page->range.count || (page->uses && !page->stale && page->step == w->step);
    if (good) return rc == 0;
    if (page->uses) return rc == -EBUSY || rc == -EINVAL;
    if (rc == 0) return true;
    return (rc == -EBUSY && all_in_use(w, page)) || (rc == -EINVAL && is_in_parts(w, page));
}

/* ---- operations ----------------------------------------------------------------------------------------------------
 */

static void want(struct world *w, uint32_t number) {
    struct expected *page = &w->page[number];
    if (!can_be_asked_for(w, page)) return;
    shore_pages_waited_ns(w->pages);
    if (shore_pages_want(w->pages, number) != SHORE_PAGE_THERE || pick(0, 1)) return;
    const void *at;
    assert_ok(w, shore_pages_get(w->pages, number, &at, &w->diag));
    assert_int_equal(shore_pages_waited_ns(w->pages), 0);
    shore_pages_release(w->pages, number);
}

static void get(struct world *w, uint32_t number) {
    struct expected *page = &w->page[number];
    const void *at;
    if (!can_be_asked_for(w, page) || page->uses == USES_MOST) return;
    int rc = shore_pages_get(w->pages, number, &at, &w->diag);
    if (!may_be(w, page, rc)) fail_msg("page %u: %d (%s)", number, rc, w->diag.text);
    if (rc) return;
    if (page->uses) assert_ptr_equal(at, page->at);
    if (page->range.memory) assert_ptr_equal(at, page->range.memory);
    bool next = w->step > w->base;
    page->uses++;
    page->at = at;
    page->step = w->step;
    page->stale = false;
    for (uint32_t s = 0; s < page->range.count; s++)
        page->values[s] = (next ? w->next : w->value)[page->range.block][page->range.segment + s];
    assert_content(w, page);
}

static void release(struct world *w, uint32_t number) {
    struct expected *page = &w->page[number];
    if (!page->uses) return;
    assert_content(w, page);
    shore_pages_release(w->pages, number);
    page->uses--;
}

static void count_completion(void *ctx, int rc, const struct shore_diag *diag) {
    struct world *w = ctx;
    assert_true(rc == 0 || rc == SHORE_EDISCARDED);
    w->completions++;
}

static float *gradient_of(struct world *w, uint32_t block, uint32_t segment, uint32_t count) {
    float *g = aligned_alloc(4096, (size_t)count * SHORE_SEGMENT_ELEMS * 4);
    for (uint32_t s = 0; s < count; s++)
        for (size_t i = 0; i < SHORE_SEGMENT_ELEMS; i++)
            g[s * (size_t)SHORE_SEGMENT_ELEMS + i] =
                (float)w->value[block][segment + s] - (float)w->next[block][segment + s];
    assert_true(w->ngradients < sizeof w->gradients / sizeof *w->gradients);
    return w->gradients[w->ngradients++] = g;
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

static void lend(struct world *w, uint32_t number) {
    struct expected *page = &w->page[number];
    uint32_t nth = 0;
    for (uint32_t i = 0; i < w->npages; i++)
        nth += w->page[i].lent;
    if (nth == LOANS) return;
    int rc = shore_pages_lend(w->pages, number, w->loan[nth]);
    if (page->range.pool == SHORE_PAGES_STAYS || page->lent || !page->range.count)
        assert_int_equal(rc, -EINVAL);
    else if (page->uses || page->in_parts)
        assert_int_equal(rc, -EBUSY);
    else if (rc) /* or its update is under way still */
        assert_int_equal(rc, -EBUSY);
    page->lent |= !rc;
}

static void reclaim(struct world *w) {
    int expected = 0;
    for (uint32_t i = 0; i < w->npages && !expected; i++)
        if (w->page[i].lent) expected = w->page[i].uses ? -EBUSY : w->page[i].in_parts ? -EINVAL : 0;
    assert_code(w, shore_pages_reclaim(w->pages, &w->diag), expected, __LINE__);
    for (uint32_t i = 0; i < w->npages && !expected; i++)
        w->page[i].lent = false;
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
    for (uint32_t i = 0; i < w->npages; i++)
        w->page[i].lent = false;
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
    else if (what < 50)
        get(w, number);
    else if (what < 70)
        release(w, number);
    else if (what < 80)
        update(w, number);
    else if (what < 88)
        update_end(w, number);
    else if (what < 90)
        carry(w, number);
    else if (what < 92)
        lend(w, number);
    else if (what < 94)
        reclaim(w);
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
    for (int i = 0; i < 6; i++) {
        struct world w;
        open_world(&w, "ram:");
        for (int op = 0; op < OPS; op++)
            one(&w);
        close_world(&w);
    }
}

/* ---- what fails ----------------------------------------------------------------------------------------------------
 */

static int fail_reads(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    const atomic_bool *failing = ctx;
    return *failing && op->kind == SHORE__IO_READ ? -EIO : SHORE__IO_PASS;
}

static void a_fetch_that_failed_is_tried_again(void **state) {
    struct world w;
    static atomic_bool failing;
    const void *at;
    char path[] = "/tmp/shore-pages-XXXXXX", drive[sizeof path + 16];
    assert_non_null(mkdtemp(path));
    snprintf(drive, sizeof drive, "%s/state.volume", path);
    shore__io_set_shim(fail_reads, &failing);
    open_world(&w, drive);
    for (uint32_t i = 0; i < w.npages; i++) {
        if (!w.page[i].range.count) continue;
        failing = true;
        if (pick(0, 1)) shore_pages_want(w.pages, i);
        assert_int_equal(shore_pages_get(w.pages, i, &at, &w.diag), -EIO);
        assert_non_null(strstr(w.diag.text, drive));
        failing = false;
        get(&w, i);
        assert_int_equal(w.page[i].uses, 1);
        release(&w, i);
    }
    close_world(&w);
    shore__io_set_shim(NULL, NULL);
    unlink(drive);
    rmdir(path);
}

/* What an update failed with is said once; then the page is fetched again. */
static void an_update_that_failed_is_said_once(void **state) {
    struct world w;
    const void *at;
    const struct shore_hyper hyper = {.lr = 1};
    open_world(&w, "ram:");
    struct shore_update u = {
        .size = sizeof u, .attempt = shore_fleet_attempt(w.fleet), .coefficient = 0, .groups = &hyper, .ngroups = 1};
    u.segment = w.page[0].range.segment;
    u.count = 1;
    u.gradient = gradient_of(&w, 0, u.segment, 1);
    assert_ok(&w, shore_pages_update(w.pages, 0, &u, (struct shore_completion){NULL, NULL}));
    shore_pages_update_end(w.pages, 0);
    assert_int_equal(shore_pages_get(w.pages, 0, &at, &w.diag), -EINVAL);
    assert_non_null(strstr(w.diag.text, "coefficient"));
    shore_fleet_discard(w.fleet);
    shore_pages_discarded(w.pages);
    get(&w, 0);
    assert_int_equal(w.page[0].uses, 1);
    close_world(&w);
}

/* ---- without a fleet -----------------------------------------------------------------------------------------------
 */

struct reader {
    uint32_t calls;
    int rc;
};

static int read_numbers(void *ctx, uint32_t block, uint32_t segment, uint32_t count, void *dst,
                        struct shore_diag *diag) {
    struct reader *r = ctx;
    r->calls++;
    memset(dst, (int)(block * 16 + segment), (size_t)count * SHORE_SEGMENT_ELEMS * 2);
    return r->rc;
}

static void pages_are_read_when_they_are_got(void **state) {
    struct reader reader = {.rc = -EIO};
    struct shore_pages *pages;
    struct shore_diag diag;
    const void *at;
    const struct shore_pages_range ranges[] = {{.block = 1, .segment = 2, .count = 1}, {.block = 3, .count = 2}};
    const struct shore_pages_pool pool = {.nbuffers = 1};
    const struct shore_pages_options options = {.size = sizeof options,
                                                .ranges = ranges,
                                                .nranges = 2,
                                                .pools = &pool,
                                                .npools = 1,
                                                .read = read_numbers,
                                                .read_ctx = &reader};
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), 0);
    assert_int_equal(shore_pages_want(pages, 0), SHORE_PAGE_LATER);
    assert_int_equal(reader.calls, 0);
    assert_int_equal(shore_pages_get(pages, 0, &at, &diag), -EIO);
    reader.rc = 0;
    assert_int_equal(shore_pages_get(pages, 0, &at, &diag), 0);
    assert_int_equal(((const unsigned char *)at)[77], 18);
    assert_int_equal(shore_pages_get(pages, 1, &at, &diag), -EBUSY);
    assert_non_null(strstr(diag.text, "in use"));
    shore_pages_release(pages, 0);
    assert_int_equal(shore_pages_get(pages, 1, &at, &diag), 0);
    assert_int_equal(((const unsigned char *)at)[77], 48);
    assert_int_equal(reader.calls, 3);
    struct shore_update update = {.size = sizeof update, .count = 1};
    assert_int_equal(shore_pages_update(pages, 0, &update, (struct shore_completion){NULL, NULL}), -EINVAL);
    shore_pages_close(pages);
}

static void what_cannot_be_is_refused(void **state) {
    static _Alignas(4096) char memory[2 * SHORE_SEGMENT_ELEMS];
    void *const crooked[] = {memory + 1};
    struct reader reader = {0};
    struct shore_pages *pages;
    struct shore_diag diag;
    struct shore_pages_range range = {.count = 1};
    struct shore_pages_pool pool = {.nbuffers = 1};
    struct shore_pages_options options = {.ranges = &range, .nranges = 1, .read = read_numbers, .read_ctx = &reader};
    assert_int_equal(shore_pages_bytes(&options), 0);
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), -EINVAL);
    assert_string_equal(diag.text, "the size of a struct shore_pages_options was not set: it is "
                                   "sizeof(struct shore_pages_options)");
    options.size = sizeof options;
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), -EINVAL);
    assert_non_null(strstr(diag.text, "no buffer"));
    options.pools = &pool;
    options.npools = 1;
    pool.buffers = crooked;
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), -EINVAL);
    assert_non_null(strstr(diag.text, "not aligned"));
    pool.buffers = NULL;
    range = (struct shore_pages_range){.count = 1, .pool = SHORE_PAGES_STAYS, .memory = memory + 1};
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), -EINVAL);
    range.memory = memory;
    options.kind = SHORE_FETCH_M;
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), -EINVAL);
    options.kind = SHORE_FETCH_BF16;
    options.read = NULL;
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), -EINVAL);
    struct world w;
    open_world(&w, "ram:");
    range = (struct shore_pages_range){.block = 1, .segment = segments_of[1], .count = 1, .pool = SHORE_PAGES_STAYS};
    assert_int_equal(shore_pages_open(w.fleet, &options, &pages, &diag), -EINVAL);
    assert_non_null(strstr(diag.text, "layout"));
    close_world(&w);
}

int main(void) {
    const char *given = getenv("SEED");
    seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    print_message("SEED=%" PRIu64 "\n", seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_hold_what_the_fleet_has),      cmocka_unit_test(a_fetch_that_failed_is_tried_again),
        cmocka_unit_test(an_update_that_failed_is_said_once), cmocka_unit_test(pages_are_read_when_they_are_got),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
