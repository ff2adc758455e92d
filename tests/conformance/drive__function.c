/* Functions that this program adds give the same on every kind of drive, whole or cut, and refuse what is wrong. */
#include "conformance/drive_functions.h"

static void gives_the_same_everywhere(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        static const uint64_t start[] = {0, 4096, 1 << 20, 0}, bytes[] = {4096, 8192, 3 << 20, SCRATCH_BYTES};
        struct called t;
        uint64_t sum;
        if (!called_open(&t, &kinds[k])) continue;
        for (int i = 0; i < 4; i++) {
            struct shore__call call = pairs_of(&t, start[i], bytes[i]);
            must(&t.b, ask(&t, &call));
            assert_pairs(&t, &call);
        }
        for (int i = 0; i < 2; i++) {
            struct shore__call call = add_of(&t, &sum);
            must(&t.b, ask(&t, &call));
            assert_int_equal(sum, add_to_scratch(&t));
        }
        struct shore__call call = pairs_of(&t, 0, 65536);
        must(&t.b, ask(&t, &call));
        assert_pairs(&t, &call);
        called_close(&t);
    }
}

/* Many at once, between fetches that are cut into spans. */
static void runs_between_other_requests(void **state) {
    enum { CALLS = 12 };
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        struct shore_wait wait[2 * CALLS];
        struct shore__call call[CALLS];
        if (!called_open(&t, &kinds[k])) continue;
        const uint32_t segments = t.b.plain.layout->blocks[1].segments;
        const size_t bytes = (size_t)segments * SHORE_SEGMENT_ELEMS * 4;
        float *master = pages(CALLS * bytes);
        for (unsigned i = 0; i < 2 * CALLS; i++)
            shore_wait_init(&wait[i]);
        for (unsigned i = 0; i < CALLS; i++) {
            call[i] = pairs_of(&t, 0, 262144);
            call[i].out = t.out + (size_t)i * 131072;
            must(&t.b, shore_fleet_fetch(t.b.fleet, 0, 1, 0, segments, SHORE_FETCH_MASTER,
                                         (unsigned char *)master + i * bytes, shore_wait_completion(&wait[i])));
            must(&t.b, shore__fleet_call(t.b.fleet, 0, &call[i], shore_wait_completion(&wait[CALLS + i])));
        }
        for (unsigned i = 0; i < 2 * CALLS; i++)
            must(&t.b, shore_wait(&wait[i], &t.b.diag));
        assert_pairs(&t, &call[0]);
        for (unsigned i = 0; i < CALLS; i++) {
            assert_memory_equal((unsigned char *)master + i * bytes, t.b.plain.master[1], bytes);
            assert_memory_equal(call[i].out, t.out, 131072);
        }
        free(master);
        called_close(&t);
    }
}

/* ---- steps and attempts ------------------------------------------------------------------------------------------ */

static void reads_the_step_that_it_names(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        struct step_how how = {.coefficient = 1};
        if (!called_open(&t, &kinds[k])) continue;
        assert_firsts(&t, 0);
        must(&t.b, fleet_updates(t.b.fleet, &t.b.plain, 0, &how, &t.b.diag));
        assert_firsts(&t, 0);
        assert_firsts(&t, 1); /* being written */
        must(&t.b, fleet_commit(t.b.fleet, 0, false, &t.b.diag));
        assert_firsts(&t, 1);
        struct shore__call call = {
            .function = number_of_firsts, .block = 1, .count = 1, .step = 2, .out = t.out, .out_bytes = 4096};
        refused(&t, &call, SHORE_ESTALE, "FIRSTS is of step 2, which the drive does not hold");
        called_close(&t);
    }
}

static void belongs_to_its_attempt(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        uint64_t sum;
        if (!called_open(&t, &kinds[k])) continue;
        struct shore__call call = pairs_of(&t, 0, 4096), adding = add_of(&t, &sum);
        call.step++;
        refused(&t, &call, SHORE_ESTALE, "PAIRS is of step 1, which the drive does not hold");
        call.step--;
        must(&t.b, ask(&t, &call));
        shore_fleet_discard(t.b.fleet);
        assert_int_equal(ask(&t, &call), SHORE_EDISCARDED);
        assert_int_equal(ask(&t, &adding), SHORE_EDISCARDED);
        call = pairs_of(&t, 0, 65536); /* nothing was added */
        must(&t.b, ask(&t, &call));
        assert_pairs(&t, &call);
        called_close(&t);
    }
}

/* ---- what is wrong ----------------------------------------------------------------------------------------------- */

static void says_what_is_wrong(void **state) {
    static unsigned char long_argument[SHORE__ARGUMENT_BYTES + 1];
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        uint64_t sum;
        if (!called_open(&t, &kinds[k])) continue;
        struct shore__call good = pairs_of(&t, 0, 8192), call = good;
        call.function = number_of_firsts + 1;
        assert_int_equal(ask(&t, &call), -EINVAL);
        call = good;
        call.start = SCRATCH_BYTES;
        refused(&t, &call, -EINVAL, "PAIRS: its range is not on this drive");
        call = good;
        call.argument = long_argument;
        call.argument_bytes = sizeof long_argument;
        refused(&t, &call, -EINVAL, "PAIRS: its argument has 4097 bytes, more than 4096");
        for (int i = 0; i < 2; i++) { /* the second time, a server finds it */
            if (i && !strchr("us", kinds[k].kinds[0])) break;
            lenient = i;
            call = good;
            call.out_bytes++;
            refused(&t, &call, -EINVAL, "PAIRS takes and gives a byte for two");
            call = good;
            call.argument_bytes = 5;
            refused(&t, &call, -EINVAL, "the argument has 5 bytes instead of");
            call = add_of(&t, &sum);
            t.argument.start = UINT64_MAX - 4;
            refused(&t, &call, -EINVAL, "ADD: it does not fit");
        }
        lenient = false;
        call = add_of(&t, &sum);
        t.argument.start = 100; /* passes its check */
        refused(&t, &call, -EINVAL, "ADD reaches for what is not on the drive");
        must(&t.b, ask(&t, &good));
        assert_pairs(&t, &good);
        step(&t.b);
        assert_digest(t.b.fleet, &t.b.plain, true);
        called_close(&t);
    }
}

/* A server has room for so much, and says so. */
static void fits_the_servers_memory(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        if (!called_open(&t, &kinds[k])) continue;
        struct shore__call call = {.function = number_of_copy, .attempt = shore_fleet_attempt(t.b.fleet)};
        call.in_bytes = call.out_bytes = 8 << 20;
        unsigned char *in = pages(call.in_bytes), *out = pages(call.out_bytes);
        memset(in, 5, call.in_bytes);
        call.in = in;
        call.out = out;
        if (strchr("us", kinds[k].kinds[0])) {
            refused(&t, &call, -E2BIG, "COPY takes and gives more than the");
            call.in_bytes = call.out_bytes = 500000;
        }
        must(&t.b, ask(&t, &call));
        assert_memory_equal(out, in, call.out_bytes);
        free(in);
        free(out);
        called_close(&t);
    }
}

static void failing_io_fails_the_call_alone(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        uint64_t sum;
        if (!strchr("fu", kinds[k].kinds[0]) || !called_open(&t, &kinds[k])) continue;
        for (int after = 0; after < 3; after++) {
            struct shore__call call = pairs_of(&t, 0, 1 << 20);
            failing->kind = SHORE__IO_READ;
            failing->after = after;
            refused(&t, &call, -EIO, "reading");
            assert_non_null(strstr(t.b.diag.text, ".volume"));
            assert_int_equal(failing->after, -1);
            must(&t.b, ask(&t, &call));
            assert_pairs(&t, &call);
        }
        struct shore__call call = add_of(&t, &sum);
        failing->kind = SHORE__IO_WRITE;
        failing->after = 0;
        refused(&t, &call, -EIO, "writing");
        must(&t.b, ask(&t, &call));
        assert_int_equal(sum, add_to_scratch(&t));
        step(&t.b);
        assert_digest(t.b.fleet, &t.b.plain, true);
        called_close(&t);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_same_everywhere),
        cmocka_unit_test(runs_between_other_requests),
        cmocka_unit_test(reads_the_step_that_it_names),
        cmocka_unit_test(belongs_to_its_attempt),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(fits_the_servers_memory),
        cmocka_unit_test(failing_io_fails_the_call_alone),
    };
    return RUN_FUNCTION_TESTS(argc, tests);
}
