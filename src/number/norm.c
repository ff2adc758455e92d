#include "number/norm.h"

#include <math.h>

#include "number/fpcontrol.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LANES = SHORE__SQUARES_LANES };

/* The square of an fp32 is exact in double. Only the additions round, in element order within a lane. */
static __attribute__((noinline)) void add_squares_plain(double lane[LANES], const float *x, size_t elems) {
    for (size_t i = 0; i < elems; i += LANES)
        for (size_t j = 0; j < LANES && i + j < elems; j++)
            lane[j] += (double)x[i + j] * (double)x[i + j];
}

#if defined(__x86_64__)

__attribute__((noinline, target("avx2"))) static void add_squares_avx2(double lane[LANES], const float *x,
                                                                       size_t elems) {
    __m256d sum[4];
    for (size_t k = 0; k < 4; k++)
        sum[k] = _mm256_loadu_pd(lane + 4 * k);
    size_t i = 0;
    for (; i + LANES <= elems; i += LANES)
        for (size_t k = 0; k < 4; k++) {
            __m256d wide = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * k));
            sum[k] = _mm256_add_pd(sum[k], _mm256_mul_pd(wide, wide));
        }
    for (size_t k = 0; k < 4; k++)
        _mm256_storeu_pd(lane + 4 * k, sum[k]);
    add_squares_plain(lane, x + i, elems - i);
}

__attribute__((noinline, target("avx512f"))) static void add_squares_avx512(double lane[LANES], const float *x,
                                                                            size_t elems) {
    __m512d low = _mm512_loadu_pd(lane), high = _mm512_loadu_pd(lane + 8);
    size_t i = 0;
    for (; i + LANES <= elems; i += LANES) {
        __m512d a = _mm512_cvtps_pd(_mm256_loadu_ps(x + i));
        __m512d b = _mm512_cvtps_pd(_mm256_loadu_ps(x + i + 8));
        low = _mm512_add_pd(low, _mm512_mul_pd(a, a));
        high = _mm512_add_pd(high, _mm512_mul_pd(b, b));
    }
    _mm512_storeu_pd(lane, low);
    _mm512_storeu_pd(lane + 8, high);
    add_squares_plain(lane, x + i, elems - i);
}

#endif

static void add_squares(double lane[LANES], const float *x, size_t elems) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        add_squares_avx512(lane, x, elems);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        add_squares_avx2(lane, x, elems);
        return;
    }
#endif
    add_squares_plain(lane, x, elems);
}

static __attribute__((noinline)) double fold(double lane[LANES]) {
    for (size_t width = LANES / 2; width > 0; width /= 2)
        for (size_t j = 0; j < width; j++)
            lane[j] += lane[j + width];
    /* one NaN for all processors, which differ in whose operand's bits they return */
    return isnan(lane[0]) ? (double)NAN : lane[0];
}

void shore__squares_add(double lane[SHORE__SQUARES_LANES], const float *x, size_t elems) {
    uint64_t control = shore__fp_begin();
    add_squares(lane, x, elems);
    shore__fp_end(control);
}

double shore__squares_sum(double lane[SHORE__SQUARES_LANES]) {
    uint64_t control = shore__fp_begin();
    double sum = fold(lane);
    shore__fp_end(control);
    return sum;
}

double shore__sum_squares(const float *x, size_t elems) {
    double lane[LANES] = {0};
    shore__squares_add(lane, x, elems);
    return shore__squares_sum(lane);
}
