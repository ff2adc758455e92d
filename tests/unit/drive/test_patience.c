/* How long, and how often, lost drives are waited for. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/units.h"
#include "longshore/state.h"

static uint64_t now_ns;
static uint64_t clock_of_test(void) {
    return now_ns;
}

static const struct shore_diag lost = {.text = "far: the other side has closed the connection"};

static int set_up(void **state) {
    (void)state;
    now_ns = 1;
    shore__set_clock(clock_of_test);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    shore__set_clock(NULL);
    return 0;
}

static struct shore_patience patient(double seconds) {
    return (struct shore_patience){.size = sizeof(struct shore_patience), .seconds = seconds, .go_on = "GO ON"};
}

static void what_may_pass_is_tried_again(void **state) {
    struct shore_patience p = patient(90);
    struct shore_diag diag = lost, said;
    (void)state;
    shore_patience_begin(&p, &lost, &said);
    assert_string_equal(said.text,
                        "far: the other side has closed the connection; waiting for it for up to 1 min 30 s");
    assert_int_equal(shore_patience_try(&p, SHORE_ELINK, &diag), 1);
    assert_int_equal(shore_patience_try(&p, SHORE_EBUSY, &diag), 1);
    assert_int_equal(shore_patience_try(&p, SHORE_EMISSING, &diag), 1);
    assert_int_equal(p.pause_ms, 800);
    assert_int_equal(shore_patience_try(&p, SHORE_ESTALE, &diag), SHORE_ESTALE);
    assert_int_equal(shore_patience_try(&p, -EIO, &diag), -EIO);
    assert_int_equal(shore_patience_try(&p, 0, &diag), 0);
    now_ns += 4200000000u;
    assert_int_equal(shore_patience_end(&p, 7, &diag, &said), 0);
    assert_string_equal(said.text, "connected again after 4.2 s: going on from step 7");
    assert_string_equal(diag.text, lost.text);
}

static void patience_ends(void **state) {
    struct shore_patience p = patient(5);
    struct shore_diag diag = lost, said;
    (void)state;
    shore_patience_begin(&p, &lost, &said);
    now_ns += 5000000000u;
    assert_int_equal(shore_patience_try(&p, SHORE_ELINK, &diag), 1);
    strcpy(diag.text, "far: cannot be reached");
    now_ns += 1000000000u;
    assert_int_equal(shore_patience_try(&p, SHORE_ELINK, &diag), SHORE_ELINK);
    assert_string_equal(diag.text, "gave up after 6.0 s, the committed state is good: far: cannot be reached; when the "
                                   "drive is back, go on with: GO ON");
}

static void one_step_loses_a_drive_so_often(void **state) {
    struct shore_patience p = patient(5);
    struct shore_diag diag = lost, said;
    (void)state;
    for (uint64_t step = 3; step < 6; step++) {
        for (int i = 0; i < 20; i++) {
            shore_patience_begin(&p, &lost, &said);
            assert_int_equal(shore_patience_end(&p, step, &diag, &said), 0);
        }
    }
    shore_patience_begin(&p, &lost, &said);
    assert_int_equal(shore_patience_end(&p, 5, &diag, &said), SHORE_ELINK);
    assert_non_null(
        strstr(diag.text, "a drive was lost 21 times in step 6; the committed state is good: far: the other"));
    assert_non_null(strstr(diag.text, "when that is mended, go on with: GO ON"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_may_pass_is_tried_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(patience_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_step_loses_a_drive_so_often, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
