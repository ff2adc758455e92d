/* Gradients that land from a device: the step is the same as of gradients that are here, whenever their events pass,
 * and nobody waits for the last one to send the first. */
#include "moments.h"
#include "unit/step/world.h"

static struct moments m;

static void open_landing(struct world *w, struct shore_step_options of) {
    moments_open(&m);
    of.device = &m.device;
    open_world(w, &of);
}
static void close_landing(struct world *w) {
    close_world(w);
    moments_close(&m);
}

static void pass_some(void) {
    moments_pass(&m, m.called - pick(0, (uint32_t)moments_under_way(&m)));
}

/* ---- whenever events pass ---------------------------------------------------------------------------------------- */

/* The copy of these segments begins; the last ones end the unit. */
static int land_part(struct world *w, uint32_t u, float *to, uint32_t first, uint32_t count, bool ends) {
    size_t at = (size_t)first * SHORE_SEGMENT_ELEMS, elems = (size_t)count * SHORE_SEGMENT_ELEMS;
    struct shore_step_gradient g = {.size = sizeof g,
                                    .gradient = to + at,
                                    .narrow = (uint16_t *)(void *)(to + at),
                                    .segment = units[u].segment + first,
                                    .count = count};
    const struct shore_step_landing l = {
        .size = sizeof l,
        .gradient = &g,
        .until = moments_copy(&m, to + at, w->gradient[u] + at, elems * 4),
        .tag = u,
        .ends = ends,
    };
    return shore_step_land(w->step, u, &l, &w->diag);
}

/* In one part or two. Bf16 values of two parts would lie in one another's place. */
static int land(struct world *w, uint32_t u) {
    uint32_t count = units[u].count, buffer = u;
    bool parts = count > 1 && w->options.form == SHORE_GRADIENT_FP32 && pick(0, 1);
    int rc = w->options.nbuffers ? shore_step_take(w->step, u, &buffer, &w->diag) : 0;
    if (rc) return rc;
    memset(w->buffers[buffer], 0xff, elems_of(&units[u]) * 4); /* until it has come */
    if (parts) rc = land_part(w, u, w->buffers[buffer], 0, 1, false);
    if (pick(0, 1)) pass_some();
    return rc ? rc : land_part(w, u, w->buffers[buffer], parts, count - parts, true);
}

static void begin(struct world *w, uint64_t base, bool again) {
    shore_step_begin(w->step, base, again);
    for (uint32_t u = 0; u < UNITS; u++)
        assert_ok(w, shore_step_groups(w->step, u, hyper_of(base + 1), GROUPS));
}

/* False: the step is to be computed again. */
static bool compute(struct world *w, uint64_t base, bool again) {
    int rc = 0;
    begin(w, base, again);
    for (uint32_t u = UNITS; !rc && u-- > 0;)
        if (w->had[u]) rc = land(w, u);
    if (!rc && pick(0, 1)) pass_some();
    if (!rc) rc = shore_step_land_all(w->step, &w->diag);
    if (rc != SHORE_STEP_AGAIN) assert_ok(w, rc);
    if (!rc) shore_step_decide(w->step);
    if (!rc) rc = shore_step_make(w->step, &w->diag);
    if (rc != SHORE_STEP_AGAIN) assert_ok(w, rc);
    return !rc;
}

static void end(struct world *w, uint64_t base) {
    shore_step_made(w->step);
    update_plainly(w, base);
    commit(w, w->fleet, base);
    shore_step_remember(w->step, 1e-3);
    commit(w, w->plain, base);
    shore_step_durable(w->step);
    assert_same(w);
}

static void it_is_the_same_whenever_events_pass(void **state) {
    for (int n = 0; n < WORLDS / 2; n++) {
        static struct world w;
        open_landing(&w, (struct shore_step_options){.size = 0});
        m.by_itself = true;
        if (pick(0, 1)) assert_ok(&w, shore_device_watch(&m.device, &w.diag));
        for (uint64_t base = 0; base < STEPS; base++) {
            bool again = false;
            draw_gradients(&w, base);
            if (pick(0, 3) == 0) { /* a step that is broken off */
                begin(&w, base, false);
                for (uint32_t u = UNITS; u-- > pick(0, UNITS);)
                    if (w.had[u] && land(&w, u)) break;
                shore_step_drop(w.step);
                draw_gradients(&w, base);
            }
            while (!compute(&w, base, again))
                again = w.options.computes_again;
            end(&w, base);
        }
        shore_device_unwatch(&m.device);
        close_landing(&w);
    }
}

/* ---- before the last one ----------------------------------------------------------------------------------------- */

static uint32_t updated[PAGES];
static void leave(void *ctx, uint32_t page) {
    updated[page]++;
}

static void reopen(struct world *w) {
    shore_step_close(w->step);
    assert_ok(w, shore_step_open(w->fleet, w->pages, &w->options, &w->step, &w->diag));
}

static void what_has_landed_is_sent_before_the_last_has(void **state) {
    static struct world w;
    for (int watched = 0; watched < 2; watched++) {
        open_landing(&w, (struct shore_step_options){.size = 0});
        w.options.speculate = SHORE_SPECULATE_ON;
        w.options.clip = w.limit = 0;
        w.options.nbuffers = 0;
        w.options.room_bytes = UINT64_MAX;
        w.options.leave = leave;
        reopen(&w);
        draw_gradients(&w, 0);
        memset(w.had, true, sizeof w.had);
        memset(updated, 0, sizeof updated);
        m.device.timeout_ns = UINT64_C(300) * 1000000000; /* before the watch, which reads it */
        if (watched) assert_ok(&w, shore_device_watch(&m.device, &w.diag));
        begin(&w, 0, false);
        for (uint32_t u = UNITS; u-- > 1;)
            assert_ok(&w, land_part(&w, u, w.buffers[u], 0, units[u].count, true));
        assert_false(shore_step_has_sent(w.step)); /* nothing has passed */
        moments_pass(&m, m.called);
        assert_ok(&w, land_part(&w, 0, w.buffers[0], 0, units[0].count, true)); /* it looks */
        assert_true(shore_step_has_sent(w.step));
        for (uint32_t page = 1; page < PAGES; page++)
            assert_int_equal(updated[page], page + 1 == PAGES ? 2 : 1); /* a part of the last one is carried */
        assert_int_equal(updated[0], 0);
        assert_int_equal(shore_step_make(w.step, &w.diag), -EINVAL); /* it was not decided */
        shore_step_decide(w.step);
        assert_int_equal(shore_step_make(w.step, &w.diag), -EINVAL);
        assert_non_null(strstr(w.diag.text, "land_all"));
        moments_pass(&m, m.called);
        assert_ok(&w, shore_step_land_all(w.step, &w.diag));
        assert_int_equal(updated[0], 1);
        shore_step_decide(w.step);
        assert_ok(&w, shore_step_make(w.step, &w.diag));
        end(&w, 0);
        shore_device_unwatch(&m.device);
        close_landing(&w);
    }
}

/* ---- a device that does not go on -------------------------------------------------------------------------------- */

static void a_lost_device_is_an_error_and_the_base_stays(void **state) {
    static struct world w;
    for (uint32_t n = 0; n < 8; n++) {
        unsigned char before[16], after[16];
        open_landing(&w, (struct shore_step_options){.size = 0});
        m.device.timeout_ns = 20000000;
        draw_gradients(&w, 0);
        memset(w.had, true, sizeof w.had);
        assert_ok(&w, shore_fleet_digest(w.fleet, true, before, &w.diag));
        if (n % 2) assert_ok(&w, shore_device_watch(&m.device, &w.diag));
        begin(&w, 0, false);
        int rc = 0;
        for (uint32_t u = UNITS, lost = pick(0, UNITS); !rc && u-- > 0;) {
            rc = land(&w, u);
            if (u > lost) moments_pass(&m, m.called);
        }
        if (!moments_under_way(&m)) land(&w, 0);
        if (!rc) rc = shore_step_land_all(w.step, &w.diag);
        if (rc == SHORE_STEP_AGAIN) { /* it was given up before */
            m.device.lost = 1;
            rc = -ETIMEDOUT;
        }
        assert_int_equal(rc, -ETIMEDOUT);
        assert_true(m.device.lost);
        shore_step_drop(w.step);
        assert_ok(&w, shore_fleet_digest(w.fleet, true, after, &w.diag));
        assert_memory_equal(before, after, 16);
        shore_device_unwatch(&m.device);
        close_landing(&w);
    }
}

/* ---- what the caller does first ---------------------------------------------------------------------------------- */

static struct {
    struct world *w;
    uint64_t tags[64];
    uint32_t ntags;
    int answer;
    bool begins;
} did;

static int landed(void *ctx, uint32_t unit, uint64_t tag, struct shore_diag *diag) {
    did.tags[did.ntags++] = tag;
    if (did.begins) shore_step_begin(did.w->step, 0, false);
    return did.answer;
}

static void the_caller_is_asked_first_and_in_order(void **state) {
    static struct world w;
    open_landing(&w, (struct shore_step_options){.landed = landed, .ctx = &did});
    did.w = &w;
    draw_gradients(&w, 0);
    begin(&w, 0, false);
    did.answer = SHORE_STEP_TAKEN;
    for (uint64_t tag = 0; tag < 6; tag++) {
        const struct shore_step_landing l = {
            .size = sizeof l, .until = moments_copy(&m, NULL, NULL, 0), .tag = tag, .ends = 1};
        assert_ok(&w, shore_step_land(w.step, (uint32_t)tag % UNITS, &l, &w.diag));
        if (tag == 3) moments_pass(&m, 2);
    }
    assert_int_equal(did.ntags, 2);
    moments_pass(&m, m.called);
    did.answer = -EIO; /* the caller's own */
    assert_int_equal(shore_step_land_all(w.step, &w.diag), -EIO);
    did.answer = SHORE_STEP_TAKEN;
    did.begins = true; /* another step: nothing of this one lands any more */
    assert_ok(&w, shore_step_land_all(w.step, &w.diag));
    did.begins = false;
    assert_ok(&w, shore_step_land_all(w.step, &w.diag));
    assert_int_equal(did.ntags, 4);
    for (uint64_t tag = 0; tag < did.ntags; tag++)
        assert_int_equal(did.tags[tag], tag);
    close_landing(&w);
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

enum { ROOM = 4096, LANDINGS = 400 };

static void room_is_bounded_and_nobody_s_twice(void **state) {
    static struct world w;
    uint64_t from[LANDINGS], to[LANDINGS], at;
    did.answer = SHORE_STEP_TAKEN;
    open_landing(&w, (struct shore_step_options){.landed = landed, .ctx = &did, .landing_bytes = ROOM});
    m.by_itself = true;
    begin(&w, 0, false);
    assert_int_equal(shore_step_land_at(w.step, ROOM + 1, &at, &w.diag), -EINVAL);
    assert_int_equal(shore_step_land_at(w.step, 0, &at, &w.diag), -EINVAL);
    for (uint32_t n = 0; n < LANDINGS; n++) {
        uint64_t bytes = pick(0, 9) ? pick(1, ROOM / 3) : ROOM, room = (bytes + 63) / 64 * 64;
        did.ntags = 0;
        assert_ok(&w, shore_step_land_at(w.step, bytes, &at, &w.diag));
        from[n] = at;
        to[n] = at + room;
        assert_true(at % 64 == 0 && to[n] <= ROOM);
        for (uint32_t i = n; i-- > m.passed;)
            if (from[i] < to[n] && from[n] < to[i]) fail_msg("landing %u lies where %u is on its way", n, i);
        const struct shore_step_landing l = {.size = sizeof l, .until = moments_copy(&m, NULL, NULL, 0), .tag = n};
        assert_ok(&w, shore_step_land(w.step, pick(0, UNITS - 1), &l, &w.diag));
        if (pick(0, 2) == 0) pass_some();
    }
    close_landing(&w);
}

static void what_cannot_land_is_refused(void **state) {
    static struct world w;
    open_world(&w, NULL);
    begin(&w, 0, false);
    struct shore_step_landing l = {.size = sizeof l};
    assert_int_equal(shore_step_land(w.step, 0, &l, &w.diag), -EINVAL); /* no device */
    l.size = 0;
    assert_int_equal(shore_step_land(w.step, 0, &l, &w.diag), -EINVAL);
    close_world(&w);
    open_landing(&w, (struct shore_step_options){.size = 0});
    begin(&w, 0, false);
    const struct shore_gather gather = {w.gradient[0], 0, 1, SHORE_DTYPE_FP32};
    const struct shore_step_gradient g = {.size = sizeof g, .gather = &gather, .ngather = 1};
    l = (struct shore_step_landing){.size = sizeof l, .gradient = &g};
    assert_int_equal(shore_step_land(w.step, 0, &l, &w.diag), -EINVAL);
    close_landing(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_same_whenever_events_pass),
        cmocka_unit_test(what_has_landed_is_sent_before_the_last_has),
        cmocka_unit_test(a_lost_device_is_an_error_and_the_base_stays),
        cmocka_unit_test(the_caller_is_asked_first_and_in_order),
        cmocka_unit_test(room_is_bounded_and_nobody_s_twice),
        cmocka_unit_test(what_cannot_land_is_refused),
    };
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
