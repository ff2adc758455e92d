#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "report/report.h"

static const struct shore_step_report usual = {
    .size = sizeof usual,
    .step = 7,
    .loss = 3.0 + 1.0 / 3,
    .grad_norm = 0.125,
    .lr = 3e-5,
    .val_loss = NAN,
    .dropped_energy = NAN,
    .tokens = 4096,
    .step_seconds = 1.5,
    .compute_seconds = 1.25,
    .wait_seconds = 0.25,
    .commit_seconds = 0.001,
    .replays = 1,
    .speculated = true,
    .ledger = {.link_in_gradients = 123456789000000,
               .link_out_gradients = 12000,
               .link_in_compressed = 300,
               .link_out_params = 40,
               .link_control = 5,
               .drive_read_fetch = 1,
               .drive_write_commit = 2},
    .resident_bytes = 3,
};

static json_t *line_of(const struct shore_step_report *r) {
    char line[2048];
    int n = shore_metrics_line(r, line, sizeof line);
    assert_in_range(n, 1, sizeof line - 1);
    assert_int_equal((size_t)n, strlen(line));
    assert_null(strchr(line, '\n'));
    json_t *json = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(json);
    return json;
}

static void has_the_promised_keys(void **state) {
    static const char *const keys[] = {"step",
                                       "loss",
                                       "grad_norm",
                                       "lr",
                                       "tokens",
                                       "step_seconds",
                                       "wait_seconds",
                                       "compute_seconds",
                                       "commit_seconds",
                                       "charges",
                                       "replays",
                                       "link_bytes",
                                       "link_gradients",
                                       "link_compressed",
                                       "link_parameters",
                                       "link_activations",
                                       "link_state",
                                       "link_control",
                                       "drive_read_bytes",
                                       "drive_write_bytes",
                                       "resident_bytes",
                                       "speculated"};
    json_t *json = line_of(&usual);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        assert_non_null(json_object_get(json, keys[i]));
    assert_int_equal(json_object_size(json), sizeof keys / sizeof keys[0]);
    assert_true(json_real_value(json_object_get(json, "loss")) == 3.33333333);
    assert_int_equal(json_integer_value(json_object_get(json, "link_bytes")), 123456789012345);
    assert_int_equal(json_integer_value(json_object_get(json, "link_compressed")), 300);
    assert_true(json_is_true(json_object_get(json, "speculated")));
    json_decref(json);
}

static void val_loss_only_where_measured(void **state) {
    struct shore_step_report r = usual;
    r.val_loss = 2.5;
    json_t *json = line_of(&r);
    assert_true(json_real_value(json_object_get(json, "val_loss")) == 2.5);
    json_decref(json);
}

static void dropped_energy_only_where_compressed(void **state) {
    struct shore_step_report r = usual;
    struct shore__progress p;
    char line[512];
    r.dropped_energy = 0.625;
    json_t *json = line_of(&r);
    assert_true(json_real_value(json_object_get(json, "dropped_energy")) == 0.625);
    json_decref(json);
    p = (struct shore__progress){.last_step = 1000};
    assert_non_null(strstr(shore__progress_line(&p, &r, line, sizeof line), "dropped 62%"));
    assert_null(strstr(shore__progress_line(&p, &usual, line, sizeof line), "dropped"));
}

static void mfu_is_shown_where_it_is_known(void **state) {
    struct shore_step_report r = usual;
    struct shore__progress p = {.last_step = 9};
    char line[256];
    json_t *json = line_of(&r);
    assert_null(json_object_get(json, "mfu"));
    json_decref(json);
    assert_null(strstr(shore__progress_line(&p, &r, line, sizeof line), "mfu"));
    r.val_loss = INFINITY; /* it was measured, and not finite */
    assert_non_null(strstr(shore__progress_line(&p, &r, line, sizeof line), "val not finite"));
    json = line_of(&r);
    assert_true(json_is_null(json_object_get(json, "val_loss")));
    json_decref(json);
    r.val_loss = NAN;
    r.mfu = 0.412;
    json = line_of(&r);
    assert_true(json_real_value(json_object_get(json, "mfu")) == 0.412);
    json_decref(json);
    assert_non_null(strstr(shore__progress_line(&p, &r, line, sizeof line), " tok/s  mfu 41%"));
    r.mfu = 0.0123;
    assert_non_null(strstr(shore__progress_line(&p, &r, line, sizeof line), "mfu 1.2%"));
}

static void busy_only_where_emulated(void **state) {
    struct shore_step_report r = usual;
    json_t *json = line_of(&r);
    assert_null(json_object_get(json, "emulated"));
    assert_null(json_object_get(json, "busy"));
    json_decref(json);
    r.emulated = true;
    for (int i = 0; i < SHORE_LANES; i++)
        r.busy_seconds[i] = 4.12345678;
    json = line_of(&r);
    assert_true(json_is_true(json_object_get(json, "emulated")));
    const char *part;
    const json_t *seconds, *busy = json_object_get(json, "busy");
    assert_int_equal(json_object_size(busy), 7);
    json_object_foreach((json_t *)(uintptr_t)busy, part, seconds) assert_true(json_real_value(seconds) == 4.12345678);
    json_decref(json);
}

static void every_charge_has_its_key(void **state) {
    static const char *const keys[] = {"before_forward", "forward", "again", "backward", "update", "bus",
                                       "link",           "drive",   "commit"};
    struct shore_step_report r = usual;
    for (int i = 0; i < SHORE_CHARGES; i++)
        r.charge_seconds[i] = i / 8.0;
    json_t *json = line_of(&r);
    const json_t *charges = json_object_get(json, "charges");
    assert_int_equal(json_object_size(charges), SHORE_CHARGES);
    for (int i = 0; i < SHORE_CHARGES; i++) {
        assert_string_equal(shore_charge_name(i), keys[i]);
        assert_true(json_number_value(json_object_get(charges, keys[i])) == i / 8.0);
    }
    json_decref(json);
}

static void what_is_not_finite_is_null(void **state) {
    struct shore_step_report r = usual;
    r.loss = NAN;
    r.grad_norm = INFINITY;
    r.skipped = true;
    json_t *json = line_of(&r);
    assert_true(json_is_null(json_object_get(json, "loss")));
    assert_true(json_is_null(json_object_get(json, "grad_norm")));
    assert_true(json_is_true(json_object_get(json, "skipped")));
    json_decref(json);
}

static void a_line_says_how_long_it_is(void **state) {
    char line[2048], small[100];
    int n = shore_metrics_line(&usual, line, sizeof line);
    assert_int_equal(shore_metrics_line(&usual, NULL, 0), n);
    memset(small, 'x', sizeof small);
    assert_int_equal(shore_metrics_line(&usual, small, 10), n);
    assert_int_equal(strlen(small), 9);
    assert_memory_equal(small, line, 9);
    assert_int_equal(small[10], 'x');
    struct shore_step_report r = usual;
    r.size = 0;
    assert_int_equal(shore_metrics_line(&r, line, sizeof line), -EINVAL);
}

static void progress_shows_what_matters_and_never_overflows(void **state) {
    struct shore__progress p;
    char line[512];
    p = (struct shore__progress){.last_step = 1000, .budget_bytes = UINT64_C(1) << 30};
    shore__progress_line(&p, &usual, line, sizeof line);
    assert_non_null(strstr(line, "step 7/1000"));
    assert_non_null(strstr(line, "loss 3.3333"));
    assert_non_null(strstr(line, "ETA 24 min"));
    assert_non_null(strstr(line, "of 1.00 GiB"));
    assert_non_null(strstr(line, "replays 1"));
    assert_null(strstr(line, "val "));
    char small[16];
    memset(small, 'x', sizeof small);
    shore__progress_line(&p, &usual, small, 10);
    assert_int_equal(strlen(small), 9);
    assert_int_equal(small[10], 'x');
    struct shore_step_report bad = usual;
    bad.loss = bad.grad_norm = NAN;
    bad.step_seconds = 0;
    shore__progress_line(&p, &bad, line, sizeof line);
    assert_non_null(strstr(line, "loss nan"));
}

/* Drives that are placed by speed work equally long; one that does not is named, once it has shown for some steps. */
static void a_slow_drive_is_named(void **state) {
    struct shore__slowness slow;
    uint64_t busy[3] = {0};
    double factor = 0;
    assert_int_equal(shore__slowness_init(&slow, 3), 0);
    for (int i = 0; i < 10; i++) {
        busy[0] += 800000000, busy[1] += 900000000, busy[2] += 850000000;
        assert_int_equal(shore__slowness_step(&slow, busy, 1, &factor), -1);
    }
    int named = -1;
    for (int i = 0; i < 20 && named < 0; i++) {
        busy[0] += 800000000, busy[1] += 2400000000, busy[2] += 800000000;
        named = shore__slowness_step(&slow, busy, 2.5, &factor);
    }
    assert_int_equal(named, 1);
    assert_true(factor >= 1.5 && factor < 3.1);
    /* one that works longer than the others, but little beside a step of computing, holds nobody up */
    for (int i = 0; i < 20; i++) {
        busy[0] += 100000000, busy[1] += 300000000, busy[2] += 100000000;
        named = shore__slowness_step(&slow, busy, 10, &factor);
    }
    assert_int_equal(named, -1);
    shore__slowness_fini(&slow);

    struct shore__slowness alone;
    assert_int_equal(shore__slowness_init(&alone, 1), 0);
    for (int i = 0; i < 5; i++) {
        busy[0] += 1000000000;
        assert_int_equal(shore__slowness_step(&alone, busy, 1, &factor), -1);
    }
    shore__slowness_fini(&alone);

    struct shore_step_report r = usual;
    struct shore__progress p;
    char line[512];
    r.slow_drive = "/mnt/b/longshore.volume";
    r.slow_factor = 2.13;
    p = (struct shore__progress){.last_step = 10};
    const char *said = strstr(shore__progress_line(&p, &r, line, sizeof line),
                              "slow: /mnt/b/longshore.volume works 2.1 times as long as the others");
    assert_non_null(said);
    assert_true(said < strstr(line, "loss")); /* where a terminal of 80 columns shows it */
}

/* The time of a step and the end are in the line from the second step on, early enough for 80 columns; the first step,
 * which is slow, does not count in it. */
static void the_end_is_foreseen(void **state) {
    struct shore_step_report r = usual;
    struct shore__progress p;
    char line[512];
    p = (struct shore__progress){.last_step = 11};
    r.step = 1, r.step_seconds = 100, r.val_loss = 2.5;
    shore__progress_line(&p, &r, line, sizeof line);
    r.step = 2, r.step_seconds = 2;
    const char *end = strstr(shore__progress_line(&p, &r, line, sizeof line), "  2.0 s/step  ETA 18.0 s");
    assert_non_null(end);
    assert_true(end - line < 50);
    r.step = 3, r.step_seconds = 4;
    assert_non_null(
        strstr(shore__progress_line(&p, &r, line, sizeof line), "  4.0 s/step  ETA 24.0 s")); /* 8 times 3 s */
    r.step = 11;
    assert_null(strstr(shore__progress_line(&p, &r, line, sizeof line), "ETA"));
}

static void a_log_takes_the_first_the_last_and_by_pace(void **state) {
    const struct shore__pace steps = {.steps = 10}, time = {.seconds = 30};
    const uint64_t second = 1000000000;
    struct shore__progress p;
    p = (struct shore__progress){.last_step = 25};
    for (uint64_t step = 3; step <= 25; step++)
        assert_true(shore__progress_due(&p, &steps, step, step * second) ==
                    (step == 3 || step == 10 || step == 20 || step == 25));
    p = (struct shore__progress){.last_step = 25};
    for (uint64_t step = 1; step <= 25; step++) /* 7 seconds each: at 7, 42, 77, ... */
        assert_true(shore__progress_due(&p, &time, step, 7 * step * second) == (step % 5 == 1 || step == 25));
    p = (struct shore__progress){.last_step = 25};
    for (uint64_t step = 1; step <= 25; step++) /* each takes longer than that */
        assert_true(shore__progress_due(&p, &time, step, 40 * step * second));
}

static void a_norm_far_above_its_mean_is_seen(void **state) {
    struct shore__progress p;
    p = (struct shore__progress){.last_step = 25};
    assert_true(shore__progress_jump(&p, 0) == 0 && shore__progress_jump(&p, 2) == 0);
    assert_true(shore__progress_jump(&p, NAN) == 0 && shore__progress_jump(&p, 99) == 0); /* 49.5 times */
    p = (struct shore__progress){.last_step = 25};
    for (int i = 0; i < 10; i++)
        assert_true(shore__progress_jump(&p, 2) == 0);
    double times = shore__progress_jump(&p, 150);
    assert_true(times > 74.99 && times < 75.01);
    assert_true(shore__progress_jump(&p, 150) == 0); /* said once: it is in the mean now */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_drive_is_named),
        cmocka_unit_test(the_end_is_foreseen),
        cmocka_unit_test(a_log_takes_the_first_the_last_and_by_pace),
        cmocka_unit_test(a_norm_far_above_its_mean_is_seen),
        cmocka_unit_test(has_the_promised_keys),
        cmocka_unit_test(val_loss_only_where_measured),
        cmocka_unit_test(dropped_energy_only_where_compressed),
        cmocka_unit_test(mfu_is_shown_where_it_is_known),
        cmocka_unit_test(busy_only_where_emulated),
        cmocka_unit_test(every_charge_has_its_key),
        cmocka_unit_test(what_is_not_finite_is_null),
        cmocka_unit_test(a_line_says_how_long_it_is),
        cmocka_unit_test(progress_shows_what_matters_and_never_overflows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
