/* Functions that this program adds: with links that are lost and functions that hang, and what is counted, recorded and
 * held back meanwhile. */
#include "conformance/drive_functions.h"

#include "fast_clock.h"

/* ---- lost links -------------------------------------------------------------------------------------------------- */

static void make_its_file(struct called *t) {
    snprintf(t->argument.dies_once, sizeof t->argument.dies_once, "%s/dies", t->b.place.directory);
    FILE *f = fopen(t->argument.dies_once, "w");
    assert_non_null(f);
    fclose(f);
}

/* The server ends in the middle of a call, or when it has done it and has not answered. */
static void a_lost_call_is_not_done_twice(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        uint64_t sum;
        if (!strchr("us", kinds[k].kinds[0]) || !called_open(&t, &kinds[k])) continue;
        for (int i = 0; i < 2; i++) {
            struct shore__call lost = i ? add_of(&t, &sum) : pairs_of(&t, 0, SCRATCH_BYTES);
            make_its_file(&t);
            assert_int_equal(ask(&t, &lost), SHORE_ELINK);
            assert_int_equal(ask(&t, &lost), SHORE_ELINK);
            must(&t.b, shore_fleet_reconnect(t.b.fleet, &t.b.diag));
            assert_int_equal(ask(&t, &lost), SHORE_EDISCARDED); /* of the attempt that was given up */
            assert_firsts(&t, t.b.plain.step);                  /* of a step alone */
            put_scratch(&t);
            struct shore__call call = i ? add_of(&t, &sum) : pairs_of(&t, 0, SCRATCH_BYTES);
            must(&t.b, ask(&t, &call));
            if (i) assert_int_equal(sum, add_to_scratch(&t));
            call = pairs_of(&t, 0, SCRATCH_BYTES);
            must(&t.b, ask(&t, &call));
            assert_pairs(&t, &call);
            step(&t.b);
            assert_digest(t.b.fleet, &t.b.plain, true);
        }
        called_close(&t);
    }
}

/* The server is there, says so, and gets nowhere. */
static void a_function_that_hangs_is_given_up(void **state) {
    static const unsigned char in[1] = {9};
    unsigned char out[1] = {0};
    struct called t;
    setenv("LONGSHORE_SILENCE", "2", 1);
    assert_true(called_open(&t, &kinds[KINDS - 1]));
    make_its_file(&t);
    struct shore__call call = {.function = number_of_copy, .in = in, .in_bytes = 1, .out = out, .out_bytes = 1};
    call.argument = t.argument.dies_once;
    call.argument_bytes = sizeof t.argument.dies_once;
    fast_clock_set();
    refused(&t, &call, SHORE_ELINK, "has made no progress for 40 s");
    shore__set_clock(NULL);
    unlink(t.argument.dies_once);
    must(&t.b, shore_fleet_reconnect(t.b.fleet, &t.b.diag));
    must(&t.b, ask(&t, &call)); /* it may be made again */
    assert_int_equal(out[0], in[0]);
    called_close(&t);
    unsetenv("LONGSHORE_SILENCE");
}

/* ---- what is counted, recorded and held back --------------------------------------------------------------------- */

static struct shore_ledger counted(struct called *t) {
    struct shore_ledger l = {.size = sizeof l};
    step(&t->b); /* a server tells what it has counted with each commit */
    assert_int_equal(shore_fleet_ledger(t->b.fleet, &l), 0);
    return l;
}

static void counts_both_directions(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        uint64_t sum;
        if (!called_open(&t, &kinds[k])) continue;
        const struct shore_ledger before = counted(&t);
        struct shore__call call = pairs_of(&t, 0, 1 << 20), adding = add_of(&t, &sum);
        must(&t.b, ask(&t, &call));
        must(&t.b, ask(&t, &adding));
        const struct shore_ledger after = counted(&t);
        assert_int_equal(after.link_activations - before.link_activations, (1 << 19) + 12288);
        assert_int_equal(after.link_out_state - before.link_out_state, (1 << 19) + 8);
        assert_int_equal(after.drive_read_scratch - before.drive_read_scratch, (1 << 20) + 12288);
        assert_int_equal(after.drive_write_scratch - before.drive_write_scratch, 12288);
        called_close(&t);
    }
}

struct counting_gate {
    struct shore__gate gate;
    uint64_t amount[SHORE_LANES], latest;
};

static uint64_t count_work(struct shore__gate *gate, enum shore_lane lane, uint32_t drive, uint64_t amount) {
    struct counting_gate *g = (struct counting_gate *)gate;
    g->amount[lane] += amount;
    return g->latest = shore__now_ns() + 20000000;
}

static void a_gate_holds_its_bytes_back(void **state) {
    struct called t;
    struct counting_gate g = {.gate.over_ns = count_work};
    assert_true(called_open(&t, &kinds[1]));
    shore__fleet_set_gate(t.b.fleet, &g.gate);
    struct shore__call call = pairs_of(&t, 0, 1 << 20);
    must(&t.b, ask(&t, &call));
    assert_true(shore__now_ns() >= g.latest);
    assert_int_equal(g.amount[SHORE_LANE_LINK_IN], 1 << 19);
    assert_int_equal(g.amount[SHORE_LANE_LINK_OUT], 1 << 19);
    assert_int_equal(g.amount[SHORE_LANE_DRIVE_READ], 1 << 20);
    assert_int_equal(g.amount[SHORE_LANE_DRIVE_WRITE], 0);
    assert_pairs(&t, &call);
    called_close(&t);
}

/* Computing is recorded apart from what the drive reads meanwhile. */
static void a_trace_has_its_lanes(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        struct shore__recorder *recorder;
        struct shore__recorded got;
        uint64_t bytes[SHORE_LANES] = {0}, ns[SHORE_LANES] = {0};
        if (!called_open(&t, &kinds[k])) continue;
        assert_int_equal(shore__recorder_open(1, &recorder), 0);
        shore__fleet_set_recorder(t.b.fleet, recorder);
        struct shore__call call = pairs_of(&t, 0, SCRATCH_BYTES);
        const uint64_t begin = shore__now_ns();
        must(&t.b, ask(&t, &call));
        const uint64_t end = shore__now_ns();
        shore__recorder_stepped(recorder, 1, begin, end);
        assert_true(shore__recorder_take(recorder, &got));
        for (uint32_t i = 0; i < got.count; i++) {
            if (got.spans[i].kind != SHORE__SPAN_LANE) continue;
            bytes[got.spans[i].what] += got.spans[i].amount;
            ns[got.spans[i].what] += got.spans[i].end_ns - got.spans[i].begin_ns;
        }
        assert_in_range(ns[SHORE_LANE_DRIVE_UPDATE], 1, end - begin);
        if (kinds[k].kinds[0] == 'f') assert_int_equal(bytes[SHORE_LANE_DRIVE_READ], SCRATCH_BYTES);
        if (strchr("us", kinds[k].kinds[0])) {
            assert_int_equal(bytes[SHORE_LANE_LINK_IN], SCRATCH_BYTES / 2);
            assert_int_equal(bytes[SHORE_LANE_LINK_OUT], SCRATCH_BYTES / 2);
        }
        called_close(&t);
        shore__recorder_end(recorder);
        shore__recorder_close(recorder);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_call_is_not_done_twice), cmocka_unit_test(a_function_that_hangs_is_given_up),
        cmocka_unit_test(counts_both_directions),        cmocka_unit_test(a_gate_holds_its_bytes_back),
        cmocka_unit_test(a_trace_has_its_lanes),
    };
    return RUN_FUNCTION_TESTS(argc, tests);
}
