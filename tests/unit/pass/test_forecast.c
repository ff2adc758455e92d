/* What a run is said to cost: memory by class, and the budgets between which it matters. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "longshore/machine.h"
#include "pass/forecast.h"

static const char *const models[] = {"gpt2-tiny", "llama-tiny", "gpt2-small", "gpt2-124m"};
enum { MODELS = sizeof models / sizeof *models, BUDGETS = 8 };

static struct shore__model *model(const char *name) {
    struct shore__arch arch;
    struct shore__model *m = NULL;
    assert_int_equal(shore__arch_preset(name, 0, &arch, NULL), 0);
    assert_int_equal(shore__model_make(&arch, &m, NULL), 0);
    return m;
}

static struct shore__facts facts(const struct shore__model *m, size_t sequences, size_t tokens) {
    static const char *const drives[] = {"/tmp/a", "/tmp/b"};
    struct shore__facts f = {
        .model = m,
        .batch = shore__batch_shape(sequences, tokens),
        .mode = SHORE__BF16,
        .threads = 2,
        .workspace_bytes = 1 << 20,
        .packed_bytes = 3 << 20,
        .one_memory = true,
        .scratch = true,
        .offload = SHORE__AUTO,
    };
    f.drives =
        (struct shore_fleet_options){.size = sizeof f.drives, .drives = drives, .ndrives = 2, .optimizer = SHORE_ADAMW};
    return f;
}

static struct shore__forecast forecast(const struct shore__facts *f, uint64_t budget) {
    struct shore__forecast at;
    struct shore_diag diag = {0};
    if (shore__forecast(f, budget, &at, &diag)) fail_msg("%" PRIu64 ": %s", budget, diag.text);
    return at;
}

static void memory_by_class_adds_up_to_the_peak(void **state) {
    for (int i = 0; i < MODELS; i++) {
        struct shore__model *m = model(models[i]);
        struct shore__facts f = facts(m, 4, 512);
        const struct shore__forecast any = forecast(&f, 1);
        for (uint64_t b = 0; b <= BUDGETS; b++) {
            uint64_t sum = 0, budget = any.minimum_bytes + (any.comfortable_bytes - any.minimum_bytes) * b / BUDGETS;
            const struct shore__forecast at = forecast(&f, budget);
            for (int c = 0; c < SHORE__MEMORY_CLASSES; c++) {
                assert_in_range(at.memory_bytes[c], 0, at.peak_bytes);
                sum += at.memory_bytes[c];
            }
            assert_int_equal(sum, at.peak_bytes);
            assert_in_range(at.peak_bytes, 1, budget);
            assert_in_range(at.memory_bytes[SHORE__MEMORY_PARAMETERS], 1, at.peak_bytes);
            /* what a step leaves idle is a small part of it: whatever it needs is of some class */
            assert_in_range(at.memory_bytes[SHORE__MEMORY_IDLE], 0, at.peak_bytes / 4);
            assert_in_range(at.kept_bytes, 1, at.peak_bytes);
            if (b == BUDGETS) assert_int_equal(at.recomputed_bytes + at.offloaded_bytes, 0);
            if (b == 0) assert_in_range(at.recomputed_bytes + at.offloaded_bytes, 1, UINT64_MAX);
        }
        shore__model_free(m);
    }
}

static void a_budget_below_the_least_has_no_plan(void **state) {
    struct shore__model *m = model("gpt2-tiny");
    struct shore__facts f = facts(m, 4, 256);
    const struct shore__forecast least = forecast(&f, forecast(&f, 1).minimum_bytes);
    assert_int_equal(least.budget_bytes, least.minimum_bytes);
    assert_true(least.step_seconds > 0);
    const struct shore__forecast none = forecast(&f, least.minimum_bytes - 1);
    assert_int_equal(none.budget_bytes, 0);
    assert_int_equal(none.peak_bytes, 0);
    assert_int_equal(none.minimum_bytes, least.minimum_bytes);
    assert_int_equal(none.disk_bytes, least.disk_bytes);
    shore__model_free(m);
}

static void more_than_the_useful_budget_saves_nothing(void **state) {
    for (int i = 0; i < MODELS; i++) {
        struct shore__model *m = model(models[i]);
        struct shore__facts f = facts(m, 4, 512);
        const struct shore__forecast any = forecast(&f, 1);
        uint64_t useful;
        assert_int_equal(shore__forecast_useful(&f, &useful, NULL), 0);
        assert_in_range(useful, any.minimum_bytes, any.comfortable_bytes);
        double seconds = forecast(&f, useful).step_seconds;
        assert_true(seconds <= 1.01 * forecast(&f, any.comfortable_bytes).step_seconds);
        shore__model_free(m);
    }
}

/* What moves is whole pages, of activations and of a tied table's gradient: nothing that only stands for them counts.
 */
static void what_moves_is_counted_to_the_byte(void **state) {
    int move = 0;
    for (int i = 0; i < MODELS; i++) {
        struct shore__model *m = model(models[i]);
        struct shore__facts f = facts(m, 4, 512);
        const struct shore__forecast any = forecast(&f, 1);
        for (uint64_t b = 0; b <= BUDGETS; b++) {
            uint64_t budget = any.minimum_bytes + (any.comfortable_bytes - any.minimum_bytes) * b / BUDGETS;
            const struct shore__moved_bytes moved = forecast(&f, budget).moved[SHORE__MOVED_ACTIVATIONS];
            move += moved.written > 0;
            assert_int_equal(moved.written % 4096, 0);
            assert_int_equal(moved.read % 4096, 0);
        }
        shore__model_free(m);
    }
    assert_true(move);
}

/* Drives get shares that they update in the same time, so the faster one writes more. */
static void drives_write_by_their_speed(void **state) {
    static const char text[] = "{\"drives\": [{\"read\": 3e9, \"write\": 3e9}, {\"read\": 1e9, \"write\": 1e9}]}";
    struct shore__model *m = model("gpt2-124m");
    struct shore__facts f = facts(m, 1, 512);
    struct shore_machine *machine;
    struct shore_diag diag = {0};
    if (shore_machine_parse(text, sizeof text - 1, "test", &machine, &diag)) fail_msg("%s", diag.text);
    f.machine = machine;
    struct shore__forecast at;
    assert_int_equal(shore__forecast(&f, UINT64_C(2) << 30, &at, &diag), 0);
    assert_in_range(at.drive_write_most_bytes, at.drive_write_bytes * 74 / 100, at.drive_write_bytes * 76 / 100);
    f.drives.drive_speeds = "1,1"; /* whoever gives speeds is believed */
    assert_int_equal(shore__forecast(&f, UINT64_C(2) << 30, &at, &diag), 0);
    assert_in_range(at.drive_write_most_bytes, at.drive_write_bytes * 49 / 100, at.drive_write_bytes * 51 / 100);
    shore_machine_free(machine);
    shore__model_free(m);
}

/* A drive that is slower with the least buffers: they are counted where memory leaves no more, and above that the plan
 * gives up something else for them. */
static void the_least_buffers_of_drives_take_their_time(void **state) {
    static const char json[] =
        "{\"drives\": [{\"mixed\": 1000000000%s}], \"compute\": {\"products\": {\"fp32\": 1e15}}}";
    struct shore__model *m = model("gpt2-small");
    struct shore__facts f = facts(m, 1, 64);
    const char *with[] = {"", ", \"mixed-least\": 250000000"};
    struct shore__forecast least[2], more[2];
    for (int i = 0; i < 2; i++) {
        struct shore_machine *machine;
        char text[256];
        int n = snprintf(text, sizeof text, json, with[i]);
        assert_int_equal(shore_machine_parse(text, (size_t)n, "test", &machine, NULL), 0);
        f.machine = machine;
        least[i] = forecast(&f, 1);
        const uint64_t minimum = least[i].minimum_bytes;
        least[i] = forecast(&f, minimum);
        assert_int_equal(least[i].minimum_bytes, minimum);
        more[i] = forecast(&f, minimum + (UINT64_C(40) << 20));
        assert_true(more[i].step_seconds > 0);
        shore_machine_free(machine);
    }
    assert_int_equal(least[0].minimum_bytes, least[1].minimum_bytes);
    assert_int_equal(least[0].comfortable_bytes, least[1].comfortable_bytes);
    assert_true(least[1].step_seconds > 2 * least[0].step_seconds);
    assert_true(more[1].step_seconds < 1.2 * more[0].step_seconds);
    assert_int_equal(least[0].drive_read_bytes, least[1].drive_read_bytes);
    shore__model_free(m);
}

/* Products of a narrow layer have the rate of fewer rows: those with which the layer that was measured does as much. */
static void narrow_layers_compute_as_slowly_as_fewer_rows(void **state) {
    static const char *const rates[] = {"[[64, 1e11], [1024, 4e11]]", "4e11"};
    static const char *const of[] = {"gpt2-tiny", "gpt2-124m"};
    double slower[2];
    for (int i = 0; i < 2; i++) {
        struct shore__model *m = model(of[i]);
        struct shore__facts f = facts(m, 4, 1024);
        double seconds[2];
        for (int r = 0; r < 2; r++) {
            struct shore_machine *machine;
            char text[256];
            int n =
                snprintf(text, sizeof text, "{\"compute\": {\"products\": {\"product\": {\"fp32\": %s}}}}", rates[r]);
            assert_int_equal(shore_machine_parse(text, (size_t)n, "test", &machine, NULL), 0);
            f.machine = machine;
            seconds[r] = forecast(&f, UINT64_C(8) << 30).lane_seconds[SHORE_LANE_COMPUTE];
            shore_machine_free(machine);
        }
        slower[i] = seconds[0] / seconds[1];
        shore__model_free(m);
    }
    assert_true(slower[0] > 1.5 && slower[1] < 1.05);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_by_class_adds_up_to_the_peak),
        cmocka_unit_test(a_budget_below_the_least_has_no_plan),
        cmocka_unit_test(more_than_the_useful_budget_saves_nothing),
        cmocka_unit_test(what_moves_is_counted_to_the_byte),
        cmocka_unit_test(drives_write_by_their_speed),
        cmocka_unit_test(the_least_buffers_of_drives_take_their_time),
        cmocka_unit_test(narrow_layers_compute_as_slowly_as_fewer_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
