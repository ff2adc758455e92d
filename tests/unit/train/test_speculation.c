/* When a step speculates, and what ends that. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "longshore/state.h"
#include "train/speculation.h"

enum { SEGMENTS = 3 };

static struct shore_layout_block block = {.segments = SEGMENTS};
static const struct shore_layout layout = {.nblocks = 1, .segments = SEGMENTS, .blocks = &block};
static double sums[SEGMENTS];

static void a_step_waits_until_norms_have_room_to_spare(void **state) {
    struct speculation s = {0};
    assert_true(shore__speculation_pays(&s, 0)); /* nothing is clipped */
    assert_false(shore__speculation_pays(&s, 1));
    shore__speculation_remember(&s, 0.79);
    assert_true(shore__speculation_pays(&s, 1));
    shore__speculation_remember(&s, 0.81);
    for (int i = 0; i < (int)RECENT_NORMS - 1; i++) {
        assert_false(shore__speculation_pays(&s, 1));
        shore__speculation_remember(&s, 0.1);
    }
    assert_false(shore__speculation_pays(&s, 1));
    shore__speculation_remember(&s, 0.1); /* the large one is forgotten */
    assert_true(shore__speculation_pays(&s, 1));
}

static void a_skipped_step_counts_as_clipped(void **state) {
    struct speculation s = {0};
    for (uint32_t i = 0; i < 100; i++) {
        shore__speculation_remember(&s, i % 7 == 3 ? INFINITY : 0.1);
        bool recent = i % 7 >= 3;
        assert_int_equal(shore__speculation_pays(&s, 1), i > 2 && recent ? false : true);
    }
}

static void the_limit_ends_it(void **state) {
    static const double small[SEGMENTS] = {0.1, 0.2, 0.1}, large[SEGMENTS] = {0.1, 4, 0.1};
    for (int on = 0; on < 2; on++) {
        struct speculation s = {.on = on};
        shore__speculation_begin(&s, &layout, 1, sums);
        shore__speculation_add_sums(&s, 0, 0, SEGMENTS, small);
        assert_int_equal(shore__speculation_goes_on(&s), on);
        assert_true(shore__speculation_decide(&s).coefficient == 1);
        shore__speculation_begin(&s, &layout, 1, sums);
        for (uint32_t i = 0; i < SEGMENTS; i++) {
            shore__speculation_add_sums(&s, 0, i, 1, large + i);
            assert_int_equal(s.broken, on && i >= 1);
        }
        assert_false(shore__speculation_goes_on(&s));
        assert_true(shore__speculation_decide(&s).coefficient < 1);
        assert_true(s.norm > 2);
        shore__speculation_begin(&s, &layout, 1, sums); /* the next step */
        assert_int_equal(shore__speculation_goes_on(&s), on);
    }
}

static void a_value_that_is_not_finite_ends_it(void **state) {
    struct speculation s = {.on = true};
    const double bad = NAN;
    shore__speculation_begin(&s, &layout, 0, sums);
    shore__speculation_add_sums(&s, 0, 1, 1, &bad);
    assert_true(s.broken);
    assert_false(shore__speculation_decide(&s).finite);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_waits_until_norms_have_room_to_spare),
        cmocka_unit_test(a_skipped_step_counts_as_clipped),
        cmocka_unit_test(the_limit_ends_it),
        cmocka_unit_test(a_value_that_is_not_finite_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
