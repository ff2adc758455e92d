/* fp16 against what defines it: the nearest of its values, the even one of two. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "number/fp16.h"

/* Its magnitudes in their order, as numbers. */
static double value_of(uint32_t h) {
    uint32_t exponent = h >> 10, fraction = h & 1023;
    return exponent ? ldexp(1024 + fraction, (int)exponent - 25) : ldexp(fraction, -24);
}

static void every_value_survives(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7C00; h++) {
        assert_true((double)shore__f16_to_f32((uint16_t)h) == value_of(h));
        assert_int_equal(shore__f32_to_f16((float)value_of(h)), h);
        assert_int_equal(shore__f32_to_f16(-(float)value_of(h)), h | 0x8000);
    }
    assert_true(isinf(shore__f16_to_f32(0x7C00)) && isnan(shore__f16_to_f32(0x7E01)));
    assert_int_equal(shore__f32_to_f16(-INFINITY), 0xFC00);
    assert_int_equal(shore__f32_to_f16(NAN) & 0x7E00, 0x7E00);
}

static void rounds_to_the_nearest_and_halves_to_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7C00; h++) {
        float half = (float)((value_of(h) + (h == 0x7BFF ? 65536 : value_of(h + 1))) / 2); /* exact in fp32 */
        assert_int_equal(shore__f32_to_f16(half), h + h % 2);
        assert_int_equal(shore__f32_to_f16(-half), (h + h % 2) | 0x8000);
        assert_int_equal(shore__f32_to_f16(nextafterf(half, 0)), h);
        assert_int_equal(shore__f32_to_f16(nextafterf(half, INFINITY)), h + 1);
    }
    assert_int_equal(shore__f32_to_f16(SHORE__F16_OVERFLOWS), 0x7C00);
    assert_int_equal(shore__f32_to_f16(nextafterf(SHORE__F16_OVERFLOWS, 0)), 0x7BFF);
    assert_int_equal(shore__f32_to_f16(3e38f), 0x7C00);
    assert_int_equal(shore__f32_to_f16(1e-42f), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_survives),
        cmocka_unit_test(rounds_to_the_nearest_and_halves_to_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
