#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "number/bf16.h"
#include "number/norm.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* The definition in norm.h, word for word. */
static double by_definition(const float *x, size_t elems) {
    double lane[16] = {0};
    for (size_t i = 0; i < elems; i++) {
        double square = (double)x[i] * (double)x[i];
        lane[i % 16] = lane[i % 16] + square;
    }
    for (int width = 8; width >= 1; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] = lane[j] + lane[j + width];
    return lane[0];
}

static void assert_same(const float *x, size_t elems) {
    double expected = by_definition(x, elems), got = shore__sum_squares(x, elems);
    if (memcmp(&expected, &got, sizeof got) != 0) fail_msg("%zu elements: %a, not %a", elems, got, expected);
}

static void same_bits_as_the_definition(void **state) {
    float *x = malloc(65537 * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < 65537; i++)
        x[i] = shore__random_normal(3, 0, i) * (i % 7 ? 1.0f : 1e-20f) * (i % 11 ? 1.0f : 1e15f);
    for (size_t elems = 0; elems < 100; elems++)
        assert_same(x + elems % 3, elems);
    assert_same(x, 65536);
    assert_same(x + 1, 65536);
    assert_same(x, 65535);
    free(x);
}

static void zeros_after_the_end_change_nothing(void **state) {
    float x[256] = {0};
    for (size_t i = 0; i < 77; i++)
        x[i] = shore__random_normal(4, 0, i);
    assert_true(shore__sum_squares(x, 77) == shore__sum_squares(x, 256));
}

static void largest_values_do_not_overflow(void **state) {
    float x[64];
    for (size_t i = 0; i < 64; i++)
        x[i] = 3.4028235e38f;
    double one = (double)x[0] * (double)x[0];
    assert_true(shore__sum_squares(x, 64) == 64 * one);
}

static void nan_and_infinity_come_through(void **state) {
    for (size_t at = 0; at < 37; at++) {
        float x[37] = {1.0f};
        x[at] = -INFINITY;
        assert_true(isinf(shore__sum_squares(x, 37)));
        x[at] = -NAN;
        double sum = shore__sum_squares(x, 37);
        assert_true(isnan(sum) && !signbit(sum));
    }
}

#if defined(__x86_64__)
static void denormals_count_whatever_the_caller_has_set(void **state) {
    float x[40];
    for (size_t i = 0; i < 40; i++)
        x[i] = shore__bits_f32((uint32_t)i + 1);
    double expected = shore__sum_squares(x, 40);
    assert_true(expected > 0.0);
    unsigned before = _mm_getcsr();
    _mm_setcsr(0x1F80u | 0x8040u | 0x4000u);
    double got = shore__sum_squares(x, 40);
    unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    assert_int_equal(after & ~0x3Fu, 0x1F80u | 0x8040u | 0x4000u);
    assert_memory_equal(&got, &expected, sizeof got);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_as_the_definition),
        cmocka_unit_test(zeros_after_the_end_change_nothing),
        cmocka_unit_test(largest_values_do_not_overflow),
        cmocka_unit_test(nan_and_infinity_come_through),
#if defined(__x86_64__)
        cmocka_unit_test(denormals_count_whatever_the_caller_has_set),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
