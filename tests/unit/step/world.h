/* A step beside a fleet that is updated plainly: what the step commits is what updates of the whole gradients with the
 * coefficient of their norm make of them. */
#ifndef TESTS_STEP_WORLD_H
#define TESTS_STEP_WORLD_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "longshore/step.h"
#include "seed.h"

enum { BLOCKS = 4, UNITS = 5, STEPS = 8, WORLDS = 16, SEGMENTS = 12 };
static const uint32_t segments_of[BLOCKS] = {4, 3, 1, 4};
/* The first block in two units, one of which has two parts. */
static const struct shore_step_unit units[UNITS] = {
    {0, 0, 1, 1, {{0, 0, 1}}}, {0, 1, 3, 2, {{1, 1, 2}, {2, 3, 1}}},
    {1, 0, 3, 1, {{3, 0, 3}}}, {2, 0, 1, 1, {{4, 0, 1}}},
    {3, 0, 4, 1, {{5, 0, 4}}},
};
enum { PAGES = 6 };
static const struct shore_pages_range page_ranges[PAGES] = {
    {.block = 0, .segment = 0, .count = 1, .pool = SHORE_PAGES_STAYS},
    {.block = 0, .segment = 1, .count = 2, .pool = 0},
    {.block = 0, .segment = 3, .count = 1, .pool = SHORE_PAGES_STAYS},
    {.block = 1, .segment = 0, .count = 3, .pool = 0},
    {.block = 2, .segment = 0, .count = 1, .pool = 0},
    {.block = 3, .segment = 0, .count = 4, .pool = SHORE_PAGES_STAYS},
};
/* A tensor that is frozen in some steps: it begins in segment 1 of the last block, and ends in its last one. */
#define RESTS_FROM (SHORE_SEGMENT_ELEMS * UINT64_C(3) / 2)
enum { RESTS_GROUP = 1, GROUPS = 2 };

static uint64_t seed, drawn;
static inline uint32_t pick(uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, 1, drawn++) % (last - first + 1));
}

struct world {
    struct shore_layout *layout;
    struct shore_fleet *fleet, *plain;
    struct shore_pages *pages;
    struct shore_step *step;
    struct shore_step_options options;
    struct shore_pages_range range[PAGES];   /* most of the fleet's kind */
    float *gradient[UNITS], *buffers[UNITS]; /* what is right; what is handed over */
    bool had[UNITS];
    double *sums, limit;
    struct shore_diag diag;
};

#define assert_ok(w, rc) assert_rc(w, rc, __LINE__)
static inline void assert_rc(struct world *w, int rc, int line) {
    if (rc) fail_msg("line %d: %d: %s", line, rc, w->diag.text);
}

static inline size_t elems_of(const struct shore_step_unit *u) {
    return (size_t)u->count * SHORE_SEGMENT_ELEMS;
}

static inline struct shore_fleet *make_fleet(struct world *w, bool fp32) {
    static const char *const drives[] = {"ram:"};
    const struct shore_fleet_options options = {.size = sizeof options,
                                                .drives = drives,
                                                .ndrives = 1,
                                                .optimizer = SHORE_ADAMW,
                                                .spill = true,
                                                .fp32_params = fp32};
    struct shore_fleet *fleet;
    float *masters = calloc(SHORE_SEGMENT_ELEMS, sizeof *masters);
    for (size_t i = 0; i < SHORE_SEGMENT_ELEMS; i++)
        masters[i] = (float)(i % 97) / 97;
    assert_ok(w, shore_fleet_create(w->layout, &options, &fleet, &w->diag));
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t s = 0; s < segments_of[b]; s++)
            assert_ok(w, shore_fleet_init_block(fleet, b, s, 1, masters, NULL, NULL, &w->diag));
    assert_ok(w, shore_fleet_seal(fleet, 0, &w->diag));
    free(masters);
    return fleet;
}

/* of: NULL, or a device's part of the options. */
static inline void open_world(struct world *w, const struct shore_step_options *of) {
    struct shore_tensor_spec tensor[BLOCKS + 1];
    struct shore_block_spec block[BLOCKS];
    *w = (struct world){0};
    for (uint32_t b = 0; b < BLOCKS; b++) {
        tensor[b] = (struct shore_tensor_spec){"w", (uint64_t)segments_of[b] * SHORE_SEGMENT_ELEMS, 0};
        block[b] = (struct shore_block_spec){"b", &tensor[b], 1};
    }
    tensor[BLOCKS] = (struct shore_tensor_spec){"r", tensor[BLOCKS - 1].elems - RESTS_FROM, RESTS_GROUP};
    tensor[BLOCKS - 1].elems = RESTS_FROM;
    block[BLOCKS - 1].ntensors = 2;
    assert_ok(w, shore_layout_make(block, BLOCKS, &w->layout));
    bool fp32 = pick(0, 1);
    w->fleet = make_fleet(w, fp32);
    w->plain = make_fleet(w, fp32);
    memcpy(w->range, page_ranges, sizeof page_ranges);
    for (uint32_t p = 0; p < PAGES; p++)
        w->range[p].kind = fp32 == (pick(0, 3) > 0) ? SHORE_FETCH_MASTER : SHORE_FETCH_BF16;
    const struct shore_pages_pool pool = {.nbuffers = 2};
    const struct shore_pages_options pages = {
        .size = sizeof pages, .ranges = w->range, .nranges = PAGES, .pools = &pool, .npools = 1};
    assert_ok(w, shore_pages_open(w->fleet, &pages, &w->pages, &w->diag));
    w->limit = pick(0, 3) ? 60 : 0;
    w->options = (struct shore_step_options){.size = sizeof w->options,
                                             .units = units,
                                             .nunits = UNITS,
                                             .clip = w->limit,
                                             .speculate = (enum shore_step_speculate)pick(0, 2),
                                             .form = pick(0, 3) ? SHORE_GRADIENT_FP32 : SHORE_GRADIENT_BF16};
    if (of) {
        w->options.device = of->device;
        w->options.landing_bytes = of->landing_bytes;
        w->options.landed = of->landed;
        w->options.ctx = of->ctx;
    }
    w->options.computes_again = pick(0, 1);
    w->options.keeps_made = !w->options.computes_again && pick(0, 1);
    if (w->options.computes_again)
        w->options.nbuffers = pick(1, UNITS), w->options.all_fit = w->options.nbuffers == UNITS;
    else
        w->options.room_bytes = pick(0, 1) ? UINT64_MAX : pick(0, 8) * (uint64_t)SHORE_SEGMENT_ELEMS * 4;
    if (!w->options.nbuffers) w->options.aside_bytes = pick(0, 3) * (uint64_t)SHORE_SEGMENT_ELEMS * 4;
    assert_ok(w, shore_step_open(w->fleet, w->pages, &w->options, &w->step, &w->diag));
    w->sums = calloc(SEGMENTS, sizeof *w->sums);
    for (uint32_t u = 0; u < UNITS; u++) {
        void *memory;
        assert_ok(w, shore_buffer_alloc(elems_of(&units[4]) * 4, 0, &memory, &w->diag));
        w->buffers[u] = memory;
        assert_ok(w, shore_buffer_alloc(elems_of(&units[4]) * 4, 0, &memory, &w->diag));
        w->gradient[u] = memory;
    }
}

static inline void close_world(struct world *w) {
    shore_step_close(w->step);
    shore_pages_close(w->pages);
    shore_fleet_close(w->fleet);
    shore_fleet_close(w->plain);
    for (uint32_t u = 0; u < UNITS; u++) {
        shore_buffer_free(w->buffers[u], elems_of(&units[4]) * 4);
        shore_buffer_free(w->gradient[u], elems_of(&units[4]) * 4);
    }
    free(w->sums);
    shore_layout_free(w->layout);
}

static const struct shore_hyper *hyper_of(uint64_t step) {
    static struct shore_hyper h[GROUPS];
    h[0] = (struct shore_hyper){.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
    shore_hyper_at_step(h, SHORE_ADAMW, step);
    h[RESTS_GROUP] = h[0];
    h[RESTS_GROUP].frozen = step % 3 > 0;
    return h;
}

/* ---- what is right ----------------------------------------------------------------------------------------------- */

static inline uint16_t *rounded(const float *from, size_t n) {
    uint16_t *out = aligned_alloc(4096, n * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], 4);
        out[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
    return out;
}

static inline void update_plainly(struct world *w, uint64_t base) {
    struct shore_clip clip;
    shore_clip_begin(&clip, w->layout, w->limit, w->sums);
    for (uint32_t u = 0; u < UNITS; u++)
        if (w->had[u]) shore_clip_add(&clip, units[u].block, units[u].segment, units[u].count, w->gradient[u]);
    float coefficient = shore_clip_decide(&clip).coefficient;
    for (uint32_t u = 0; u < UNITS; u++) {
        struct shore_wait wait;
        bool narrow = w->options.form == SHORE_GRADIENT_BF16;
        void *bf16 = narrow ? rounded(w->gradient[u], elems_of(&units[u])) : NULL;
        const struct shore_update update = {
            .size = sizeof update,
            .base_step = base,
            .attempt = shore_fleet_attempt(w->plain),
            .block = units[u].block,
            .segment = units[u].segment,
            .count = units[u].count,
            .form = w->options.form,
            .gradient = narrow ? bf16 : w->gradient[u],
            .groups = hyper_of(base + 1),
            .ngroups = GROUPS,
            .coefficient = coefficient,
        };
        shore_wait_init(&wait);
        struct shore_completion done = shore_wait_completion(&wait);
        assert_ok(w, w->had[u] ? shore_fleet_update(w->plain, &update, done)
                               : shore_fleet_carry(w->plain, base, update.attempt, update.block, update.segment,
                                                   update.count, done));
        assert_ok(w, shore_wait(&wait, &w->diag));
        free(bf16);
    }
}

static inline void commit(struct world *w, struct shore_fleet *fleet, uint64_t base) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    assert_ok(w, shore_fleet_commit(fleet, base, false, NULL, 0, shore_wait_completion(&wait)));
    assert_ok(w, shore_wait(&wait, &w->diag));
}

static inline void draw_gradients(struct world *w, uint64_t step) {
    float scale = pick(0, 2) ? 0.01f : 0.2f; /* of norms below the limit, and above it */
    for (uint32_t u = 0; u < UNITS; u++) {
        w->had[u] = pick(0, 5) || u == 0;
        for (size_t i = 0; i < elems_of(&units[u]); i++)
            w->gradient[u][i] = scale * ((float)((i * (u + 3) + step * 7) % 41) - 20) / 20;
    }
}

static inline void assert_same(struct world *w) {
    unsigned char got[16], want[16];
    assert_ok(w, shore_fleet_digest(w->fleet, true, got, &w->diag));
    assert_ok(w, shore_fleet_digest(w->plain, true, want, &w->diag));
    assert_memory_equal(got, want, 16);
    for (uint32_t p = 0; p < PAGES; p++) {
        const struct shore_pages_range *r = &w->range[p];
        const void *at;
        void *right;
        struct shore_wait wait;
        struct shore_fleet_info info = {.size = sizeof info};
        shore_fleet_info(w->fleet, &info);
        shore_pages_set_step(w->pages, info.step);
        assert_ok(w, shore_pages_get(w->pages, p, &at, &w->diag));
        assert_ok(w, shore_buffer_alloc((uint64_t)r->count * SHORE_SEGMENT_ELEMS * 4, 0, &right, &w->diag));
        shore_wait_init(&wait);
        assert_ok(w, shore_fleet_fetch(w->plain, info.step, r->block, r->segment, r->count, r->kind, right,
                                       shore_wait_completion(&wait)));
        assert_ok(w, shore_wait(&wait, &w->diag));
        assert_memory_equal(at, right,
                            (size_t)r->count * SHORE_SEGMENT_ELEMS * (r->kind == SHORE_FETCH_MASTER ? 4 : 2));
        shore_pages_release(w->pages, p);
        shore_buffer_free(right, (uint64_t)r->count * SHORE_SEGMENT_ELEMS * 4);
    }
}

#endif
