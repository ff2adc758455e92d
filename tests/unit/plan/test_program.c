/* Programs that nobody's model is: what a budget keeps of three blocks, and what is said of one that cannot be. */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "longshore/plan.h"

enum { BLOCKS = 3, PAGE = 4096, FORWARD = 0, BACKWARD = BLOCKS, OPERATIONS = 2 * BLOCKS };
#define MANY 1000

/* Blocks of parameters that share one or two buffers, and what each leaves for backward. */
struct made {
    struct shore_program *program;
    uint32_t parameters, buffers, left;
};

static struct shore_tensor tensor(const char *name, uint32_t key, uint32_t index, uint64_t bytes) {
    return (struct shore_tensor){
        .size = sizeof(struct shore_tensor), .name = name, .key = key, .index = index, .bytes = bytes};
}

static struct made three_blocks(void) {
    struct made m = {.program = shore_program_new()};
    assert_non_null(m.program);
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        uint32_t op = shore_program_operation(m.program, i < BACKWARD ? "forward" : "backward");
        struct shore_computing c = {.size = sizeof c, .work = 1000 * PAGE};
        shore_program_computes(m.program, op, &c);
        shore_program_costs(m.program, op, SHORE_LANE_DRIVE_READ, i % 2, PAGE);
    }
    for (uint32_t b = 0; b < BLOCKS; b++) {
        struct shore_tensor t = tensor("parameters", MANY, b, 4 * PAGE);
        t.ways = SHORE_WAY_KEEP | SHORE_WAY_MOVE;
        t.group = 1;
        uint32_t id = shore_program_tensor(m.program, &t);
        shore_program_reads(m.program, FORWARD + b, id);
        shore_program_reads(m.program, OPERATIONS - 1 - b, id);
        if (b == 0) m.parameters = id;
    }
    struct shore_tensor buffers = tensor("buffer", MANY + 1, 0, 0);
    buffers.buffers = true;
    buffers.group = 1;
    buffers.least = 1;
    buffers.most = 2;
    m.buffers = shore_program_tensor(m.program, &buffers);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        struct shore_tensor t = tensor("left", MANY + 2, b, 2 * PAGE);
        t.ways = SHORE_WAY_KEEP | SHORE_WAY_AGAIN;
        t.again = 1 + FORWARD + b;
        uint32_t id = shore_program_tensor(m.program, &t);
        shore_program_makes(m.program, FORWARD + b, id);
        shore_program_frees(m.program, OPERATIONS - 1 - b, id);
        if (b == 0) m.left = id;
    }
    return m;
}

static int plan_with(const struct shore_program *program, uint64_t budget, struct shore_plan **plan,
                     struct shore_diag *diag) {
    struct shore_plan_options options = {
        .size = sizeof options, .memory_bytes = budget, .what = "three blocks", .one_memory = true};
    return shore_plan_open(program, &options, plan, diag);
}

static struct shore_fate fate_of(const struct shore_plan *plan, uint32_t tensor_id) {
    struct shore_fate fate = {.size = sizeof fate};
    assert_int_equal(shore_plan_tensor(plan, tensor_id, &fate), 0);
    return fate;
}

/* The least is a buffer; all is what each takes; between them, no row lies in another that is in use with it. */
static void what_a_budget_keeps(void **state) {
    struct made m = three_blocks();
    struct shore_diag diag = {0};
    struct shore_plan *plan;
    struct shore_plan_sums sums = {.size = sizeof sums};
    assert_int_equal(plan_with(m.program, 0, &plan, &diag), SHORE_EBUDGET);
    assert_non_null(strstr(diag.text, "three blocks: minimum 16.00 KiB"));
    shore_plan_sums(plan, &sums);
    assert_int_equal(sums.minimum_bytes, 4 * PAGE);
    assert_int_equal(sums.comfortable_bytes, BLOCKS * 6 * PAGE);
    shore_plan_close(plan);
    for (uint64_t budget = sums.minimum_bytes; budget <= sums.comfortable_bytes; budget += PAGE) {
        assert_int_equal(plan_with(m.program, budget, &plan, &diag), 0);
        shore_plan_sums(plan, &sums);
        assert_in_range(sums.total_bytes, sums.minimum_bytes, budget);
        assert_int_equal(sums.placed_bytes, sums.total_bytes);
        for (uint32_t a = 0; a < BLOCKS; a++)
            for (uint32_t b = 0; b < BLOCKS; b++) {
                struct shore_fate stays = fate_of(plan, m.parameters + a), left = fate_of(plan, m.left + b);
                if (stays.way != SHORE_WAY_KEEP || left.way != SHORE_WAY_KEEP) continue;
                assert_true(stays.offset + stays.bytes <= left.offset || left.offset + left.bytes <= stays.offset);
            }
        struct shore_fate buffers = fate_of(plan, m.buffers);
        uint64_t at, before = UINT64_MAX;
        for (uint64_t i = 0; i < buffers.count; i++, before = at) {
            assert_int_equal(shore_plan_buffer(plan, m.buffers, i, &at), 0);
            assert_true(at + buffers.bytes <= sums.placed_bytes);
            assert_true(before == UINT64_MAX || before + buffers.bytes <= at || at + buffers.bytes <= before);
        }
        assert_int_equal(shore_plan_buffer(plan, m.buffers, buffers.count, &at), -EINVAL);
        assert_int_equal(shore_plan_buffer(plan, m.left, 0, &at), -EINVAL);
        shore_plan_close(plan);
    }
    assert_int_equal(plan_with(m.program, sums.comfortable_bytes, &plan, &diag), 0);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_int_equal(fate_of(plan, m.parameters + b).way, SHORE_WAY_KEEP);
        assert_int_equal(fate_of(plan, m.left + b).way, SHORE_WAY_KEEP);
        assert_int_equal(fate_of(plan, m.left + b).first, FORWARD + b);
    }
    struct shore_fate none = {.size = sizeof none};
    assert_int_equal(shore_plan_tensor(plan, 1000, &none), -EINVAL);
    shore_plan_close(plan);
    shore_program_free(m.program);
}

static void refused(const struct shore_program *program, const char *said) {
    struct shore_plan *plan;
    struct shore_diag diag = {0};
    assert_int_equal(plan_with(program, UINT64_MAX, &plan, &diag), -EINVAL);
    assert_null(plan);
    if (!strstr(diag.text, said)) fail_msg("'%s' does not say '%s'", diag.text, said);
}

static void a_cycle_is_refused(void **state) {
    struct made m = three_blocks();
    struct shore_tensor t = tensor("product", MANY + 3, 0, PAGE);
    uint32_t first = shore_program_tensor(m.program, &t);
    t.index = 1;
    uint32_t second = shore_program_tensor(m.program, &t);
    shore_program_makes(m.program, 0, first);
    shore_program_makes(m.program, 1, second);
    shore_program_reads(m.program, 0, second);
    shore_program_reads(m.program, 1, first);
    refused(m.program,
            "forward (operation 0) reads product 1 of forward (operation 1), which needs what it makes itself: "
            "a cycle");
    shore_program_free(m.program);
}

static void what_is_read_too_early_or_too_late_is_refused(void **state) {
    struct made m = three_blocks();
    shore_program_reads(m.program, FORWARD, m.left + 1);
    refused(m.program, "forward (operation 0) reads left 1 before forward (operation 1) makes it");
    shore_program_free(m.program);
    m = three_blocks();
    shore_program_reads(m.program, OPERATIONS - 1, m.left + 1);
    refused(m.program, "backward (operation 5) reads left 1 after it was freed");
    shore_program_free(m.program);
    m = three_blocks();
    shore_program_makes(m.program, 2, m.left);
    refused(m.program, "forward (operation 2) makes left 0 a second time");
    shore_program_free(m.program);
    m = three_blocks();
    shore_program_reads(m.program, OPERATIONS, m.left);
    refused(m.program, "no operation 6");
    shore_program_free(m.program);
    m = three_blocks();
    shore_program_costs(m.program, OPERATIONS, SHORE_LANE_COMMIT, 0, 1);
    refused(m.program, "no operation 6 with work behind it in lane");
    shore_program_free(m.program);
}

static void a_size_that_overflows_is_refused(void **state) {
    struct made m = three_blocks();
    struct shore_tensor t = tensor("table", MANY + 3, 0, UINT64_MAX - 5);
    shore_program_tensor(m.program, &t);
    refused(m.program, "table 0: its size of 18446744073709551610 bytes has overflowed");
    shore_program_free(m.program);
    m = three_blocks();
    t.bytes = UINT64_C(1) << 55; /* fewer of them than a number has bits */
    for (t.index = 0; t.index < 4; t.index++)
        shore_program_tensor(m.program, &t);
    refused(m.program, "has overflowed");
    shore_program_free(m.program);
}

static void computing_that_cannot_be_is_refused(void **state) {
    const struct shore_computing good = {.size = sizeof good, .kind = SHORE_WORK_ROWS, .work = 1};
    struct shore_computing bad[] = {good, good, good};
    bad[0].kind = SHORE_WORKS;
    bad[1].precision = SHORE_PRECISIONS;
    bad[2].seconds = -1;
    for (size_t i = 0; i < 4; i++) {
        struct shore_program *program = shore_program_new();
        uint32_t op = shore_program_operation(program, "forward");
        shore_program_computes(program, op, &good);
        shore_program_computes(program, i < 3 ? op : op + 1, i < 3 ? &bad[i] : &good);
        refused(program, "a program of 1 operations has no operation");
        shore_program_free(program);
    }
    struct shore_program *program = shore_program_new();
    shore_program_changes(program, shore_program_operation(program, "backward"), 0);
    refused(program, "and 0 tensors has no operation 0 that could use tensor 0");
    shore_program_free(program);
}

static void members_that_cannot_be_are_refused(void **state) {
    static const char unknown[] = "has no name, or an unknown way, place or lane";
    const struct {
        struct shore_tensor tensor;
        const char *said;
    } wrong[] = {
        {{.place = SHORE_PLACES + 1}, unknown},
        {{.ways = 2 * SHORE_WAY_HOST}, unknown},
        {{.saves_lane = SHORE_LANES}, unknown},
        {{.again = OPERATIONS + 1}, "its computing is that of an operation that the program lacks"},
        {{.with = MANY}, "goes with a tensor that the program does not have"},
        {{.buffers = true, .ways = SHORE_WAY_KEEP}, "buffers have no ways"},
        {{.place = SHORE_PLACE_BOTH, .margin = 1}, "what needs a margin lies in one place"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct made m = three_blocks();
        struct shore_tensor t = wrong[i].tensor;
        t.size = sizeof t;
        t.name = "table";
        t.key = MANY + 3;
        shore_program_tensor(m.program, &t);
        refused(m.program, wrong[i].said);
        shore_program_free(m.program);
    }
}

/* What forward leaves moves, where there is no room for it and it may. */
static void what_is_left_may_move(void **state) {
    struct shore_program *program = shore_program_new();
    struct shore_plan *plan;
    struct shore_diag diag = {0};
    for (uint32_t o = 0; o < 2; o++) { /* computing takes much longer than moving */
        struct shore_computing c = {.size = sizeof c, .seconds = 1};
        shore_program_computes(program, shore_program_operation(program, o ? "backward" : "forward"), &c);
    }
    for (uint32_t i = 0; i < 4; i++) {
        struct shore_tensor t = tensor("left", MANY, i, PAGE);
        t.ways = SHORE_WAY_KEEP | SHORE_WAY_AGAIN | (i == 3 ? 0 : SHORE_WAY_MOVE);
        t.group = 1;
        t.again = 1;
        uint32_t id = shore_program_tensor(program, &t);
        shore_program_makes(program, 0, id);
        shore_program_reads(program, 1, id);
    }
    struct shore_tensor buffers = tensor("buffer", MANY + 1, 0, 0);
    buffers.buffers = true;
    buffers.group = buffers.least = buffers.most = 1;
    shore_program_tensor(program, &buffers);
    assert_int_equal(plan_with(program, 2 * PAGE, &plan, &diag), 0);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(fate_of(plan, i).way, SHORE_WAY_MOVE);
    assert_int_equal(fate_of(plan, 3).way, SHORE_WAY_KEEP); /* which would have to be computed again */
    shore_plan_close(plan);
    shore_program_free(program);
}

static void a_program_of_nothing_has_a_plan(void **state) {
    struct shore_program *program = shore_program_new();
    struct shore_plan *plan;
    struct shore_diag diag = {0};
    assert_int_equal(plan_with(program, 0, &plan, &diag), 0);
    shore_plan_close(plan);
    shore_program_free(program);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_budget_keeps),
        cmocka_unit_test(a_cycle_is_refused),
        cmocka_unit_test(what_is_read_too_early_or_too_late_is_refused),
        cmocka_unit_test(a_size_that_overflows_is_refused),
        cmocka_unit_test(computing_that_cannot_be_is_refused),
        cmocka_unit_test(members_that_cannot_be_are_refused),
        cmocka_unit_test(what_is_left_may_move),
        cmocka_unit_test(a_program_of_nothing_has_a_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
