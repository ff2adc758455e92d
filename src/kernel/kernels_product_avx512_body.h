/* Products in fp32 for AVX-512, of operands in fp32 or bf16 (kernels_product_strips_body.h).
 *
 * A step of a strip is 16 times an element of each of its rows; a step of a panel is 16 times two vectors. A block of
 * sums is in 24 registers. */
#define WIDENS true
#define STEP ((size_t)16)
#define STRIP_ROWS ((size_t)12)
#define PANEL ((size_t)32)
#define SPAN ((size_t)256)
#define STRIPS_BYTES ((size_t)1 << 19)
#define MOST_STRIPS ((size_t)32)
typedef float operand;

/* A square of 16 by 16 of src from element `at`, with rows `ld` elements apart. Only `rows` rows and `columns` columns
 * of it exist. */
INLINE void square_of(__m512i row[VL], const void *src, enum shore__mode mode, size_t at, size_t ld, size_t rows,
                      size_t columns) {
    __mmask16 some = (__mmask16)((1u << least(VL, columns)) - 1);
#pragma GCC unroll 16
    for (size_t i = 0; i < VL; i++, at += ld) {
        __mmask16 there = i < rows ? some : 0;
        if (mode == SHORE__BF16) {
            __m256i half = _mm256_maskz_loadu_epi16(there, (const uint16_t *)src + at);
            row[i] = _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
        } else
            row[i] = _mm512_maskz_loadu_epi32(there, (const float *)src + at);
    }
}

INLINE void pack_step(float *to, const void *b, enum shore__mode mode, bool transposed, size_t k, size_t n, size_t r,
                      size_t j) {
    for (size_t v = 0; v < PANEL; v += VL) {
        size_t columns = j + v < n ? n - j - v : 0;
        __m512i row[VL];
        if (transposed) {
            square_of(row, b, mode, (j + v) * k + r, k, columns, k - r);
            transpose(row);
        } else
            square_of(row, b, mode, r * n + j + v, n, k - r, columns);
#pragma GCC unroll 16
        for (size_t i = 0; i < STEP; i++)
            _mm512_store_si512(to + i * PANEL + v, row[i]);
    }
}

INLINE void lay_step(float *to, const struct shore__product_job *job, enum shore__mode mode, bool transposed,
                     size_t first, size_t r) {
    size_t rows = least(STRIP_ROWS, job->row_end - first);
    __m512i row[VL];
    if (transposed)
        square_of(row, job->a, mode, r * job->m + first, job->m, job->k - r, rows);
    else {
        square_of(row, job->a, mode, first * job->k + r, job->k, rows, job->k - r);
        transpose(row);
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < STEP; i++)
        _mm512_mask_storeu_epi32(to + i * STRIP_ROWS, (1u << STRIP_ROWS) - 1, row[i]);
}

static void products_begin(void) {}
static void products_end(void) {}
#include "kernel/kernels_product_strips_body.h"

INLINE void strip_by_panel(struct sums to, struct sums from, const operand *a, const operand *b, size_t steps,
                           struct ahead ahead) {
    __m512 sum[STRIP_ROWS][2];
#pragma GCC unroll 12
    for (size_t i = 0; i < STRIP_ROWS; i++) {
        sum[i][0] = from.at ? _mm512_loadu_ps(from.at + i * from.ld) : _mm512_setzero_ps();
        sum[i][1] = from.at ? _mm512_loadu_ps(from.at + i * from.ld + VL) : _mm512_setzero_ps();
    }
    for (size_t s = 0; s < steps; s++) {
        fetch(&ahead);
#pragma GCC unroll 4
        for (size_t p = 0; p < STEP; p++, a += STRIP_ROWS, b += PANEL) {
            __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + VL);
#pragma GCC unroll 12
            for (size_t i = 0; i < STRIP_ROWS; i++) {
                __m512 x = _mm512_set1_ps(a[i]);
                sum[i][0] = _mm512_fmadd_ps(x, b0, sum[i][0]);
                sum[i][1] = _mm512_fmadd_ps(x, b1, sum[i][1]);
            }
        }
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < STRIP_ROWS; i++) {
        _mm512_storeu_ps(to.at + i * to.ld, sum[i][0]);
        _mm512_storeu_ps(to.at + i * to.ld + VL, sum[i][1]);
    }
}
