#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/sized.h"
#include "longshore/device.h"
#include "longshore/machine.h"
#include "longshore/plan.h"
#include "longshore/state.h"
#include "longshore/step.h"
#include "longshore/store.h"

struct known {
    size_t size;
    uint64_t a, b;
};

/* What another version has. */
struct older {
    size_t size;
    uint64_t a;
};
struct newer {
    size_t size;
    uint64_t a, b, c;
};

static void missing_members_are_zero(void **state) {
    struct shore_diag diag = {0};
    struct older given = {sizeof given, 7};
    struct known got;
    memset(&got, 0xFF, sizeof got);
    assert_int_equal(shore__sized_in(&got, sizeof got, &given, "known", &diag), 0);
    assert_int_equal(got.size, sizeof got);
    assert_int_equal(got.a, 7);
    assert_int_equal(got.b, 0);
}

static void unknown_members_must_be_zero(void **state) {
    struct shore_diag diag = {0};
    struct newer given = {sizeof given, 1, 2, 0};
    struct known got;
    assert_int_equal(shore__sized_in(&got, sizeof got, &given, "known", &diag), 0);
    assert_int_equal(got.b, 2);
    given.c = UINT64_C(1) << 63;
    assert_int_equal(shore__sized_in(&got, sizeof got, &given, "known", &diag), -EINVAL);
    assert_non_null(strstr(diag.text, "struct known has members that this library"));
}

static void a_size_that_was_not_set_is_refused(void **state) {
    static const size_t wrong[] = {0, 1, sizeof(size_t) - 1, 4097, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct shore_diag diag = {0};
        struct known given = {wrong[i], 1, 2}, got = {0};
        assert_int_equal(shore__sized_in(&got, sizeof got, &given, "known", &diag), -EINVAL);
        assert_string_equal(diag.text, "the size of a struct known was not set: it is sizeof(struct known)");
        assert_int_equal(shore__sized_out(&given, &got, sizeof got), -EINVAL);
        assert_int_equal(given.a, 1);
    }
}

static void results_reach_as_far_as_they_fit(void **state) {
    const struct known ours = {0, 3, 4};
    struct {
        struct older given;
        uint64_t behind;
    } small = {{sizeof small.given, 0}, 99};
    struct newer large = {sizeof large, 9, 9, 9};
    assert_int_equal(shore__sized_out(&small, &ours, sizeof ours), 0);
    assert_int_equal(small.given.size, sizeof small.given);
    assert_int_equal(small.given.a, 3);
    assert_int_equal(small.behind, 99);
    assert_int_equal(shore__sized_out(&large, &ours, sizeof ours), 0);
    assert_int_equal(large.size, sizeof large);
    assert_int_equal(large.b, 4);
    assert_int_equal(large.c, 0);
}

/* A later version's members begin where these structs end: padding there would hold what nobody has set. */
#define ENDS_WITH(type, member) \
    assert_int_equal(offsetof(struct type, member) + sizeof(((struct type *)NULL)->member), sizeof(struct type))

static void no_struct_ends_with_padding(void **state) {
    ENDS_WITH(shore_fleet_options, elsewhere_ctx);
    ENDS_WITH(shore_elsewhere, bytes);
    ENDS_WITH(shore_fleet_info, away);
    ENDS_WITH(shore_update, gather);
    ENDS_WITH(shore_store, order);
    ENDS_WITH(shore_ledger, waited_ns);
    ENDS_WITH(shore_commit, blob_bytes);
    ENDS_WITH(shore_step_options, aside_bytes);
    ENDS_WITH(shore_step_gradient, gather);
    ENDS_WITH(shore_step_landing, ends);
    ENDS_WITH(shore_store_options, device);
    ENDS_WITH(shore_store_counts, waited_get_ns);
    ENDS_WITH(shore_tensor, without);
    ENDS_WITH(shore_plan_options, written_bytes_per_day_most);
    ENDS_WITH(shore_plan_sums, too_little);
    ENDS_WITH(shore_fate, moved);
    ENDS_WITH(shore_machine_options, ctx);
    ENDS_WITH(shore_device, watch);
    ENDS_WITH(shore_shown_options, ring_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_members_are_zero),           cmocka_unit_test(unknown_members_must_be_zero),
        cmocka_unit_test(a_size_that_was_not_set_is_refused), cmocka_unit_test(results_reach_as_far_as_they_fit),
        cmocka_unit_test(no_struct_ends_with_padding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
