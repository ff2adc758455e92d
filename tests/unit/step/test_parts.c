/* Two steps over two parts of a layout make what one step over all of it makes: the norm, the coefficient, every byte
 * of the state. What the other part has changed is fetched again, and nothing else. */
#include "unit/step/parts.h"

enum { WORLDS = 3, STEPS = 6 };

static const struct shore_hyper *hyper_of(uint64_t step) {
    static struct shore_hyper h;
    h = (struct shore_hyper){.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
    shore_hyper_at_step(&h, SHORE_ADAMW, step);
    return &h;
}

/* Of norms below the limit, or above it, or not finite. */
static void draw_gradients(struct parts *w, uint64_t step) {
    float scale = pick(0, 2) ? 0.01f : 0.2f;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        const struct shore_layout_block *block = &w->layout->blocks[b];
        bool alike = pick(0, 3);
        for (uint32_t p = 0; p < PARTS; p++)
            w->had[p][b] = p && alike ? w->had[0][b] : pick(0, 3) > 0;
        memset(w->gradient[b], 0, (size_t)segments_of[b] * SHORE_SEGMENT_ELEMS * 4);
        for (uint32_t t = 0; t < block->ntensors; t++)
            for (uint64_t i = 0; i < block->tensors[t].elems; i++)
                w->gradient[b][block->tensors[t].offset_elems + i] =
                    scale * ((float)((i * (b + 3) + step * 7) % 41) - 20) / 20;
    }
    if (pick(0, 7) == 0) w->gradient[pick(0, BLOCKS - 1)][5] = INFINITY;
}

static bool has(const struct parts *w, uint32_t part, uint32_t unit) {
    return w->had[part < PARTS ? part : unit / BLOCKS][unit % BLOCKS];
}

/* The whole block's gradients in pieces of its tensors, of which none ends where a part does. */
static uint32_t pieces_of(const struct parts *w, uint32_t block, const float *from, struct shore_gather *to) {
    const struct shore_layout_block *b = &w->layout->blocks[block];
    uint32_t n = 0;
    for (uint32_t t = 0; t < b->ntensors; t++)
        for (uint64_t at = 0, rest; (rest = b->tensors[t].elems - at) > 0; at += to[n++].elems) {
            uint64_t first = b->tensors[t].offset_elems + at, elems = SHORE_SEGMENT_ELEMS / 2 * 3 + 1;
            to[n] = (struct shore_gather){from + first, first, rest < elems ? rest : elems, SHORE_DTYPE_FP32};
        }
    return n;
}

/* Adds a unit's gradient: of its block in pieces, or as a range of its own segments, at once or one after the other. */
static void give(struct parts *w, struct part *p, uint32_t u) {
    const struct shore_step_unit *unit = &p->unit[u];
    size_t elems = (size_t)unit->count * SHORE_SEGMENT_ELEMS, first = (size_t)unit->segment * SHORE_SEGMENT_ELEMS;
    struct shore_gather pieces[2 * MOST];
    enum shore_step_way way;
    struct shore_step_gradient g = {.size = sizeof g};
    if (p->options.form == SHORE_GRADIENT_FP32 && pick(0, 1)) {
        memcpy(p->given[u], w->gradient[unit->block], (size_t)segments_of[unit->block] * SHORE_SEGMENT_ELEMS * 4);
        g.gather = pieces;
        g.ngather = pieces_of(w, unit->block, p->given[u], pieces);
        g.more = pick(0, 2) == 0; /* it is counted when all are, or when it leaves */
        assert_ok(w, shore_step_add(p->step, u, &g, &w->diag));
    } else {
        memcpy(p->given[u], w->gradient[unit->block] + first, elems * 4);
        uint32_t half = pick(0, 1) ? unit->count / 2 : 0;
        if (p->options.form == SHORE_GRADIENT_BF16) half = 0; /* narrowed in place */
        for (uint32_t at = 0, n = half; at < unit->count || !unit->count; at += n, n = unit->count - at) {
            if (!n) n = unit->count - at;
            g.gradient = p->given[u] + (size_t)at * SHORE_SEGMENT_ELEMS;
            g.narrow = (uint16_t *)(void *)g.gradient;
            g.segment = n ? unit->segment + at : 0;
            g.count = n;
            assert_ok(w, shore_step_add(p->step, u, &g, &w->diag));
            assert_ok(w, shore_step_send(p->step, u, unit->segment + at, n, &w->diag));
            if (!n) break;
        }
    }
    assert_ok(w, shore_step_complete(p->step, u, 0, &way, &w->diag));
}

static void get(struct parts *w, struct part *p, uint32_t page) {
    const void *at;
    assert_ok(w, shore_pages_get(p->pages, page, &at, &w->diag));
    shore_pages_release(p->pages, page);
}

/* Reads all parameters, begins a step, and adds what it has. */
static void gather(struct parts *w, uint32_t number, uint64_t base) {
    struct part *p = &w->part[number];
    for (uint32_t page = 0; page < p->options.nunits; page++)
        get(w, p, page);
    if (pick(0, 1) && shore_step_hold_state(p->step, pick(0, 2) * (UINT64_C(6) << 20), UINT64_MAX, 0))
        shore_step_fetch_state(p->step);
    shore_step_begin(p->step, base, false);
    for (uint32_t u = p->options.nunits; u-- > 0;) {
        assert_ok(w, shore_step_groups(p->step, u, hyper_of(base + 1), 1));
        if (has(w, number, u)) give(w, p, u);
    }
}

static double *sums_at(const struct parts *w, struct part *p, uint32_t part, uint32_t block, uint32_t *count) {
    uint32_t segment;
    double *sums = p->sums;
    for (uint32_t b = 0; b < block; b++)
        sums += segments_of[b];
    range_of(w, part, block, &segment, count);
    return sums + segment;
}

/* Each part gets the others' sums, where there was nothing so far. */
static void exchange_sums(struct parts *w) {
    for (uint32_t p = 0; p < PARTS; p++)
        assert_ok(w, shore_step_count(w->part[p].step, &w->diag));
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t p = 0; p < PARTS; p++)
            for (uint32_t to = 0; to < PARTS; to++) {
                uint32_t count;
                const double *from = sums_at(w, &w->part[p], p, b, &count);
                double *there = sums_at(w, &w->part[to], p, b, &count);
                for (uint32_t s = 0; s < count && to != p; s++) {
                    assert_true(there[s] == 0);
                    there[s] = from[s];
                }
            }
}

static struct shore_clipping decide(struct parts *w) {
    struct shore_clipping whole = shore_step_decide(w->part[PARTS].step);
    exchange_sums(w);
    for (uint32_t p = 0; p < PARTS; p++)
        for (uint32_t times = pick(1, 2); times--;) {
            struct shore_clipping c = shore_step_decide(w->part[p].step);
            assert_memory_equal(w->part[p].sums, w->part[PARTS].sums, sizeof w->part[p].sums);
            assert_int_equal(c.finite, whole.finite);
            if (!c.finite) continue;
            assert_memory_equal(&c.norm, &whole.norm, sizeof c.norm);
            assert_memory_equal(&c.coefficient, &whole.coefficient, sizeof c.coefficient);
        }
    return whole;
}

/* Makes the step of a part as decided. */
static void make(struct parts *w, uint32_t number, uint64_t base, bool finite) {
    struct part *p = &w->part[number];
    int rc = shore_step_make(p->step, &w->diag);
    if (!finite) {
        assert_int_equal(rc, SHORE_ENONFINITE);
        for (uint32_t u = 0; u < p->options.nunits; u++)
            shore_step_carried(p->step, u);
        return;
    }
    assert_ok(w, rc);
}

static bool changed(const struct parts *w, uint32_t block) {
    bool any = false;
    for (uint32_t p = 0; p < PARTS; p++) {
        uint32_t segment, count;
        range_of(w, p, block, &segment, &count);
        any |= count && w->had[p][block];
    }
    return any;
}

static uint64_t bytes_fetched(const struct parts *w) {
    struct shore_ledger ledger = {.size = sizeof ledger};
    uint64_t sum = 0;
    for (uint32_t p = 0; p < PARTS; p++, sum += ledger.drive_read_fetch)
        shore_fleet_ledger(w->part[p].fleet, &ledger);
    return sum;
}

/* All pages were there at the step before. Those of changed blocks are fetched now, and the others are not. */
static void outdate(struct parts *w, uint32_t number, uint64_t step) {
    struct part *p = &w->part[number];
    for (uint32_t b = 0; b < BLOCKS; b++)
        if (changed(w, b)) shore_pages_outdate(p->pages, b, step);
    shore_pages_set_step(p->pages, step);
    for (uint32_t b = BLOCKS; b-- > 0;) {
        uint64_t before = bytes_fetched(w);
        get(w, p, b);
        assert_int_equal(bytes_fetched(w) > before, changed(w, b));
    }
}

/* A part that has lost its attempt sends what it made once more, if it has kept it; or all parts make it again. */
static bool lose(struct parts *w, uint64_t base) {
    bool all_known = true;
    for (uint32_t p = 0; p <= PARTS; p++) {
        bool known;
        assert_false(shore_step_lost(w->part[p].step));
        assert_ok(w, shore_step_send_again(w->part[p].step, &known, &w->diag));
        all_known &= known;
    }
    for (uint32_t p = 0; !all_known && p <= PARTS; p++) {
        shore_step_unmake(w->part[p].step);
        shore_pages_set_step(w->part[p].pages, base);
    }
    return all_known;
}

/* Returns the norm as all have it. */
static struct shore_clipping make_all(struct parts *w, uint64_t base) {
    for (uint32_t p = 0; p <= PARTS; p++) {
        if (pick(0, 4) == 0) { /* one that is broken off */
            gather(w, p, base);
            shore_step_drop(w->part[p].step);
        }
        gather(w, p, base);
    }
    struct shore_clipping clipping = decide(w);
    for (uint32_t p = PARTS + 1; p-- > 0;) { /* the whole first: there is no time between a part and its pages */
        make(w, p, base, clipping.finite);
        if (clipping.finite) shore_step_made(w->part[p].step);
    }
    for (uint32_t p = 0; clipping.finite && p < PARTS; p++)
        outdate(w, p, base + 1);
    return clipping;
}

static void one_step(struct parts *w, uint64_t base) {
    draw_gradients(w, base);
    struct shore_clipping clipping = make_all(w, base);
    while (clipping.finite && pick(0, 2) == 0)
        if (!lose(w, base)) clipping = make_all(w, base);
    for (uint32_t p = 0; p <= PARTS; p++) {
        struct shore_wait wait;
        shore_wait_init(&wait);
        assert_ok(w,
                  shore_fleet_commit(w->part[p].fleet, base, !clipping.finite, NULL, 0, shore_wait_completion(&wait)));
        assert_ok(w, shore_wait(&wait, &w->diag));
        shore_step_remember(w->part[p].step, clipping.finite ? clipping.norm : INFINITY);
        shore_step_durable(w->part[p].step);
        shore_pages_set_step(w->part[p].pages, base + 1);
    }
    assert_same(w);
    for (uint32_t p = 0; p < PARTS; p++)
        assert_int_equal(shore_fleet_confirm(w->part[p].fleet, base + 1), 0);
}

static void two_parts_make_what_the_whole_makes(void **state) {
    for (int n = 0; n < WORLDS; n++) {
        static struct parts w;
        open_parts(&w);
        for (uint64_t base = 0; base < STEPS; base++)
            one_step(&w, base);
        close_parts(&w);
    }
}

static void commit_skipped(struct parts *w, uint64_t step) {
    for (uint32_t p = 0; p < PARTS; p++) {
        struct shore_wait wait;
        shore_wait_init(&wait);
        assert_ok(w, shore_fleet_commit(w->part[p].fleet, step - 1, true, NULL, 0, shore_wait_completion(&wait)));
        assert_ok(w, shore_wait(&wait, &w->diag));
        assert_int_equal(shore_fleet_confirm(w->part[p].fleet, step), 0);
    }
}

/* A page was wanted, and its owner has gone on before it answered: that is no error of a later step. */
static void what_came_too_late_is_asked_for_again(void **state) {
    static struct parts w;
    const void *at;
    open_parts(&w);
    struct shore_pages *pages = w.part[0].pages;
    w.refuses = true;
    shore_pages_want(pages, BLOCKS - 1);
    assert_false(w.refuses);
    assert_int_equal(shore_pages_get(pages, BLOCKS - 1, &at, &w.diag), SHORE_ESTALE);
    w.refuses = true;
    shore_pages_want(pages, BLOCKS - 1);
    assert_false(w.refuses);
    commit_skipped(&w, 1);
    shore_pages_outdate(pages, BLOCKS - 1, 1);
    shore_pages_set_step(pages, 1);
    get(&w, &w.part[0], BLOCKS - 1);
    close_parts(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_parts_make_what_the_whole_makes),
                                       cmocka_unit_test(what_came_too_late_is_asked_for_again)};
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
