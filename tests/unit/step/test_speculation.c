/* When a step speculates, and where a gradient waits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "step/speculation.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static void a_step_waits_until_norms_have_room_to_spare(void **state) {
    struct shore__recent_norms s = {0};
    assert_true(shore__speculation_pays(&s, 0)); /* nothing is clipped */
    assert_false(shore__speculation_pays(&s, 1));
    shore__norms_remember(&s, 0.79);
    assert_true(shore__speculation_pays(&s, 1));
    shore__norms_remember(&s, 0.81);
    for (int i = 0; i < (int)SHORE__RECENT_NORMS - 1; i++) {
        assert_false(shore__speculation_pays(&s, 1));
        shore__norms_remember(&s, 0.1);
    }
    assert_false(shore__speculation_pays(&s, 1));
    shore__norms_remember(&s, 0.1); /* the large one is forgotten */
    assert_true(shore__speculation_pays(&s, 1));
}

static void a_skipped_step_counts_as_clipped(void **state) {
    struct shore__recent_norms s = {0};
    for (uint32_t i = 0; i < 100; i++) {
        shore__norms_remember(&s, i % 7 == 3 ? INFINITY : 0.1);
        bool recent = i % 7 >= 3;
        assert_int_equal(shore__speculation_pays(&s, 1), i > 2 && recent ? false : true);
    }
}

static void a_unit_goes_as_the_table_says(void **state) {
    static const struct {
        struct shore__unit_facts facts;
        enum shore__unit_way way;
    } table[] = {
        {{.speculated = true, .goes_on = true, .fits = true}, UNIT_IS_SENT},
        {{.speculated = true, .goes_on = true}, UNIT_IS_SENT_AND_GOES_ASIDE},
        {{.speculated = true, .goes_on = true, .computes_again = true}, UNIT_IS_SENT},
        {{.speculated = true, .goes_on = true, .stays = true}, UNIT_IS_SENT},
        {{.speculated = true, .goes_on = true, .more = true, .fits = true}, UNIT_IS_HELD},
        {{.speculated = true, .goes_on = true, .more = true}, UNIT_GOES_ASIDE},
        {{.speculated = true, .goes_on = true, .state_is_here = true, .fits = true}, UNIT_IS_HELD},
        {{.speculated = true, .goes_on = true, .state_is_here = true}, UNIT_GOES_ASIDE},
        {{.speculated = true, .computes_again = true}, UNIT_GOES_ASIDE}, /* passed the limit, and nothing is lost */
        {{.speculated = true, .computes_again = true, .fits = true}, UNIT_IS_HELD},
        {{.speculated = true, .computes_again = true, .may_be_gone = true, .fits = true}, UNIT_IS_GIVEN_UP},
        {{.speculated = true, .computes_again = true, .may_be_gone = true, .stays = true}, UNIT_IS_GIVEN_UP},
        {{.stays = true}, UNIT_IS_HELD},
        {{.fits = true}, UNIT_IS_HELD},
        {{.fits = false}, UNIT_GOES_ASIDE},
        {{.host_update = true, .fits = true, .stays = true}, UNIT_GOES_ASIDE},
    };
    for (size_t i = 0; i < COUNT(table); i++)
        if (shore__unit_way(&table[i].facts) != table[i].way) fail_msg("row %zu", i);
}

static void more_memory_never_puts_more_aside(void **state) {
    for (unsigned bits = 0; bits < 256; bits++) {
        struct shore__unit_facts f = {bits & 1,  bits & 2,  bits & 4 && bits & 2, bits & 8, bits & 16,
                                      bits & 32, bits & 64, bits & 128,           false};
        enum shore__unit_way little = shore__unit_way(&f);
        f.fits = true;
        enum shore__unit_way much = shore__unit_way(&f);
        assert_true(little == much || little == UNIT_GOES_ASIDE || little == UNIT_IS_SENT_AND_GOES_ASIDE);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_waits_until_norms_have_room_to_spare),
        cmocka_unit_test(a_skipped_step_counts_as_clipped),
        cmocka_unit_test(a_unit_goes_as_the_table_says),
        cmocka_unit_test(more_memory_never_puts_more_aside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
