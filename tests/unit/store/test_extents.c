#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "store/extents.h"

static void ranges_are_taken_and_are_one_again(void **state) {
    struct shore__extents x = {0};
    const uint64_t bytes[] = {10, 20, 30, 40}, wanted[] = {0, 10, 30, 60};
    uint64_t at;
    assert_int_equal(shore__extents_reserve(&x, 6), 0);
    shore__extents_add(&x, 0, 100);
    for (int i = 0; i < 4; i++) {
        assert_true(shore__extents_take(&x, bytes[i], &at));
        assert_int_equal(at, wanted[i]);
    }
    assert_false(shore__extents_take(&x, 1, &at));
    assert_int_equal(x.used_bytes, 100);
    shore__extents_give(&x, 10, 20);
    shore__extents_give(&x, 60, 40);
    assert_false(shore__extents_take(&x, 50, &at));
    shore__extents_give(&x, 30, 30);
    assert_int_equal(x.nfree, 1);
    assert_true(shore__extents_take(&x, 90, &at));
    assert_int_equal(at, 10);
    shore__extents_give(&x, 0, 10);
    shore__extents_give(&x, 10, 90);
    assert_int_equal(x.nfree, 1);
    assert_int_equal(x.free[0].bytes, 100);
    assert_int_equal(x.used_bytes, 0);
    free(x.free);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranges_are_taken_and_are_one_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
