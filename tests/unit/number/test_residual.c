/* Error feedback: nothing is lost but what bf16 rounds away, whatever the control register of the caller. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "number/bf16.h"
#include "number/residual.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { N = 5003 };

static float gradient[N], x[N];
static uint16_t base[N], next[N];

static void fill(float scale) {
    for (size_t i = 0; i < N; i++) {
        gradient[i] = x[i] = shore__random_normal(1, 0, i) * scale;
        base[i] = shore__f32_to_bf16(shore__random_normal(1, 1, i) * scale);
    }
}

static void the_sum_is_kept_in_bf16(void **state) {
    static const float scales[] = {1, 1e-30f, 1e-38f, 1e-40f, 1e30f};
    for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++) {
        fill(scales[s]);
        volatile float sum;
#if defined(__x86_64__)
        unsigned before = _mm_getcsr();
        _mm_setcsr(before | 0x8040u); /* flush to zero, denormals are zero */
#endif
        shore__residual_add(x, next, base, N);
#if defined(__x86_64__)
        assert_true((_mm_getcsr() & 0x8040u) == 0x8040u);
        _mm_setcsr(before);
#endif
        for (size_t i = 0; i < N; i++) {
            sum = gradient[i] + shore__bf16_to_f32(base[i]);
            assert_int_equal(shore__f32_bits(x[i]), shore__f32_bits(sum));
            assert_int_equal(next[i], shore__f32_to_bf16(sum));
        }
    }
}

static void in_place(void **state) {
    static uint16_t again[N];
    fill(1);
    shore__residual_add(x, next, base, N);
    memcpy(x, gradient, sizeof x);
    memcpy(again, base, sizeof again);
    shore__residual_add(x, again, again, N);
    assert_memory_equal(again, next, sizeof next);
}

static void what_is_sent_is_taken_out(void **state) {
    uint16_t index[3] = {0, 7, 5000};
    uint32_t bits[3];
    fill(0.1f);
    for (int form = SHORE_SPARSE_BF16; form <= SHORE_SPARSE_FP32; form++) {
        memcpy(x, gradient, sizeof x);
        shore__residual_add(x, next, base, N);
        for (size_t i = 0; i < 3; i++)
            bits[i] = shore__f32_bits(x[index[i]]);
        uint16_t untouched = next[8];
        struct shore__topk_list list = {index, bits, 3};
        shore__residual_sent(next, &list, (enum shore_sparse_values)form);
        for (size_t i = 0; i < 3; i++) {
            float left =
                form == SHORE_SPARSE_FP32 ? 0 : x[index[i]] - shore__bf16_to_f32(shore__f32_to_bf16(x[index[i]]));
            assert_int_equal(next[index[i]], shore__f32_to_bf16(left));
        }
        assert_int_equal(next[8], untouched);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sum_is_kept_in_bf16),
        cmocka_unit_test(in_place),
        cmocka_unit_test(what_is_sent_is_taken_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
