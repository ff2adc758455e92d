/* Whatever is added in whatever order, with whatever room, what a step commits is what updates of the whole gradients
 * with the coefficient of their norm make of it. Parameters are compared with those of a fleet that is updated plainly.
 */
#include "drive/counters.h"
#include "unit/step/world.h"

/* ---- what the step is told --------------------------------------------------------------------------------------- */

/* A unit's gradient, in halves where it can be. */
static enum shore_step_way give(struct world *w, uint32_t u) {
    enum shore_step_way way;
    uint32_t buffer = u;
    uint64_t held = 0;
    if (w->options.nbuffers) assert_ok(w, shore_step_take(w->step, u, &buffer, &w->diag));
    float *to = w->buffers[buffer];
    memcpy(to, w->gradient[u], elems_of(&units[u]) * 4);
    struct shore_gather gather[2] = {
        {to, (uint64_t)units[u].segment * SHORE_SEGMENT_ELEMS, elems_of(&units[u]), SHORE_DTYPE_FP32}};
    const uint32_t ngather = units[u].block + 1 == BLOCKS ? 2 : 1; /* one each tensor */
    if (ngather == 2) {
        gather[1] = (struct shore_gather){to + RESTS_FROM, RESTS_FROM, gather[0].elems - RESTS_FROM, SHORE_DTYPE_FP32};
        gather[0].elems = RESTS_FROM;
    }
    struct shore_step_gradient g = {.size = sizeof g, .gradient = to, .narrow = (uint16_t *)(void *)to};
    bool gathered = !w->options.nbuffers && w->options.form == SHORE_GRADIENT_FP32;
    if (gathered) g.gather = gather, g.ngather = ngather, g.gradient = NULL;
    if (gathered && pick(0, 2) == 0) { /* another pass comes, and changes it */
        g.more = true;
        assert_ok(w, shore_step_add(w->step, u, &g, &w->diag));
        assert_ok(w, shore_step_complete(w->step, u, pick(0, 9) * (int64_t)SHORE_SEGMENT_ELEMS * 4, &way, &w->diag));
        assert_int_not_equal(way, SHORE_STEP_SENT);
        bool aside;
        assert_ok(w, shore_step_aside(w->step, u, &aside, &w->diag));
        if (aside) assert_false(shore_step_needs(w->step, u) || shore_step_bytes(w->step, u));
        g.more = false;
    }
    assert_ok(w, shore_step_add(w->step, u, &g, &w->diag));
    assert_true(shore_step_bytes(w->step, u) == (w->options.nbuffers ? 0 : elems_of(&units[u]) * 4));
    if (gathered && pick(0, 4) == 0) { /* sent, and changed: a pass that was not expected */
        assert_ok(w, shore_step_complete(w->step, u, 0, &way, &w->diag));
        bool aside;
        assert_ok(w, shore_step_aside(w->step, u, &aside, &w->diag));
        for (uint32_t k = 0; !aside && k < 100 && pick(0, 1); k++)
            w->gradient[u][k] += 0.25f;
        for (uint32_t k = 0; k < ngather; k++) /* an update may read the first one still */
            gather[k].from = w->gradient[u] + ((const float *)gather[k].from - to);
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
        assert_ok(w, shore_step_groups(w->step, u, hyper_of(base + 1), GROUPS));
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
            assert_ok(w, shore_step_groups(w->step, u, hyper_of(base + 1), GROUPS));
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
        open_world(&w, NULL);
        for (uint64_t base = 0; base < STEPS; base++)
            one_step(&w, base);
        close_world(&w);
    }
}

/* Bytes that a step writes which updates the last block alone, each segment once: nothing is sent before the norm is
 * known. step: hyper_of() says what is frozen in it. */
static uint64_t written(uint64_t step) {
    static struct world w;
    open_world(&w, NULL);
    shore_step_close(w.step);
    w.options.speculate = SHORE_SPECULATE_OFF;
    w.options.clip = 60;
    assert_ok(&w, shore_step_open(w.fleet, w.pages, &w.options, &w.step, &w.diag));
    uint64_t before = shore__fleet_written(w.fleet, 0);
    draw_gradients(&w, 0);
    memset(w.had, 0, sizeof w.had);
    w.had[UNITS - 1] = true;
    do {
        shore_step_begin(w.step, 0, w.options.computes_again);
        assert_ok(&w, shore_step_groups(w.step, UNITS - 1, hyper_of(step), GROUPS));
    } while (give(&w, UNITS - 1) == SHORE_STEP_GIVEN_UP);
    shore_step_decide(w.step);
    assert_ok(&w, shore_step_make(w.step, &w.diag));
    shore_step_made(w.step);
    commit(&w, w.fleet, 0);
    uint64_t bytes = shore__fleet_written(w.fleet, 0) - before;
    close_world(&w);
    return bytes;
}

static void frozen_segments_are_not_written(void **state) {
    drawn = 0;
    uint64_t all = written(3);
    drawn = 0; /* the same world */
    uint64_t some = written(1);
    assert_int_equal(all - some, 2 * SHORE_SEGMENT_ELEMS * 12); /* parameters and moments of whole segments */
}

static void what_is_wrong_is_refused(void **state) {
    static struct world w;
    struct shore_step *step;
    open_world(&w, NULL);
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
        cmocka_unit_test(frozen_segments_are_not_written),
        cmocka_unit_test(what_is_wrong_is_refused),
    };
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
