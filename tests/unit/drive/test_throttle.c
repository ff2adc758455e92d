/* Token buckets, by a clock that the test holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/units.h"
#include "drive/throttle.h"

#define SECOND UINT64_C(1000000000)

static void serves_at_its_rate_in_the_order_of_asking(void **state) {
    struct shore__bucket b;
    shore__bucket_init(&b, 1000);
    assert_int_equal(shore__bucket_reserve(&b, 5 * SECOND, 500), 5 * SECOND + SECOND / 2);
    /* asked for at the same instant: behind the first */
    assert_int_equal(shore__bucket_reserve(&b, 5 * SECOND, 1000), 6 * SECOND + SECOND / 2);
    /* asked for later, while it is still serving */
    assert_int_equal(shore__bucket_reserve(&b, 6 * SECOND, 500), 7 * SECOND);
    assert_int_equal(b.busy_ns, 2 * SECOND);
    assert_int_equal(b.units, 2000);
    shore__bucket_fini(&b);
}

static void idle_time_is_lost(void **state) {
    struct shore__bucket b;
    shore__bucket_init(&b, 1000);
    assert_int_equal(shore__bucket_reserve(&b, SECOND, 100), SECOND + SECOND / 10);
    assert_int_equal(shore__bucket_reserve(&b, 9 * SECOND, 1000), 10 * SECOND);
    assert_int_equal(b.busy_ns, SECOND + SECOND / 10);
    shore__bucket_fini(&b);
}

static void no_rate_is_no_limit(void **state) {
    struct shore__bucket b;
    shore__bucket_init(&b, 0);
    assert_int_equal(shore__bucket_reserve(&b, 7, UINT64_MAX / 2), 7);
    assert_int_equal(b.busy_ns, 0);
    shore__bucket_fini(&b);
}

static void no_time_is_lost_to_rounding(void **state) {
    struct shore__bucket b;
    shore__bucket_init(&b, 3);
    uint64_t instant = 0;
    for (int i = 0; i < 3000; i++)
        instant = shore__bucket_reserve(&b, 0, 1);
    assert_int_equal(instant, 1000 * SECOND);
    /* sizes that would overflow a product of 64 bits */
    shore__bucket_fini(&b);
    shore__bucket_init(&b, UINT64_C(8000000000));
    assert_int_equal(shore__bucket_reserve(&b, 0, UINT64_C(8000000000) * 1000), 1000 * SECOND);
    shore__bucket_fini(&b);
}

static struct shore__throttle *open_throttle(const struct shore__emulation *e, uint32_t ndrives) {
    struct shore__throttle *t;
    assert_int_equal(shore__throttle_open(e, ndrives, &t, NULL), 0);
    return t;
}

static uint64_t an_hour(void) {
    return 3600 * SECOND;
}

static void in_seconds(uint64_t instant, uint64_t seconds) {
    assert_int_equal(instant - an_hour(), seconds * SECOND);
}

static void one_link_for_both_directions_or_one_for_each(void **state) {
    struct shore__emulation e = {.link_shared = true, .link = {1000, 0}};
    struct shore__throttle *t = open_throttle(&e, 1);
    shore__throttle_link(t, SHORE__LINK_IN, 100000);
    in_seconds(shore__throttle_link(t, SHORE__LINK_OUT, 100000), 200);
    assert_int_equal(shore__throttle_link_bytes(t), 200000);
    shore__throttle_close(t);

    e = (struct shore__emulation){.link = {1000, 2000}};
    t = open_throttle(&e, 1);
    shore__throttle_link(t, SHORE__LINK_IN, 100000);
    in_seconds(shore__throttle_link(t, SHORE__LINK_OUT, 100000), 50);
    shore__throttle_close(t);
}

static void reading_overlaps_writing_up_to_the_mixed_rate(void **state) {
    struct shore__emulation e = {.ndrives = 1, .drive[0] = {.read = 1000, .write = 500}};
    struct shore__throttle *t = open_throttle(&e, 2);
    in_seconds(shore__throttle_io(t, 0, true, 50000), 100);
    in_seconds(shore__throttle_io(t, 0, false, 100000), 100);
    /* another drive does not wait for this one */
    in_seconds(shore__throttle_io(t, 1, false, 50000), 50);
    struct shore__busy busy;
    shore__throttle_busy(t, &busy);
    assert_true(busy.drive_read == 100 && busy.drive_write == 100);
    shore__throttle_close(t);

    e.drive[0].mixed = 1200;
    t = open_throttle(&e, 1);
    shore__throttle_io(t, 0, true, 50000);
    in_seconds(shore__throttle_io(t, 0, false, 100000), 125);
    shore__throttle_close(t);
}

static void the_last_drive_stands_for_all_that_follow(void **state) {
    struct shore__emulation e = {.ndrives = 2, .drive = {{.compute = 16000}, {.compute = 32000}}};
    struct shore__throttle *t = open_throttle(&e, 4);
    in_seconds(shore__throttle_compute(t, 0, 100000), 100);
    in_seconds(shore__throttle_compute(t, 3, 100000), 50);
    shore__throttle_close(t);
}

static void sleeps_until_an_instant(void **state) {
    shore__set_clock(NULL);
    uint64_t want = shore__now_ns() + 20000000;
    shore__sleep_until(want);
    assert_true(shore__now_ns() >= want);
    shore__sleep_until(1); /* long over */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(serves_at_its_rate_in_the_order_of_asking),
        cmocka_unit_test(idle_time_is_lost),
        cmocka_unit_test(no_rate_is_no_limit),
        cmocka_unit_test(no_time_is_lost_to_rounding),
        cmocka_unit_test(one_link_for_both_directions_or_one_for_each),
        cmocka_unit_test(reading_overlaps_writing_up_to_the_mixed_rate),
        cmocka_unit_test(the_last_drive_stands_for_all_that_follow),
        cmocka_unit_test(sleeps_until_an_instant),
    };
    shore__set_clock(an_hour);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
