/* Budgets of places: each holds, one that is short is named with its minimum, and with that minimum the plan is made.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "base/units.h"
#include "longshore/plan.h"
#include "seed.h"

enum { CASES = 400, BUDGETS = 4, PAGE = 4096 };

static const char *const memory[] = {"device memory", "pinned memory", "host memory", "memory"};

static uint64_t seed, tried[BUDGETS];

struct drawing {
    uint64_t stream, draw;
};
static uint32_t pick(struct drawing *d, uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, d->stream, d->draw++) % (last - first + 1));
}

static enum shore_place any_place(struct drawing *d) {
    return (enum shore_place)pick(d, SHORE_PLACE_DEVICE, SHORE_PLACE_BOTH);
}

static void add_layers(struct shore_program *program, struct drawing *d, uint32_t operations) {
    struct shore_tensor buffers = {.size = sizeof buffers, .name = "buffers", .key = 1, .buffers = true};
    buffers.group = buffers.least = 1;
    buffers.most = pick(d, 1, 3);
    buffers.place = any_place(d);
    buffers.own = pick(d, 0, 1);
    for (uint32_t n = pick(d, 1, 5), i = 0; i < n; i++) {
        struct shore_tensor t = {.size = sizeof t, .name = "parameters", .key = 2, .index = i, .group = 1};
        t.place = any_place(d);
        t.ways = SHORE_WAY_KEEP | SHORE_WAY_MOVE;
        t.bytes = pick(d, 1, 9 * PAGE);
        uint32_t id = shore_program_tensor(program, &t);
        shore_program_reads(program, pick(d, 0, operations - 1), id);
    }
    shore_program_tensor(program, &buffers);
}

static void add_any(struct shore_program *program, struct drawing *d, uint32_t operations, uint32_t index) {
    enum { FIXED, AMOUNT, LEFT, KINDS };
    struct shore_tensor t = {.size = sizeof t, .name = "any", .key = 3, .index = index};
    uint32_t kind = pick(d, 0, KINDS - 1);
    t.place = any_place(d);
    t.own = pick(d, 0, 1);
    t.bytes = pick(d, 0, 9 * PAGE);
    if (kind == LEFT) t.ways = SHORE_WAY_KEEP | SHORE_WAY_AGAIN | (pick(d, 0, 1) ? SHORE_WAY_HOST : 0);
    if (kind != FIXED) t.full_bytes = t.bytes + pick(d, 0, 9 * PAGE);
    t.whole = kind == AMOUNT && pick(d, 0, 1);
    t.saves = kind == AMOUNT ? pick(d, 0, 2) : 0;
    t.saves_lane = SHORE_LANE_DRIVE_READ;
    t.again = pick(d, 0, operations);
    uint32_t id = shore_program_tensor(program, &t), from = pick(d, 0, operations - 1);
    if (pick(d, 0, 1)) return;
    shore_program_makes(program, from, id);
    shore_program_frees(program, pick(d, from, operations - 1), id);
}

static struct shore_program *random_program(struct drawing *d) {
    struct shore_program *program = shore_program_new();
    uint32_t operations = pick(d, 1, 8);
    assert_non_null(program);
    for (uint32_t i = 0; i < operations; i++)
        shore_program_operation(program, "operation");
    add_layers(program, d, operations);
    for (uint32_t n = pick(d, 3, 12), i = 0; i < n; i++)
        add_any(program, d, operations, i);
    return program;
}

static int plan_with(const struct shore_program *program, const uint64_t *budget, struct shore_plan_sums *sums,
                     struct shore_diag *diag) {
    struct shore_plan *plan;
    struct shore_plan_options options = {.size = sizeof options, .memory_bytes = budget[SHORE_PLACES]};
    memcpy(options.place_bytes, budget, sizeof options.place_bytes);
    int rc = shore_plan_open(program, &options, &plan, diag);
    if (!plan) fail_msg("SEED=%" PRIu64 ": %s", seed, diag->text);
    *sums = (struct shore_plan_sums){.size = sizeof *sums};
    shore_plan_sums(plan, sums);
    shore_plan_close(plan);
    return rc;
}

/* What the plan takes of the budget, or takes at least. */
static uint64_t of_budget(const struct shore_plan_sums *s, int b, bool least) {
    if (b == SHORE_PLACES) return least ? s->minimum_bytes : s->total_bytes;
    return least ? s->place_minimum_bytes[b] : s->place_total_bytes[b];
}

static void check_within(const struct shore_program *program, const uint64_t *budget) {
    struct shore_plan_sums s;
    struct shore_diag diag = {0};
    uint64_t shared = 0;
    if (plan_with(program, budget, &s, &diag)) fail_msg("SEED=%" PRIu64 ": %s", seed, diag.text);
    assert_int_equal(s.too_little, 0);
    for (int b = 0; b < SHORE_PLACES; b++) {
        if (budget[b])
            assert_in_range(s.place_total_bytes[b], 0, budget[b]);
        else
            shared += s.place_total_bytes[b];
    }
    assert_int_equal(s.total_bytes, shared);
    assert_in_range(shared, 0, budget[SHORE_PLACES]);
}

/* Every other budget is ample. */
static void check_short(const struct shore_program *program, int b, const uint64_t *own) {
    struct shore_plan_sums s;
    struct shore_diag diag = {0};
    char want[96];
    uint64_t budget[BUDGETS];
    for (int k = 0; k < BUDGETS; k++)
        budget[k] = own[k] ? UINT64_MAX : 0;
    assert_int_equal(plan_with(program, budget, &s, &diag), 0);
    uint64_t minimum = of_budget(&s, b, true);
    if (minimum < 2) return; /* 0 is no budget of its own */
    budget[b] = minimum - 1;
    assert_int_equal(plan_with(program, budget, &s, &diag), SHORE_EBUDGET);
    assert_int_equal(s.too_little, 1u << b);
    assert_int_equal(of_budget(&s, b, true), minimum);
    snprintf(want, sizeof want, "%s is too little for this program: minimum %s", memory[b],
             shore__format_size_up(minimum).text);
    if (!strstr(diag.text, want)) fail_msg("SEED=%" PRIu64 ": '%s' is not '%s'", seed, diag.text, want);
    budget[b] = minimum;
    check_within(program, budget);
    tried[b]++;
}

static void each_budget_holds_and_has_a_least(void **state) {
    for (uint64_t i = 0; i < CASES; i++) {
        struct drawing d = {.stream = i};
        struct shore_program *program = random_program(&d);
        uint64_t own[BUDGETS] = {pick(&d, 0, 1), pick(&d, 0, 1), pick(&d, 0, 1), 1}, budget[BUDGETS];
        struct shore_plan_sums s;
        struct shore_diag diag = {0};
        for (int b = 0; b < BUDGETS; b++)
            if (own[b]) check_short(program, b, own);
        for (int b = 0; b < BUDGETS; b++)
            budget[b] = own[b] ? UINT64_MAX : 0;
        assert_int_equal(plan_with(program, budget, &s, &diag), 0);
        for (int b = 0; b < BUDGETS; b++) {
            uint64_t least = of_budget(&s, b, true), most = of_budget(&s, b, false);
            if (own[b]) budget[b] = least + (most > least ? pick(&d, 0, (uint32_t)(most - least)) : 0);
        }
        check_within(program, budget);
        shore_program_free(program);
    }
    for (int b = 0; b < BUDGETS; b++)
        assert_in_range(tried[b], CASES / 8, CASES);
}

static void all_that_are_short_are_named(void **state) {
    struct shore_program *program = shore_program_new();
    struct shore_plan_sums s;
    struct shore_diag diag = {0};
    for (int k = 0; k < SHORE_PLACES; k++) {
        struct shore_tensor t = {.size = sizeof t, .name = memory[k], .key = (uint32_t)k, .place = (enum shore_place)k};
        t.bytes = (uint64_t)(k + 1) << 20;
        shore_program_tensor(program, &t);
    }
    const uint64_t budget[] = {512 << 10, 1 << 20, 0, 3 << 20};
    assert_int_equal(plan_with(program, budget, &s, &diag), SHORE_EBUDGET);
    assert_string_equal(diag.text, "1.00 MiB of pinned memory is too little for this program: minimum 2.00 MiB; "
                                   "512.00 KiB of device memory is too little for this program: minimum 1.00 MiB");
    assert_int_equal(s.too_little, 1u << SHORE_PLACE_DEVICE | 1u << SHORE_PLACE_PINNED);
    shore_program_free(program);
}

static void one_memory_has_one_budget(void **state) {
    struct shore_program *program = shore_program_new();
    struct shore_plan *plan;
    struct shore_diag diag = {0};
    struct shore_plan_options options = {.size = sizeof options, .memory_bytes = PAGE, .one_memory = true};
    options.place_bytes[SHORE_PLACE_PINNED] = PAGE;
    assert_int_equal(shore_plan_open(program, &options, &plan, &diag), -EINVAL);
    assert_null(plan);
    assert_non_null(strstr(diag.text, "give all of it as memory_bytes"));
    shore_program_free(program);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_budget_holds_and_has_a_least),
        cmocka_unit_test(all_that_are_short_are_named),
        cmocka_unit_test(one_memory_has_one_budget),
    };
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
