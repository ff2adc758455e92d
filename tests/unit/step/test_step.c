/* Whatever is added in whatever order, with whatever room, what a step commits is what updates of the whole gradients
 * with the coefficient of their norm make of it. Parameters are compared with those of a fleet that is updated plainly.
 */
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

static uint64_t seed, drawn;
static uint32_t pick(uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, 1, drawn++) % (last - first + 1));
}

struct world {
    struct shore_layout *layout;
    struct shore_fleet *fleet, *plain;
    struct shore_pages *pages;
    struct shore_step *step;
    struct shore_step_options options;
    float *gradient[UNITS], *buffers[UNITS]; /* what is right; what is handed over */
    bool had[UNITS], fp32;
    double *sums, limit;
    struct shore_diag diag;
};

#define assert_ok(w, rc) assert_rc(w, rc, __LINE__)
static void assert_rc(struct world *w, int rc, int line) {
    if (rc) fail_msg("line %d: %d: %s", line, rc, w->diag.text);
}

static size_t elems_of(const struct shore_step_unit *u) {
    return (size_t)u->count * SHORE_SEGMENT_ELEMS;
}

static struct shore_fleet *make_fleet(struct world *w, bool fp32) {
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

static void open_world(struct world *w) {
    struct shore_tensor_spec tensor[BLOCKS];
    struct shore_block_spec block[BLOCKS];
    *w = (struct world){0};
    for (uint32_t b = 0; b < BLOCKS; b++) {
        tensor[b] = (struct shore_tensor_spec){"w", (uint64_t)segments_of[b] * SHORE_SEGMENT_ELEMS, 0};
        block[b] = (struct shore_block_spec){"b", &tensor[b], 1};
    }
    assert_ok(w, shore_layout_make(block, BLOCKS, &w->layout));
    bool fp32 = w->fp32 = pick(0, 1);
    w->fleet = make_fleet(w, fp32);
    w->plain = make_fleet(w, fp32);
    const struct shore_pages_pool pool = {.nbuffers = 2};
    const struct shore_pages_options pages = {.size = sizeof pages,
                                              .ranges = page_ranges,
                                              .nranges = PAGES,
                                              .pools = &pool,
                                              .npools = 1,
                                              .kind = fp32 ? SHORE_FETCH_MASTER : SHORE_FETCH_BF16};
    assert_ok(w, shore_pages_open(w->fleet, &pages, &w->pages, &w->diag));
    w->limit = pick(0, 3) ? 60 : 0;
    w->options = (struct shore_step_options){.size = sizeof w->options,
                                             .units = units,
                                             .nunits = UNITS,
                                             .clip = w->limit,
                                             .speculate = (enum shore_step_speculate)pick(0, 2),
                                             .form = pick(0, 3) ? SHORE_GRADIENT_FP32 : SHORE_GRADIENT_BF16};
    w->options.computes_again = pick(0, 1);
    w->options.keeps_made = !w->options.computes_again && pick(0, 1);
    if (w->options.computes_again)
        w->options.nbuffers = pick(1, UNITS), w->options.all_fit = w->options.nbuffers == UNITS;
    else
        w->options.room_bytes = pick(0, 1) ? UINT64_MAX : pick(0, 8) * (uint64_t)SHORE_SEGMENT_ELEMS * 4;
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

static void close_world(struct world *w) {
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
    static struct shore_hyper h;
    h = (struct shore_hyper){.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
    shore_hyper_at_step(&h, SHORE_ADAMW, step);
    return &h;
}

/* ---- what is right -------------------------------------------------------------------------------------------------
 */

static uint16_t *rounded(const float *from, size_t n) {
    uint16_t *out = aligned_alloc(4096, n * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], 4);
        out[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
    return out;
}

static void update_plainly(struct world *w, uint64_t base) {
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
            .ngroups = 1,
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

static void commit(struct world *w, struct shore_fleet *fleet, uint64_t base) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    assert_ok(w, shore_fleet_commit(fleet, base, false, NULL, 0, shore_wait_completion(&wait)));
    assert_ok(w, shore_wait(&wait, &w->diag));
}

/* ---- what the step is told -----------------------------------------------------------------------------------------
 */

static void draw_gradients(struct world *w, uint64_t step) {
    float scale = pick(0, 2) ? 0.01f : 0.2f; /* of norms below the limit, and above it */
    for (uint32_t u = 0; u < UNITS; u++) {
        w->had[u] = pick(0, 5) || u == 0;
        for (size_t i = 0; i < elems_of(&units[u]); i++)
            w->gradient[u][i] = scale * ((float)((i * (u + 3) + step * 7) % 41) - 20) / 20;
    }
}

/* A unit's gradient, in halves where it can be. */
static enum shore_step_way give(struct world *w, uint32_t u) {
    enum shore_step_way way;
    uint32_t buffer = u;
    uint64_t held = 0;
    if (w->options.nbuffers) assert_ok(w, shore_step_take(w->step, u, &buffer, true, &w->diag));
    float *to = w->buffers[buffer];
    memcpy(to, w->gradient[u], elems_of(&units[u]) * 4);
    struct shore_gather gather = {to, (uint64_t)units[u].segment * SHORE_SEGMENT_ELEMS, elems_of(&units[u]),
                                  SHORE_DTYPE_FP32};
    struct shore_step_gradient g = {.size = sizeof g, .gradient = to, .narrow = (uint16_t *)(void *)to};
    bool gathered = !w->options.nbuffers && w->options.form == SHORE_GRADIENT_FP32;
    if (gathered) g.gather = &gather, g.ngather = 1, g.gradient = NULL;
    if (gathered && pick(0, 2) == 0) { /* another pass comes, and changes it */
        g.more = true;
        assert_ok(w, shore_step_add(w->step, u, &g, &w->diag));
        assert_ok(w, shore_step_complete(w->step, u, pick(0, 9) * (int64_t)SHORE_SEGMENT_ELEMS * 4, &way, &w->diag));
        assert_int_not_equal(way, SHORE_STEP_SENT);
        bool aside;
        assert_ok(w, shore_step_aside(w->step, u, &aside, &w->diag));
        if (aside) assert_false(shore_step_needs(w->step, u));
        g.more = false;
    }
    assert_ok(w, shore_step_add(w->step, u, &g, &w->diag));
    if (gathered && pick(0, 4) == 0) { /* sent, and changed: a pass that was not expected */
        assert_ok(w, shore_step_complete(w->step, u, 0, &way, &w->diag));
        bool aside;
        assert_ok(w, shore_step_aside(w->step, u, &aside, &w->diag));
        for (uint32_t k = 0; !aside && k < 100 && pick(0, 1); k++)
            w->gradient[u][k] += 0.25f;
        gather.from = w->gradient[u]; /* an update may read the first one still */
        assert_ok(w, shore_step_add(w->step, u, &g, &w->diag));
    }
    held = pick(0, 9) * (uint64_t)SHORE_SEGMENT_ELEMS * 4;
    assert_ok(w, shore_step_complete(w->step, u, held, &way, &w->diag));
    return way;
}

/* A drive was lost. False: what had been put aside went with it. */
static bool goes_on_without_a_drive(struct world *w) {
    return !shore_step_lost(w->step);
}

/* False: the step is to be computed again. */
static bool compute(struct world *w, uint64_t base, bool again) {
    shore_step_begin(w->step, base, again);
    for (uint32_t u = 0; u < UNITS; u++)
        assert_ok(w, shore_step_groups(w->step, u, hyper_of(base + 1), 1));
    for (uint32_t u = UNITS; u-- > 0;)
        if (w->had[u] && give(w, u) == SHORE_STEP_GIVEN_UP)
            return false;
        else if (!w->options.computes_again && pick(0, 19) == 0 && !goes_on_without_a_drive(w))
            return false;
    if (pick(0, 2) == 0) shore_step_decide(w->step); /* somebody asks for the norm */
    shore_step_decide(w->step);
    int rc = shore_step_make(w->step, &w->diag);
    if (rc != SHORE_STEP_AGAIN) assert_ok(w, rc);
    return rc == 0;
}

static void assert_same(struct world *w) {
    unsigned char got[16], want[16];
    assert_ok(w, shore_fleet_digest(w->fleet, true, got, &w->diag));
    assert_ok(w, shore_fleet_digest(w->plain, true, want, &w->diag));
    assert_memory_equal(got, want, 16);
    for (uint32_t p = 0; p < PAGES; p++) {
        const struct shore_pages_range *r = &page_ranges[p];
        bool fp32 = w->fp32;
        const void *at;
        void *right;
        struct shore_wait wait;
        struct shore_fleet_info info = {.size = sizeof info};
        shore_fleet_info(w->fleet, &info);
        shore_pages_set_step(w->pages, info.step);
        assert_ok(w, shore_pages_get(w->pages, p, &at, &w->diag));
        assert_ok(w, shore_buffer_alloc((uint64_t)r->count * SHORE_SEGMENT_ELEMS * 4, 0, &right, &w->diag));
        shore_wait_init(&wait);
        assert_ok(w,
                  shore_fleet_fetch(w->plain, info.step, r->block, r->segment, r->count,
                                    fp32 ? SHORE_FETCH_MASTER : SHORE_FETCH_BF16, right, shore_wait_completion(&wait)));
        assert_ok(w, shore_wait(&wait, &w->diag));
        assert_memory_equal(at, right, (size_t)r->count * SHORE_SEGMENT_ELEMS * (fp32 ? 4 : 2));
        shore_pages_release(w->pages, p);
        shore_buffer_free(right, (uint64_t)r->count * SHORE_SEGMENT_ELEMS * 4);
    }
}

/* It was made, and lost before it was committed. */
static void make_again(struct world *w, uint64_t base) {
    bool known, aside = shore_step_lost(w->step);
    assert_false(aside); /* of the next step, of which there is nothing yet */
    assert_ok(w, shore_step_send_again(w->step, &known, &w->diag));
    assert_true(w->options.keeps_made || !known);
    if (known) return;
    shore_step_unmake(w->step);
    while (!compute(w, base, w->options.computes_again))
        ;
    shore_step_made(w->step);
}

static void one_step(struct world *w, uint64_t base) {
    draw_gradients(w, base);
    if (base && pick(0, 1) && shore_step_hold_state(w->step, pick(0, 2) * (UINT64_C(9) << 20), UINT64_MAX, 0))
        shore_step_fetch_state(w->step);
    if (!w->options.computes_again && pick(0, 5) == 0) { /* a step that is broken off */
        shore_step_begin(w->step, base, false);
        for (uint32_t u = 0; u < UNITS; u++)
            assert_ok(w, shore_step_groups(w->step, u, hyper_of(base + 1), 1));
        for (uint32_t u = UNITS; u-- > pick(0, UNITS);)
            if (w->had[u]) give(w, u);
        shore_step_drop(w->step);
        draw_gradients(w, base);
    }
    bool again = false;
    while (!compute(w, base, again))
        again = w->options.computes_again;
    shore_step_made(w->step);
    while (pick(0, 5) == 0)
        make_again(w, base);
    update_plainly(w, base);
    commit(w, w->fleet, base);
    shore_step_remember(w->step, 1e-3);
    commit(w, w->plain, base);
    shore_step_durable(w->step);
    assert_same(w);
}

static void every_step_is_what_its_gradients_make(void **state) {
    for (int n = 0; n < WORLDS; n++) {
        static struct world w;
        open_world(&w);
        for (uint64_t base = 0; base < STEPS; base++)
            one_step(&w, base);
        close_world(&w);
    }
}

static void what_is_wrong_is_refused(void **state) {
    static struct world w;
    struct shore_step *step;
    open_world(&w);
    struct shore_step_unit wrong[] = {{9, 0, 1, 1, {{0, 0, 1}}},
                                      {0, 0, 9, 1, {{0, 0, 9}}},
                                      {0, 0, 2, 1, {{0, 0, 1}}},
                                      {0, 0, 2, 0, {{0}}},
                                      {0, 0, 3, 2, {{0, 0, 1}, {1, 2, 2}}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct shore_step_options options = {.size = sizeof options, .units = &wrong[i], .nunits = 1};
        assert_int_equal(shore_step_open(w.fleet, w.pages, &options, &step, &w.diag), -EINVAL);
        assert_null(step);
    }
    const struct shore_step_options none = {.units = units};
    assert_int_equal(shore_step_open(w.fleet, w.pages, &none, &step, &w.diag), -EINVAL);
    const struct shore_step_gradient early = {.size = sizeof early, .gradient = w.gradient[0]};
    assert_int_equal(shore_step_add(w.step, 0, &early, &w.diag), -EINVAL);
    shore_step_begin(w.step, 0, false);
    assert_int_equal(shore_step_make(w.step, &w.diag), -EINVAL);
    const struct shore_step_gradient nowhere = {.size = sizeof nowhere};
    assert_int_equal(shore_step_add(w.step, 0, &nowhere, &w.diag), -EINVAL);
    struct shore_step_gradient beyond = {.size = sizeof beyond, .gradient = w.gradient[0], .segment = 0, .count = 5};
    assert_int_equal(shore_step_add(w.step, 0, &beyond, &w.diag), -EINVAL);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_step_is_what_its_gradients_make),
        cmocka_unit_test(what_is_wrong_is_refused),
    };
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
