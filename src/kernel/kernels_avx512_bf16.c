/* The kernels for AVX-512 with AVX512_BF16. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernel/kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,prfchw,prefer-vector-width=512")
#define NARROW(x) ((vh)_mm512_cvtneps_pbh((__m512)(x)))
#define KERNELS shore__kernels_avx512_bf16
#include "kernel/kernels_avx512_body.h"

static void products_begin(void) {}
static void products_end(void) {}

#define MR 8
static void product(float *c, size_t ldc, const uint16_t *a, size_t lda, const uint16_t *b, size_t ldb, size_t m,
                    size_t n, size_t from, size_t to, bool accumulate) {
    for (size_t j = 0; j < n; j += 32)
        for (size_t r = 0; r < m; r += MR) {
            __m512 sum[MR][2];
            for (size_t i = 0; i < MR; i++)
                for (size_t v = 0; v < 2; v++)
                    sum[i][v] = accumulate ? _mm512_loadu_ps(c + (r + i) * ldc + j + 16 * v) : _mm512_setzero_ps();
            for (size_t k = from; k < to; k += 2) {
                const uint16_t *pairs = b + k / 2 * ldb + j * 2;
                __m512bh b0 = (__m512bh)_mm512_loadu_si512(pairs), b1 = (__m512bh)_mm512_loadu_si512(pairs + 32);
#pragma GCC unroll 8
                for (size_t i = 0; i < MR; i++) {
                    int32_t pair;
                    memcpy(&pair, a + (r + i) * lda + k, sizeof pair);
                    __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
                    sum[i][0] = _mm512_dpbf16_ps(sum[i][0], b0, x);
                    sum[i][1] = _mm512_dpbf16_ps(sum[i][1], b1, x);
                }
            }
            for (size_t i = 0; i < MR; i++)
                for (size_t v = 0; v < 2; v++)
                    _mm512_storeu_ps(c + (r + i) * ldc + j + 16 * v, sum[i][v]);
        }
}

#include "kernel/kernels_pairs_body.h"

#include "kernel/kernels_attention_bf16_body.h"
#include "kernel/kernels_element_body.h"
#include "kernel/kernels_product_bf16_body.h"
#include "kernel/kernels_row_body.h"
#include "kernel/kernels_table_body.h"
#endif
