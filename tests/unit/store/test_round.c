/* How much goes, beside drives that keep up with some number of bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/store_impl.h"

enum { MOST = 40, LAYER = MOST / 8 + 1, NOISE = 3 }; /* NOISE: so many of a hundredth each are not noticed */

static uint64_t went(const struct store_round *r) {
    return r->allowed_bytes < MOST ? r->allowed_bytes : MOST;
}

static struct store_round begin(void) {
    struct store_round r;
    shore__round_open(&r);
    return r;
}

static void weigh(struct store_round *r, double for_scratch, double for_drives) {
    shore__round_weigh(r, went(r), MOST, for_scratch, for_drives);
}

/* Every byte beyond what the drives keep up with is waited for, for a hundredth of a step; what is reported is half of
 * the step before. Returns the steps of so many that had waited for more than a tenth. */
static int steps(struct store_round *o, size_t enough, int count) {
    int waited = 0;
    size_t before = went(o);
    for (int i = 0; i < count; i++) {
        double was = before > enough ? (double)(before - enough) / 100 : 0;
        double is = went(o) > enough ? (double)(went(o) - enough) / 100 : 0;
        before = went(o);
        weigh(o, (was + is) / 2, (was + is) / 2);
        waited += is > 0.1;
        assert_in_range(went(o), 0, MOST);
    }
    return waited;
}

static void drives_that_keep_up_get_all(void **state) {
    struct store_round o = begin();
    assert_int_equal(steps(&o, MOST, 50), 0);
    assert_int_equal(went(&o), MOST);
}

static void drives_that_do_not_are_soon_spared(void **state) {
    struct store_round o = begin();
    assert_in_range(steps(&o, 0, 12), 0, 6);
    assert_in_range(went(&o), 0, LAYER);
    /* and tried ever more rarely */
    assert_int_equal(steps(&o, 0, 1000), 0);
    size_t more = 0, before = went(&o);
    for (int i = 0; i < 1000; i++) {
        steps(&o, 0, 1);
        more += went(&o) > before;
        before = went(&o);
    }
    assert_in_range(more, 0, 1000 / 256 + 1);
}

static void what_drives_keep_up_with_is_found(void **state) {
    static const size_t enough[] = {5, 17, 30};
    for (size_t i = 0; i < sizeof enough / sizeof enough[0]; i++) {
        struct store_round o = begin();
        steps(&o, enough[i], 60);
        assert_in_range(went(&o), enough[i] > 2 * LAYER ? enough[i] - 2 * LAYER : 0, enough[i] + LAYER);
    }
}

static void drives_that_get_quicker_or_slower_are_followed(void **state) {
    struct store_round o = begin();
    steps(&o, 5, 100);
    steps(&o, MOST, 300 + 2 * MOST / LAYER);
    assert_int_equal(went(&o), MOST);
    assert_in_range(steps(&o, 5, 100), 0, 12);
    assert_in_range(went(&o), 0, 5 + NOISE + LAYER);
}

static void drives_are_seldom_asked_for_too_much(void **state) {
    for (size_t enough = 0; enough <= MOST; enough++) {
        struct store_round o = begin();
        assert_in_range(steps(&o, enough, 2000), 0, 10);
    }
}

static void a_single_slow_step_is_soon_forgotten(void **state) {
    struct store_round o = begin();
    steps(&o, MOST, 5);
    weigh(&o, 0.2, 0.2);
    assert_in_range(went(&o), 1, MOST / 2);
    steps(&o, MOST, 10);
    assert_int_equal(went(&o), MOST);
}

static void drives_that_are_waited_for_anyway_are_spared_at_once(void **state) {
    struct store_round o = begin();
    weigh(&o, 0.01, 0.9);
    weigh(&o, 0.01, 0.9);
    assert_int_equal(went(&o), 0);
    o = begin();
    weigh(&o, 0.01, 0.1);
    weigh(&o, 0.01, 0.1);
    assert_int_equal(went(&o), MOST);
}

static void drives_that_are_busy_get_no_more(void **state) {
    struct store_round o = begin();
    steps(&o, 5, 100);
    size_t before = went(&o);
    for (int i = 0; i < 1000; i++)
        weigh(&o, 0.01, 0.1);
    assert_int_equal(went(&o), before);
    steps(&o, MOST, 300 + 2 * MOST / LAYER);
    assert_int_equal(went(&o), MOST);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
