/* Charges of a step: they follow what the thread does and what it waits for, and add up to the step. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/prng.h"
#include "drive/counters.h"
#include "drive/gate.h"
#include "report/report.h"
#include "seed.h"

enum { DRIVES = 64, MS = 1000000 };

static uint64_t test_now_ns;
static uint64_t test_clock(void) {
    return test_now_ns;
}

/* An emulated machine that says what it is told to. */
static uint64_t work[DRIVES][SHORE_LANES];
static uint64_t over_ns(struct shore__gate *gate, enum shore_lane lane, uint32_t drive, uint64_t amount) {
    return 0;
}
static void worked(struct shore__gate *gate, uint32_t ndrives, uint64_t (*ns)[SHORE_LANES]) {
    assert_int_equal(ndrives, DRIVES);
    memcpy(ns, work, sizeof work);
}
static struct shore__gate gate = {over_ns, worked};

static struct shore_layout *layout;
static struct shore_fleet *fleet;
static struct shore_meter *meter;
static struct shore_step_report report;

static int open_all(void **state) {
    const struct shore_tensor_spec tensor = {"w", (uint64_t)DRIVES * SHORE_SEGMENT_ELEMS, 0};
    const struct shore_block_spec block = {"b", &tensor, 1};
    const char *drives[DRIVES];
    for (int d = 0; d < DRIVES; d++)
        drives[d] = "null:";
    const struct shore_fleet_options options = {
        .size = sizeof options, .drives = drives, .ndrives = DRIVES, .optimizer = SHORE_SGD};
    struct shore_diag diag = {0};
    test_now_ns = 1000 * (uint64_t)MS;
    shore__set_clock(test_clock);
    if (shore_layout_make(&block, 1, &layout)) return -1;
    if (shore_fleet_create(layout, &options, &fleet, &diag)) return -1;
    memset(work, 0, sizeof work);
    shore__fleet_set_gate(fleet, &gate);
    report = (struct shore_step_report){.size = sizeof report, .step = 1, .val_loss = NAN, .dropped_energy = NAN};
    return shore_meter_open(fleet, &meter, &diag);
}

static int close_all(void **state) {
    static bool meter_first;
    meter_first = !meter_first; /* either order works */
    if (meter_first) shore_meter_close(meter);
    shore_fleet_close(fleet);
    if (!meter_first) shore_meter_close(meter);
    shore_layout_free(layout);
    shore__set_clock(NULL);
    return 0;
}

static void pass(uint64_t ms) {
    test_now_ns += ms * MS;
}

/* Waits for so long, in which the link and a drive work for so long. */
static void wait_for(enum shore_lane lane, uint64_t ms, uint64_t link_ms, int drive, uint64_t drive_ms) {
    uint64_t since = shore__fleet_waits(fleet);
    pass(ms);
    for (int d = 0; d < DRIVES; d++)
        work[d][SHORE_LANE_LINK_OUT] += link_ms * MS;
    work[drive][SHORE_LANE_DRIVE_MIXED] += drive_ms * MS;
    shore__fleet_waited(fleet, lane, since);
}

static void assert_charged(enum shore_charge charge, uint64_t ms) {
    double seconds = report.charge_seconds[charge];
    if (fabs(seconds - (double)ms * 1e-3) > 1e-9)
        fail_msg("%s: %g s instead of %g", shore_charge_name(charge), seconds, (double)ms * 1e-3);
}

static void assert_adds_up(void) {
    double sum = 0;
    for (int i = 0; i < SHORE_CHARGES; i++) {
        assert_true(report.charge_seconds[i] >= 0);
        sum += report.charge_seconds[i];
    }
    assert_true(fabs(sum - report.step_seconds) < 1e-9);
}

static void time_goes_to_what_the_thread_does(void **state) {
    pass(5); /* belongs to no step */
    shore_meter_begin(meter);
    pass(1);
    assert_int_equal(shore_meter_charge(meter, SHORE_CHARGE_FORWARD), SHORE_CHARGE_BETWEEN);
    pass(20);
    assert_int_equal(shore_meter_charge(meter, SHORE_CHARGE_BACKWARD), SHORE_CHARGE_FORWARD);
    pass(30);
    wait_for(SHORE_LANE_DRIVE_READ, 4, 0, 0, 0);
    pass(30);
    wait_for(SHORE_LANE_COMMIT, 8, 0, 0, 0);
    wait_for(SHORE_LANE_BUS_IN, 16, 0, 0, 0);
    wait_for(SHORE_LANE_HOST_UPDATE, 32, 0, 0, 0);
    assert_int_equal(shore_meter_end(meter, &report), 0);
    assert_charged(SHORE_CHARGE_BETWEEN, 1);
    assert_charged(SHORE_CHARGE_FORWARD, 20);
    assert_charged(SHORE_CHARGE_AGAIN, 0);
    assert_charged(SHORE_CHARGE_BACKWARD, 60);
    assert_charged(SHORE_CHARGE_DRIVE, 4);
    assert_charged(SHORE_CHARGE_COMMIT, 8);
    assert_charged(SHORE_CHARGE_BUS, 16);
    assert_charged(SHORE_CHARGE_UPDATE, 32);
    assert_adds_up();
    pass(7); /* the next step goes on with what was charged */
    assert_int_equal(shore_meter_end(meter, &report), 0);
    assert_charged(SHORE_CHARGE_BACKWARD, 7);
    assert_adds_up();
}

static void a_wait_goes_to_what_held_it_up(void **state) {
    shore_meter_begin(meter);
    wait_for(SHORE_LANE_DRIVE_READ, 10, 9, 3, 8);
    wait_for(SHORE_LANE_DRIVE_WRITE, 20, 18, 63, 19);
    wait_for(SHORE_LANE_DRIVE_UPDATE, 40, 30, 0, 0); /* an emulated link before a drive that is none: it is this one */
    wait_for(SHORE_LANE_DRIVE_UPDATE, 80, 10, 0, 0);
    assert_int_equal(shore_meter_end(meter, &report), 0);
    assert_charged(SHORE_CHARGE_LINK, 50);
    assert_charged(SHORE_CHARGE_DRIVE, 100);
    assert_adds_up();
}

static void a_wait_within_a_wait_counts_once(void **state) {
    shore_meter_begin(meter);
    uint64_t outer = shore__fleet_waits(fleet);
    pass(1);
    wait_for(SHORE_LANE_BUS_OUT, 2, 0, 0, 0);
    pass(4);
    shore__fleet_waited(fleet, SHORE_LANE_DRIVE_WRITE, outer);
    assert_int_equal(shore_meter_end(meter, &report), 0);
    assert_charged(SHORE_CHARGE_BUS, 2);
    assert_charged(SHORE_CHARGE_DRIVE, 4);
    assert_adds_up();
}

static void *elsewhere(void *ctx) {
    assert_int_equal(shore_meter_charge(meter, SHORE_CHARGE_UPDATE), SHORE_CHARGE_FORWARD);
    shore__fleet_waited(fleet, SHORE_LANE_DRIVE_READ, shore__fleet_waits(fleet) - 5 * MS);
    return NULL;
}

static void other_threads_charge_nothing(void **state) {
    pthread_t thread;
    shore_meter_begin(meter);
    shore_meter_charge(meter, SHORE_CHARGE_FORWARD);
    pass(10);
    assert_int_equal(pthread_create(&thread, NULL, elsewhere, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(shore_meter_charge(NULL, SHORE_CHARGE_UPDATE), SHORE_CHARGE_BETWEEN);
    assert_int_equal(shore_meter_end(meter, &report), 0);
    assert_charged(SHORE_CHARGE_FORWARD, 10);
    assert_adds_up();
}

static void whatever_happens_adds_up(void **state) {
    const uint64_t seed = test_seed();
    shore_meter_begin(meter);
    for (uint64_t i = 0; i < 1000; i++) {
#define BELOW(n) (shore__random_u64(seed, stream++, i) % (uint64_t)(n))
        uint64_t stream = 0, ms = BELOW(50), link_ms = BELOW(ms + 1), drive_ms = BELOW(ms + 1);
        int drive = (int)BELOW(DRIVES);
        if (BELOW(2))
            shore_meter_charge(meter, (enum shore_charge)BELOW(SHORE_CHARGES));
        else
            wait_for((enum shore_lane)BELOW(SHORE_LANES), ms, link_ms, drive, drive_ms);
        pass(ms);
        if (BELOW(10)) continue;
        assert_int_equal(shore_meter_end(meter, &report), 0);
        assert_adds_up();
    }
}

static void a_line_has_every_drive(void **state) {
    char text[DRIVES * 200], metrics[2048];
    int n = shore_meter_drives_line(meter, true, text, sizeof text);
    assert_string_equal(text, "{}");
    assert_int_equal(shore_meter_end(meter, &report), 0);
    n = shore_meter_drives_line(meter, true, text, sizeof text);
    assert_in_range(n, 1, sizeof text - 1);
    assert_int_equal(shore_meter_drives_line(meter, true, NULL, 0), n);
    assert_true(shore_meter_drives_line(meter, false, NULL, 0) < n);
    json_t *line = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *drives = json_object_get(line, "drives");
    assert_int_equal(json_integer_value(json_object_get(line, "step")), 1);
    assert_int_equal(json_array_size(drives), DRIVES);
    for (int d = 0; d < DRIVES; d++) {
        const json_t *drive = json_array_get(drives, d);
        assert_int_equal(json_integer_value(json_object_get(drive, "drive")), d);
        assert_true(json_is_integer(json_object_get(drive, "read_bytes")));
        assert_true(json_is_integer(json_object_get(drive, "write_bytes")));
        assert_true(json_number_value(json_object_get(drive, "busy_seconds")) >= 0);
        assert_string_equal(json_string_value(json_object_get(drive, "path")), shore_fleet_drive_path(fleet, d));
    }
    json_decref(line);
    assert_in_range(shore_metrics_line(&report, metrics, sizeof metrics), 1, 1999);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)
    const struct CMUnitTest tests[] = {
        TEST(time_goes_to_what_the_thread_does), TEST(a_wait_goes_to_what_held_it_up),
        TEST(a_wait_within_a_wait_counts_once),  TEST(other_threads_charge_nothing),
        TEST(whatever_happens_adds_up),          TEST(a_line_has_every_drive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
