/* How many pairs are stored, beside drives that keep up with some number of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/offload.h"

enum { MOST = 40, LAYER = 4 };

/* Every pair beyond what the drives keep up with is waited for, for a hundredth of a step; what is reported is half of
 * the step before. Returns the steps of so many that had waited for more than a tenth. */
static int steps(struct offload *o, size_t enough, int count) {
    int waited = 0;
    size_t before = o->pairs;
    for (int i = 0; i < count; i++) {
        double was = before > enough ? (double)(before - enough) / 100 : 0;
        double is = o->pairs > enough ? (double)(o->pairs - enough) / 100 : 0;
        before = o->pairs;
        shore__offload_weigh(o, (was + is) / 2, (was + is) / 2);
        waited += is > 0.1;
        assert_in_range(o->pairs, 0, MOST);
    }
    return waited;
}

static void drives_that_keep_up_get_all(void **state) {
    struct offload o = shore__offload_begin(MOST, LAYER);
    assert_int_equal(steps(&o, MOST, 50), 0);
    assert_int_equal(o.pairs, MOST);
}

static void drives_that_do_not_are_soon_spared(void **state) {
    struct offload o = shore__offload_begin(MOST, LAYER);
    assert_in_range(steps(&o, 0, 12), 0, 6);
    assert_in_range(o.pairs, 0, LAYER);
    /* and tried ever more rarely */
    assert_int_equal(steps(&o, 0, 1000), 0);
    size_t more = 0, before = o.pairs;
    for (int i = 0; i < 1000; i++) {
        steps(&o, 0, 1);
        more += o.pairs > before;
        before = o.pairs;
    }
    assert_in_range(more, 0, 1000 / 256 + 1);
}

static void what_drives_keep_up_with_is_found(void **state) {
    static const size_t enough[] = {5, 17, 30};
    for (size_t i = 0; i < sizeof enough / sizeof enough[0]; i++) {
        struct offload o = shore__offload_begin(MOST, LAYER);
        steps(&o, enough[i], 60);
        assert_in_range(o.pairs, enough[i] > 2 * LAYER ? enough[i] - 2 * LAYER : 0, enough[i] + LAYER);
    }
}

static void drives_that_get_quicker_or_slower_are_followed(void **state) {
    struct offload o = shore__offload_begin(MOST, LAYER);
    steps(&o, 5, 100);
    steps(&o, MOST, 300 + 2 * MOST / LAYER);
    assert_int_equal(o.pairs, MOST);
    assert_in_range(steps(&o, 5, 100), 0, 12);
    assert_in_range(o.pairs, 0, 5 + LAYER);
}

static void drives_are_seldom_asked_for_too_much(void **state) {
    for (size_t enough = 0; enough <= MOST; enough++) {
        struct offload o = shore__offload_begin(MOST, LAYER);
        assert_in_range(steps(&o, enough, 2000), 0, 10);
    }
}

static void a_single_slow_step_is_soon_forgotten(void **state) {
    struct offload o = shore__offload_begin(MOST, LAYER);
    steps(&o, MOST, 5);
    shore__offload_weigh(&o, 0.2, 0.2);
    assert_in_range(o.pairs, 1, MOST / 2);
    steps(&o, MOST, 10);
    assert_int_equal(o.pairs, MOST);
}

static void drives_that_are_waited_for_anyway_are_spared_at_once(void **state) {
    struct offload o = shore__offload_begin(MOST, LAYER);
    shore__offload_weigh(&o, 0.01, 0.9);
    shore__offload_weigh(&o, 0.01, 0.9);
    assert_int_equal(o.pairs, 0);
    o = shore__offload_begin(MOST, LAYER);
    shore__offload_weigh(&o, 0.01, 0.1);
    shore__offload_weigh(&o, 0.01, 0.1);
    assert_int_equal(o.pairs, MOST);
}

static void drives_that_are_busy_get_no_more(void **state) {
    struct offload o = shore__offload_begin(MOST, LAYER);
    steps(&o, 5, 100);
    size_t before = o.pairs;
    for (int i = 0; i < 1000; i++)
        shore__offload_weigh(&o, 0.01, 0.1);
    assert_int_equal(o.pairs, before);
    steps(&o, MOST, 300 + 2 * MOST / LAYER);
    assert_int_equal(o.pairs, MOST);
}

static void none_stay_none(void **state) {
    struct offload o = shore__offload_begin(0, LAYER);
    for (int i = 0; i < 10; i++)
        shore__offload_weigh(&o, i % 2, i % 2);
    assert_int_equal(o.pairs, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drives_that_keep_up_get_all),
        cmocka_unit_test(drives_that_do_not_are_soon_spared),
        cmocka_unit_test(what_drives_keep_up_with_is_found),
        cmocka_unit_test(drives_that_get_quicker_or_slower_are_followed),
        cmocka_unit_test(drives_are_seldom_asked_for_too_much),
        cmocka_unit_test(a_single_slow_step_is_soon_forgotten),
        cmocka_unit_test(drives_that_are_waited_for_anyway_are_spared_at_once),
        cmocka_unit_test(drives_that_are_busy_get_no_more),
        cmocka_unit_test(none_stay_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
