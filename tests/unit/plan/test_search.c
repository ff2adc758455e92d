/* The search, on random programs and machines: no policy makes a shorter step, no budget is exceeded, and the same
 * program has the same plan. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "machine/machine.h"
#include "plan/plan.h"
#include "seed.h"

enum { CASES = 2000, PAGE = 4096 };
enum { PARAMETERS = 1, LEFT, BOUNDARIES, PIECES }; /* groups, and keys of what moves; of buffers: 10 more */

static uint64_t seed;

struct drawing {
    uint64_t stream, draw;
};
static uint32_t pick(struct drawing *d, uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, d->stream, d->draw++) % (last - first + 1));
}

static struct shore_tensor tensor(uint32_t key, uint32_t index, unsigned ways, uint64_t bytes) {
    return (struct shore_tensor){.size = sizeof(struct shore_tensor),
                                 .name = "tensor",
                                 .key = key,
                                 .index = index,
                                 .ways = ways,
                                 .group = ways & SHORE_WAY_MOVE ? key : 0,
                                 .bytes = bytes};
}

static void add_buffers(struct shore_program *p, uint32_t group, uint32_t least, uint32_t most) {
    struct shore_tensor t = tensor(group + 10, 0, 0, 0);
    t.buffers = true;
    t.group = group;
    t.least = least;
    t.most = most;
    shore_program_tensor(p, &t);
}

static void add_layer(struct shore_program *p, struct drawing *d, uint32_t n, uint32_t l, uint32_t units) {
    uint32_t forward = l, backward = 2 * n - 1 - l;
    struct shore_tensor t = tensor(PARAMETERS, l, SHORE_WAY_KEEP | SHORE_WAY_MOVE, pick(d, 1, 64) * PAGE);
    uint32_t id = shore_program_tensor(p, &t);
    shore_program_reads(p, forward, id);
    shore_program_reads(p, backward, id);
    shore_program_changes(p, backward, id);
    t = tensor(PIECES, l, SHORE_WAY_MOVE, 2 * t.bytes);
    shore_program_makes(p, backward, shore_program_tensor(p, &t));
    t = tensor(BOUNDARIES, l, SHORE_WAY_KEEP | SHORE_WAY_MOVE, pick(d, 1, 16) * PAGE);
    id = shore_program_tensor(p, &t);
    shore_program_makes(p, forward, id);
    shore_program_reads(p, backward, id);
    shore_program_frees(p, backward, id);
    t = tensor(LEFT, l, SHORE_WAY_KEEP | SHORE_WAY_AGAIN | SHORE_WAY_MOVE, pick(d, 1, 64) * PAGE);
    t.full_bytes = t.bytes + pick(d, 0, 1) * 8 * PAGE;
    t.again = 1 + forward;
    t.again_parts = units;
    for (uint32_t u = 0; u < units; u++) {
        id = shore_program_tensor(p, &t);
        shore_program_makes(p, forward, id);
        shore_program_reads(p, backward, id);
        shore_program_frees(p, backward, id);
    }
}

static struct shore_program *random_program(struct drawing *d) {
    struct shore_program *p = shore_program_new();
    uint32_t n = pick(d, 1, 12), units = pick(d, 1, 3);
    assert_non_null(p);
    for (uint32_t o = 0; o < 2 * n; o++) {
        struct shore_computing c = {
            .size = sizeof c, .kind = SHORE_WORK_PRODUCT, .work = pick(d, 0, 1000) * 1000000ull};
        struct shore_computing rows = {
            .size = sizeof rows, .kind = SHORE_WORK_ROWS, .work = pick(d, 0, 1000) * 1000ull};
        shore_program_operation(p, o < n ? "forward" : "backward");
        shore_program_computes(p, o, &c);
        shore_program_computes(p, o, &rows);
        if (o < n) continue;
        uint64_t state = pick(d, 1, 200) * PAGE;
        shore_program_costs(p, o, SHORE_LANE_DRIVE_READ, 0, state);
        shore_program_costs(p, o, SHORE_LANE_DRIVE_UPDATE, 0, state / 16);
        shore_program_costs(p, o, SHORE_LANE_DRIVE_WRITE, 0, state);
    }
    for (uint32_t l = 0; l < n; l++)
        add_layer(p, d, n, l, units);
    add_buffers(p, PARAMETERS, 1, pick(d, 1, 4));
    add_buffers(p, PIECES, 1, pick(d, 1, n));
    add_buffers(p, BOUNDARIES, 2, 2);
    add_buffers(p, LEFT, 1, pick(d, 1, 3));
    struct shore_tensor waiting = tensor(30, 0, 0, 0);
    waiting.full_bytes = pick(d, 0, 50) * PAGE;
    waiting.saves_lane = SHORE_LANE_DRIVE_MIXED;
    waiting.saves = pick(d, 0, 2);
    shore_program_tensor(p, &waiting);
    return p;
}

static struct shore_machine random_machine(struct drawing *d) {
    struct shore_machine m = *shore__machine_assumed();
    m.rate[SHORE_WORK_PRODUCT][SHORE_PRECISION_FP32].at[0].per_second = 1e9 * pick(d, 1, 100) * pick(d, 1, 100);
    m.drive[0] = (struct shore__machine_drive){.host_computes = pick(d, 0, 1)};
    m.drive[0].read = 1e6 * pick(d, 1, 100) * pick(d, 1, 100);
    m.drive[0].write = 1e6 * pick(d, 1, 100) * pick(d, 1, 100);
    m.drive[0].mixed = pick(d, 0, 1) ? 1e6 * pick(d, 1, 100) * pick(d, 1, 100) : 0;
    return m;
}

static struct shore_plan *plan_with(const struct shore_program *program, const struct shore_plan_options *options,
                                    struct shore_plan_times *times) {
    struct shore_plan *plan;
    struct shore_diag diag = {0};
    if (shore_plan_open(program, options, &plan, &diag)) fail_msg("SEED=%" PRIu64 ": %s", seed, diag.text);
    *times = (struct shore_plan_times){.size = sizeof *times};
    assert_int_equal(shore_plan_times(plan, times), 0);
    assert_true(plan->total.of[SHORE__SHARED] <= options->memory_bytes);
    return plan;
}

/* Returns the seconds of the plan, and of the best policy. */
static double planned(const struct shore_program *program, struct shore_plan_options *options, double *best) {
    struct shore_plan_times times, again;
    struct shore_plan *plan = plan_with(program, options, &times), *other = plan_with(program, options, &again);
    assert_memory_equal(&times, &again, sizeof times);
    assert_memory_equal(plan->fate, other->fate, program->ntensors * sizeof *plan->fate);
    double begin, end, last = 0;
    for (uint32_t o = 0; o < program->nops; o++, last = end) {
        assert_int_equal(shore_plan_operation(plan, o, &begin, &end), 0);
        assert_true(begin >= last && end >= begin && end <= times.step_seconds * (1 + 1e-9));
    }
    assert_int_equal(shore_plan_operation(plan, program->nops, &begin, &end), -EINVAL);
    shore_plan_close(other);
    shore_plan_close(plan);
    *best = INFINITY;
    for (options->policy = SHORE_POLICY_KEEP; options->policy < SHORE_POLICIES; options->policy++) {
        shore_plan_close(plan_with(program, options, &again));
        *best = fmin(*best, again.step_seconds);
    }
    options->policy = SHORE_POLICY_PLANNED;
    return times.step_seconds;
}

static void no_policy_makes_a_shorter_step(void **state) {
    uint64_t shorter = 0;
    for (uint64_t i = 0; i < CASES; i++) {
        struct drawing d = {.stream = i};
        struct shore_program *program = random_program(&d);
        struct shore_machine machine = random_machine(&d);
        struct shore_plan_options options = {
            .size = sizeof options, .memory_bytes = UINT64_MAX, .one_memory = true, .machine = &machine};
        struct shore_plan_times times;
        struct shore_plan *plan = plan_with(program, &options, &times);
        uint64_t least = plan->minimum.of[SHORE__SHARED], most = plan->comfortable.of[SHORE__SHARED];
        shore_plan_close(plan);
        double best, found;
        options.memory_bytes = least + (uint64_t)((double)(most - least) * pick(&d, 0, 1000) / 1000);
        found = planned(program, &options, &best);
        if (found > best * (1 + 1e-9))
            fail_msg("SEED=%" PRIu64 " case %" PRIu64 ": %g s, not %g s", seed, i, found, best);
        shorter += found < best * 0.999;
        shore_program_free(program);
    }
    print_message("%" PRIu64 " of %d are shorter than any policy's\n", shorter, CASES);
    assert_in_range(shorter, CASES / 4, CASES);
}

/* Drives that may not write much: activations stay, or are computed again, where they would move. */
static void writes_are_a_cost_and_a_limit(void **state) {
    struct shore_program *p = shore_program_new();
    struct shore_machine machine = *shore__machine_assumed();
    enum { LAYERS = 4 };
    machine.drive[0] = (struct shore__machine_drive){.read = 1e9, .write = 1e9};
    for (uint32_t o = 0; o < 2 * LAYERS; o++) {
        struct shore_computing c = {.size = sizeof c, .seconds = 1};
        shore_program_operation(p, "operation");
        shore_program_computes(p, o, &c);
    }
    shore_program_costs(p, 2 * LAYERS - 1, SHORE_LANE_DRIVE_WRITE, 0, 1000);
    for (uint32_t l = 0; l < LAYERS; l++) {
        struct shore_tensor t = tensor(LEFT, l, SHORE_WAY_AGAIN | SHORE_WAY_MOVE, PAGE);
        t.again = 1 + l;
        uint32_t id = shore_program_tensor(p, &t);
        shore_program_makes(p, l, id);
        shore_program_reads(p, 2 * LAYERS - 1 - l, id);
    }
    add_buffers(p, LEFT, 2, 2);
    struct shore_plan_options options = {.size = sizeof options, .memory_bytes = 2 * PAGE, .machine = &machine};
    struct shore_plan_times times;
    struct shore_diag diag = {0};
    struct shore_plan *plan;
    options.one_memory = true;
    shore_plan_close(plan_with(p, &options, &times));
    assert_int_equal(times.drive_write_bytes, 1000 + LAYERS * PAGE);
    assert_true(times.step_seconds < 2 * LAYERS + 0.1);
    options.written_bytes_per_day_most = 86400 * 100; /* 1,000 bytes in 10 seconds */
    shore_plan_close(plan_with(p, &options, &times));
    assert_int_equal(times.drive_write_bytes, 1000);
    assert_int_equal(times.bound, SHORE_LANE_COMPUTE);
    options.written_bytes_per_day_most = 86400 * 50; /* in 20 */
    shore_plan_close(plan_with(p, &options, &times));
    assert_true(times.step_seconds == 20 && times.bound == SHORE_LANES);
    options.written_bytes_per_day_most = 999;
    assert_int_equal(shore_plan_open(p, &options, &plan, &diag), SHORE_EBUDGET);
    shore_plan_close(plan);
    if (!strstr(diag.text, "a step alone writes 1.00 KiB")) fail_msg("%s", diag.text);
    assert_non_null(strstr(diag.text, "8-bit moments"));
    shore_program_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_policy_makes_a_shorter_step),
        cmocka_unit_test(writes_are_a_cost_and_a_limit),
    };
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
