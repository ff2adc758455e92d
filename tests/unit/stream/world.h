/* A world of pages on a fleet and a plain model of them: what each page has to hold, and which codes it may give.
 *
 * Every element of a segment is a small number: where it lies, plus what updates have made of the segment. Numbers up
 * to 256 are exact in bf16, and so are the sums of SGD. */
#ifndef TESTS_STREAM_WORLD_H
#define TESTS_STREAM_WORLD_H

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

#include <cmocka.h>

#include "base/prng.h"
#include "longshore/pages.h"
#include "number/bf16.h"

enum { BLOCKS = 4, SEGMENTS_MOST = 5, POOLS = 3, PAGES_MOST = 24, USES_MOST = 3 };
static const uint32_t segments_of[BLOCKS] = {5, 3, 1, 4};

static uint64_t seed, drawn;

static inline uint32_t pick(uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, 1, drawn++) % (last - first + 1));
}

/* What is expected of a page. */
struct expected {
    struct shore_pages_range range;
    uint32_t uses;
    const void *at;
    uint64_t step;                  /* of which it is used */
    uint32_t values[SEGMENTS_MOST]; /* the same */
    bool has[SEGMENTS_MOST];        /* the segments that were asked for */
    bool stale;                     /* while it is used, a segment of it was updated, or it is of no step any more */
    bool in_parts;
};

struct world {
    struct shore_layout *layout;
    struct shore_fleet *fleet;
    struct shore_arena *arena;
    struct shore_pages *pages;
    enum shore_fetch_kind kind;
    uint32_t npages, nbuffers[POOLS];
    struct expected page[PAGES_MOST];
    float *memory[PAGES_MOST]; /* in fp32, at whose end pages lie that stay, or NULL */
    uint64_t step, base;       /* that is asked for; committed */
    uint32_t value[BLOCKS][SEGMENTS_MOST], next[BLOCKS][SEGMENTS_MOST];
    enum { UNTOUCHED, UPDATED, CARRIED } done[BLOCKS][SEGMENTS_MOST];
    void *gradients[64]; /* of this attempt */
    uint32_t ngradients;
    uint32_t submitted;
    atomic_uint completions;
    struct shore_diag diag;
};

#define assert_ok(w, rc) assert_code(w, rc, 0, __LINE__)
static inline void assert_code(struct world *w, int rc, int expected, int line) {
    if (rc != expected) fail_msg("line %d: %d instead of %d: %s", line, rc, expected, w->diag.text);
}

static inline bool is_fp32(const struct shore_pages_range *r) {
    return r->kind == SHORE_FETCH_MASTER;
}
static inline size_t bytes_of(bool fp32, uint32_t segments) {
    return (size_t)segments * SHORE_SEGMENT_ELEMS * (fp32 ? 4 : 2);
}
static inline size_t fp32_bytes(uint32_t segments) {
    return (size_t)segments * SHORE_SEGMENT_ELEMS * sizeof(float);
}
static inline float element(uint32_t value, uint32_t segment, size_t i) {
    return (float)(value + (i + segment) % 13);
}

/* ---- the world --------------------------------------------------------------------------------------------------- */

static inline void random_ranges(struct world *w) {
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
        r->kind = pick(0, 3) ? w->kind : pick(0, 1) ? SHORE_FETCH_MASTER : SHORE_FETCH_BF16;
        if (r->pool != SHORE_PAGES_STAYS || !r->count || pick(0, 1)) continue;
        void *memory;
        assert_ok(w, shore_buffer_alloc(fp32_bytes(r->count), 0, &memory, &w->diag));
        r->memory = (char *)memory + fp32_bytes(r->count) - bytes_of(is_fp32(r), r->count);
        w->memory[i] = memory;
    }
}

static inline void open_fleet(struct world *w, const char *drive) {
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

static inline void open_world(struct world *w, const char *drive) {
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
    };
    if (pick(0, 1)) {
        uint64_t bytes = 0; /* all pages, and all buffers */
        for (uint32_t i = 0; i < w->npages; i++)
            bytes += fp32_bytes(ranges[i].count) * (1 + 3 * POOLS);
        assert_ok(w, shore_arena_open(bytes, 0, &w->arena, &w->diag));
        options.arena = w->arena;
    }
    assert_ok(w, shore_pages_open(w->fleet, &options, &w->pages, &w->diag));
}

static inline void forget_gradients(struct world *w) {
    while (w->ngradients)
        free(w->gradients[--w->ngradients]);
}

static inline void free_memory(struct world *w) {
    for (uint32_t i = 0; i < w->npages; i++) {
        shore_buffer_free(w->memory[i], fp32_bytes(w->page[i].range.count));
        w->memory[i] = NULL;
    }
}

static inline void close_world(struct world *w) {
    if (pick(0, 1)) {
        shore_pages_close(w->pages);
        shore_fleet_close(w->fleet);
    } else {
        shore_fleet_close(w->fleet);
        shore_pages_close(w->pages);
    }
    forget_gradients(w);
    shore_arena_close(w->arena);
    free_memory(w);
    shore_layout_free(w->layout);
}

/* ---- what is expected -------------------------------------------------------------------------------------------- */

static inline void assert_content(const struct world *w, const struct expected *page) {
    for (uint32_t s = 0; s < page->range.count; s++) {
        if (!page->has[s]) continue;
        bool fp32 = is_fp32(&page->range);
        const char *at = (const char *)page->at + bytes_of(fp32, s);
        for (size_t i = 0; i < SHORE_SEGMENT_ELEMS; i++) {
            float want = element(page->values[s], page->range.segment + s, i), got;
            got = fp32 ? ((const float *)(const void *)at)[i]
                       : shore__bf16_to_f32(((const uint16_t *)(const void *)at)[i]);
            if (got != want)
                fail_msg("block %u, segment %u, element %zu of step %" PRIu64 ": %g instead of %g", page->range.block,
                         page->range.segment + s, i, page->step, (double)got, (double)want);
        }
    }
}

/* The step that is being written can be asked for where all of the page is written or carried. */
static inline bool can_be_asked_for(const struct world *w, const struct expected *page) {
    for (uint32_t s = 0; w->step > w->base && s < page->range.count; s++)
        if (w->done[page->range.block][page->range.segment + s] == UNTOUCHED) return false;
    return true;
}

static inline bool meet(const struct expected *a, const struct expected *b) {
    return a->range.block == b->range.block && a->range.segment < b->range.segment + b->range.count &&
           b->range.segment < a->range.segment + a->range.count;
}

/* Itself, or one that it shares segments with, has more parts to come. */
static inline bool is_in_parts(const struct world *w, const struct expected *page) {
    for (uint32_t i = 0; i < w->npages; i++)
        if (w->page[i].in_parts && (page == &w->page[i] || meet(page, &w->page[i]))) return true;
    return false;
}

static inline bool all_in_use(const struct world *w, const struct expected *page) {
    uint32_t n = 0;
    if (page->range.pool == SHORE_PAGES_STAYS) return false;
    for (uint32_t i = 0; i < w->npages; i++)
        n += w->page[i].uses && w->page[i].range.count && w->page[i].range.pool == page->range.pool;
    return n == w->nbuffers[page->range.pool];
}

/* Whether a code of get is one that this page may get now. */
static inline bool may_be(const struct world *w, const struct expected *page, int rc) {
    bool good = !page->range.count || (page->uses && !page->stale && page->step == w->step);
    if (good) return rc == 0;
    if (page->uses) return rc == -EBUSY || rc == -EINVAL;
    if (rc == 0) return true;
    return (rc == -EBUSY && all_in_use(w, page)) || (rc == -EINVAL && is_in_parts(w, page));
}

/* ---- what any test asks for -------------------------------------------------------------------------------------- */

/* nspans 0: the whole page. */
static inline void get_spans(struct world *w, uint32_t number, const struct shore_pages_span *spans, uint32_t nspans) {
    struct expected *page = &w->page[number];
    const void *at;
    if (!can_be_asked_for(w, page) || page->uses == USES_MOST) return;
    int rc = nspans ? shore_pages_get_spans(w->pages, number, spans, nspans, &at, &w->diag)
                    : shore_pages_get(w->pages, number, &at, &w->diag);
    if (!may_be(w, page, rc)) fail_msg("page %u: %d (%s)", number, rc, w->diag.text);
    if (rc) return;
    if (page->uses) assert_ptr_equal(at, page->at);
    if (page->range.memory) assert_ptr_equal(at, page->range.memory);
    bool next = w->step > w->base;
    for (uint32_t s = 0; s < page->range.count; s++)
        page->has[s] = !nspans || (page->uses && page->has[s]);
    for (uint32_t i = 0; i < nspans; i++)
        for (uint32_t s = 0; s < spans[i].count; s++)
            page->has[spans[i].segment - page->range.segment + s] = true;
    page->uses++;
    page->at = at;
    page->step = w->step;
    page->stale = false;
    for (uint32_t s = 0; s < page->range.count; s++)
        page->values[s] = (next ? w->next : w->value)[page->range.block][page->range.segment + s];
    assert_content(w, page);
}

static inline void get(struct world *w, uint32_t number) {
    get_spans(w, number, NULL, 0);
}

static inline void release(struct world *w, uint32_t number) {
    struct expected *page = &w->page[number];
    if (!page->uses) return;
    assert_content(w, page);
    shore_pages_release(w->pages, number);
    page->uses--;
}

static inline float *gradient_of(struct world *w, uint32_t block, uint32_t segment, uint32_t count) {
    float *g = aligned_alloc(4096, (size_t)count * SHORE_SEGMENT_ELEMS * 4);
    for (uint32_t s = 0; s < count; s++)
        for (size_t i = 0; i < SHORE_SEGMENT_ELEMS; i++)
            g[s * (size_t)SHORE_SEGMENT_ELEMS + i] =
                (float)w->value[block][segment + s] - (float)w->next[block][segment + s];
    assert_true(w->ngradients < sizeof w->gradients / sizeof *w->gradients);
    return w->gradients[w->ngradients++] = g;
}

static inline void take_seed(void) {
    const char *given = getenv("SEED");
    seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    print_message("SEED=%" PRIu64 "\n", seed);
}

#endif
