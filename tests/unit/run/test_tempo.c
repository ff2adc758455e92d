/* Another machine's time, by a clock that the test holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/units.h"
#include "run/emulation/tempo.h"

#define SECOND UINT64_C(1000000000)
#define HOUR (3600 * SECOND)

static uint64_t now = HOUR;

static uint64_t test_clock(void) {
    return now;
}

static struct shore__tempo *make(const struct shore_machine *e, uint32_t ndrives) {
    struct shore__tempo *m;
    now = HOUR;
    assert_int_equal(shore__tempo_make(e, ndrives, &m, NULL), 0);
    return m;
}

/* In nanoseconds after the test's beginning. */
static uint64_t over(struct shore__tempo *m, enum shore_lane lane, uint32_t drive, uint64_t amount) {
    struct shore__gate *gate = shore__tempo_gate(m);
    return gate->over_ns(gate, lane, drive, amount) - HOUR;
}

static double busy(struct shore__tempo *m, enum shore_lane lane) {
    double seconds[SHORE_LANES];
    shore__tempo_busy(m, seconds);
    return seconds[lane];
}

static void serves_at_its_rate_in_the_order_of_asking(void **state) {
    struct shore__tempo *m = make(&(struct shore_machine){.link = {1000, 0}}, 1);
    assert_int_equal(over(m, SHORE_LANE_LINK_IN, 0, 500), SECOND / 2);
    /* asked for at the same instant: behind the first */
    assert_int_equal(over(m, SHORE_LANE_LINK_IN, 0, 1000), SECOND + SECOND / 2);
    now += SECOND; /* while it is still serving */
    assert_int_equal(over(m, SHORE_LANE_LINK_IN, 0, 500), 2 * SECOND);
    assert_true(busy(m, SHORE_LANE_LINK_IN) == 2);
    now += 9 * SECOND; /* idle time is lost */
    assert_int_equal(over(m, SHORE_LANE_LINK_IN, 0, 1000), 11 * SECOND);
    assert_true(busy(m, SHORE_LANE_LINK_IN) == 3);
    shore__tempo_close(m);
}

static void no_rate_is_no_limit(void **state) {
    struct shore__tempo *m = make(&(struct shore_machine){.link = {1000, 0}}, 1);
    assert_int_equal(over(m, SHORE_LANE_LINK_OUT, 0, UINT64_MAX / 2), 0);
    assert_true(busy(m, SHORE_LANE_LINK_IN) == 0);
    assert_null(shore__tempo_speeds(m));
    shore__tempo_close(m);
}

static void no_time_is_lost_to_rounding(void **state) {
    struct shore__tempo *m = make(&(struct shore_machine){.link = {3, UINT64_C(8000000000)}}, 1);
    uint64_t instant = 0;
    for (int i = 0; i < 3000; i++)
        instant = over(m, SHORE_LANE_LINK_IN, 0, 1);
    assert_int_equal(instant, 1000 * SECOND);
    /* sizes that would overflow a product of 64 bits */
    assert_int_equal(over(m, SHORE_LANE_LINK_OUT, 0, UINT64_C(8000000000) * 1000), 1000 * SECOND);
    shore__tempo_close(m);
}

static void one_link_for_both_directions_or_one_for_each(void **state) {
    struct shore__tempo *m = make(&(struct shore_machine){.link_shared = true, .link = {1000, 0}}, 1);
    over(m, SHORE_LANE_LINK_IN, 0, 100000);
    assert_int_equal(over(m, SHORE_LANE_LINK_OUT, 0, 100000), 200 * SECOND);
    shore__tempo_close(m);
    m = make(&(struct shore_machine){.link = {1000, 2000}}, 1);
    over(m, SHORE_LANE_LINK_IN, 0, 100000);
    assert_int_equal(over(m, SHORE_LANE_LINK_OUT, 0, 100000), 50 * SECOND);
    shore__tempo_close(m);
}

static void reading_overlaps_writing_up_to_the_mixed_rate(void **state) {
    struct shore_machine e = {.ndrives = 1, .drive[0] = {.read = 1000, .write = 500}};
    struct shore__tempo *m = make(&e, 2);
    assert_int_equal(over(m, SHORE_LANE_DRIVE_WRITE, 0, 50000), 100 * SECOND);
    assert_int_equal(over(m, SHORE_LANE_DRIVE_READ, 0, 100000), 100 * SECOND);
    /* another drive, which is like the last that is listed, does not wait for this one */
    assert_int_equal(over(m, SHORE_LANE_DRIVE_READ, 1, 50000), 50 * SECOND);
    assert_true(busy(m, SHORE_LANE_DRIVE_READ) == 100 && busy(m, SHORE_LANE_DRIVE_WRITE) == 100);
    shore__tempo_close(m);

    e.drive[0].mixed = 1200;
    m = make(&e, 1);
    over(m, SHORE_LANE_DRIVE_WRITE, 0, 50000);
    assert_int_equal(over(m, SHORE_LANE_DRIVE_READ, 0, 100000), 125 * SECOND);
    shore__tempo_close(m);
}

static void drives_of_one_device_share_its_rate(void **state) {
    struct shore_machine e = {.ndrives = 3, .drive = {{.read = 1000}, {.read = 1000}, {.read = 1000, .shares = 1}}};
    struct shore__tempo *m = make(&e, 4);
    assert_int_equal(over(m, SHORE_LANE_DRIVE_READ, 0, 1000), SECOND);
    assert_int_equal(over(m, SHORE_LANE_DRIVE_READ, 1, 1000), SECOND);
    assert_int_equal(over(m, SHORE_LANE_DRIVE_READ, 2, 1000), 2 * SECOND);
    assert_int_equal(over(m, SHORE_LANE_DRIVE_READ, 3, 1000), SECOND); /* one more, on a device of its own */
    shore__tempo_close(m);
}

static void computing_takes_its_time_for_elements(void **state) {
    struct shore_machine e = {.ndrives = 2, .drive = {{.update = 1000}, {.update = 2000}}, .host_update = 500};
    struct shore__tempo *m = make(&e, 4);
    assert_int_equal(over(m, SHORE_LANE_DRIVE_UPDATE, 0, 100000), 100 * SECOND);
    assert_int_equal(over(m, SHORE_LANE_DRIVE_UPDATE, 3, 100000), 50 * SECOND);
    assert_int_equal(over(m, SHORE_LANE_HOST_UPDATE, 0, 100000), 200 * SECOND);
    /* of 12 bytes that an element moves */
    assert_string_equal(shore__tempo_speeds(m), "24001,48001,48001,48001");
    shore__tempo_close(m);
}

static void a_plan_knows_its_drives(void **state) {
    struct shore_machine e = {.ndrives = 2, .drive = {{.memory = 500}, {0}}, .host_buffers = 3};
    struct shore__tempo *m = make(&e, 2);
    struct shore__facts facts = {.drives.ndrives = 2}, given = {.drives = {.ndrives = 2, .drive_speeds = "2,1"}};
    shore__tempo_facts(m, &facts);
    shore__tempo_facts(m, &given);
    assert_int_equal(facts.ring_bytes_most, 1000);
    assert_int_equal(facts.host_buffers_most, 3);
    assert_string_equal(facts.drives.drive_speeds, "1000000000000,1000000000000");
    assert_string_equal(given.drives.drive_speeds, "2,1");
    shore__tempo_close(m);
    shore__tempo_facts(NULL, &given);
    assert_null(shore__tempo_gate(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(serves_at_its_rate_in_the_order_of_asking),
        cmocka_unit_test(no_rate_is_no_limit),
        cmocka_unit_test(no_time_is_lost_to_rounding),
        cmocka_unit_test(one_link_for_both_directions_or_one_for_each),
        cmocka_unit_test(reading_overlaps_writing_up_to_the_mixed_rate),
        cmocka_unit_test(drives_of_one_device_share_its_rate),
        cmocka_unit_test(computing_takes_its_time_for_elements),
        cmocka_unit_test(a_plan_knows_its_drives),
    };
    shore__set_clock(test_clock);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
