/* The kernels for AVX2 with FMA. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernel/kernels.h"

#pragma GCC target("avx2,fma")
#define VL 8
#define FMA(a, b, c) ((vf)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define MIN(a, b) ((vf)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define MAX(a, b) ((vf)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define SUM_LANES(x) sum_of_lanes((__m256)(x))
#define MAX_LANES(x) max_of_lanes((__m256)(x))
#define KERNELS shore__kernels_avx2

static inline float sum_of_lanes(__m256 x) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
static inline float max_of_lanes(__m256 x) {
    __m128 max = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    max = _mm_max_ps(max, _mm_movehl_ps(max, max));
    return _mm_cvtss_f32(_mm_max_ss(max, _mm_movehdup_ps(max)));
}

#include "kernel/kernels_vector_body.h"

#include "kernel/kernels_attention_body.h"
#include "kernel/kernels_element_body.h"
#include "kernel/kernels_product_f32_body.h"
#include "kernel/kernels_row_body.h"
#include "kernel/kernels_table_body.h"
#endif
