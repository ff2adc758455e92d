#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"

/* Data order is part of a run's identity: these values must never change. */
static void values_are_fixed(void **state) {
    assert_true(shore__random_u64(0, 0, 0) == UINT64_C(0x238275BC38FCBE91));
    assert_true(shore__random_u64(42, 7, 123456789) == UINT64_C(0xDA4EB82211A62304));
    assert_int_equal(shore__permute(42, 1, 1000, 0), 891);
    assert_int_equal(shore__permute(42, 1, 1000, 999), 555);
}

static void permute_is_a_bijection(void **state) {
    for (uint64_t count = 1; count < 5000; count = count * 3 / 2 + 1)
        for (uint64_t stream = 0; stream < 3; stream++) {
            unsigned char *hit = calloc(count, 1);
            assert_non_null(hit);
            for (uint64_t i = 0; i < count; i++) {
                uint64_t to = shore__permute(5, stream, count, i);
                assert_true(to < count);
                assert_int_equal(hit[to]++, 0);
            }
            free(hit);
        }
}

static void permute_stays_inside_large_counts(void **state) {
    static const uint64_t counts[] = {UINT64_C(1) << 32, (UINT64_C(1) << 40) + 1, UINT64_MAX};
    for (size_t c = 0; c < 3; c++) {
        assert_true(shore__permute(1, 2, counts[c], counts[c] - 1) < counts[c]);
        assert_true(shore__permute(1, 2, counts[c], 0) != shore__permute(1, 2, counts[c], 1));
    }
}

static void permute_depends_on_seed_and_stream_and_mixes(void **state) {
    enum { COUNT = 10000 };
    int as_other_seed = 0, as_other_stream = 0, fixed = 0;
    double correlation = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t to = shore__permute(1, 1, COUNT, i);
        as_other_seed += to == shore__permute(2, 1, COUNT, i);
        as_other_stream += to == shore__permute(1, 2, COUNT, i);
        fixed += to == i;
        correlation += ((double)i / COUNT - 0.5) * ((double)to / COUNT - 0.5) * 12 / COUNT;
    }
    assert_true(as_other_seed < 12 && as_other_stream < 12 && fixed < 12);
    assert_true(fabs(correlation) < 0.05);
}

static void moments_are_those_of_the_distributions(void **state) {
    enum { COUNT = 200000 };
    double unit = 0, normal = 0, square = 0, fourth = 0, neighbour = 0, last = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        double u = shore__random_unit(11, 3, i), n = shore__random_normal(11, 4, i);
        assert_true(u >= 0 && u < 1 && isfinite(n));
        unit += u / COUNT;
        normal += n / COUNT;
        square += n * n / COUNT;
        fourth += n * n * n * n / COUNT;
        neighbour += n * last / COUNT;
        last = n;
    }
    assert_true(fabs(unit - 0.5) < 0.005);
    assert_true(fabs(normal) < 0.01 && fabs(square - 1) < 0.02 && fabs(fourth - 3) < 0.15 && fabs(neighbour) < 0.01);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_fixed),
        cmocka_unit_test(permute_is_a_bijection),
        cmocka_unit_test(permute_stays_inside_large_counts),
        cmocka_unit_test(permute_depends_on_seed_and_stream_and_mixes),
        cmocka_unit_test(moments_are_those_of_the_distributions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
