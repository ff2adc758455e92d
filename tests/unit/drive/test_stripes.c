#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "drive/fleet/stripes.h"

#define MOST 12u

static const struct {
    uint32_t n;
    uint64_t weights[MOST];
    uint64_t bytes;
} cases[] = {
    {1, {5}, 77u << 20},
    {2, {1, 1}, 10u << 20},
    {2, {2, 1}, 1},
    {3, {0, 0, 0}, 100u << 20},
    {3, {7, 0, 2}, 999u << 20},
    {5, {100, 1, 1, 1, 1}, UINT64_C(5000) << 20},
    {4, {UINT64_C(1) << 40, UINT64_C(3) << 40, 12345, UINT64_C(1) << 41}, UINT64_C(1234567) << 20},
    {12, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, (UINT64_C(40001) << 20) + 5},
};

static void shares_add_up_and_follow_the_weights(void **state) {
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint64_t counts[MOST], sum = 0, whole = 0, least = (cases[c].bytes + (1 << 20) - 1) >> 20;
        uint64_t total = shore__stripes_share(cases[c].bytes, cases[c].weights, cases[c].n, counts);
        for (uint32_t d = 0; d < cases[c].n; d++) {
            sum += counts[d];
            whole += cases[c].weights[d];
        }
        assert_int_equal(sum, total);
        assert_true(total >= least && total <= least + least / 1000 + 1);
        for (uint32_t d = 0; d < cases[c].n; d++) {
            double want = (double)total * (whole ? (double)cases[c].weights[d] / (double)whole : 1.0 / cases[c].n);
            double step = (double)total / SHORE__STRIPES_PERIOD + 1;
            assert_true((double)counts[d] > want - 1.5 * step && (double)counts[d] < want + 1.5 * step);
        }
    }
}

/* Every stripe has a place of its own on its drive, within what the drive has. */
static void no_place_is_taken_twice(void **state) {
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct shore__stripes s;
        uint64_t counts[MOST];
        unsigned char *taken[MOST];
        uint64_t total = shore__stripes_share(cases[c].bytes, cases[c].weights, cases[c].n, counts);
        assert_int_equal(shore__stripes_make(counts, cases[c].n, &s), 0);
        assert_int_equal(s.total, total);
        for (uint32_t d = 0; d < cases[c].n; d++)
            taken[d] = calloc(counts[d] + 1, 1);
        for (uint64_t i = 0; i < total; i++) {
            uint64_t local;
            uint32_t d = shore__stripes_find(&s, i, &local);
            assert_true(d < cases[c].n);
            assert_true(local < counts[d]);
            assert_false(taken[d][local]);
            taken[d][local] = 1;
        }
        for (uint32_t d = 0; d < cases[c].n; d++)
            free(taken[d]);
        shore__stripes_free(&s);
    }
}

/* Any run of stripes is spread as the whole is. */
static void drives_are_mixed(void **state) {
    const uint64_t counts[] = {600, 300, 100};
    struct shore__stripes s;
    assert_int_equal(shore__stripes_make(counts, 3, &s), 0);
    assert_int_equal(s.period, 10);
    for (uint64_t first = 0; first + 20 <= s.total; first++) {
        uint64_t local, found[3] = {0};
        for (uint64_t i = 0; i < 20; i++)
            found[shore__stripes_find(&s, first + i, &local)]++;
        assert_in_range(found[0], 11, 13);
        assert_in_range(found[1], 5, 7);
        assert_in_range(found[2], 1, 3);
    }
    shore__stripes_free(&s);
}

static void none(void **state) {
    const uint64_t counts[] = {0, 0};
    struct shore__stripes s;
    assert_int_equal(shore__stripes_share(0, counts, 2, NULL), 0);
    assert_int_equal(shore__stripes_make(counts, 2, &s), 0);
    assert_int_equal(s.total, 0);
    shore__stripes_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_add_up_and_follow_the_weights),
        cmocka_unit_test(no_place_is_taken_twice),
        cmocka_unit_test(drives_are_mixed),
        cmocka_unit_test(none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
