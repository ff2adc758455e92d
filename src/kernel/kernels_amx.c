/* The kernels for AVX-512 with AVX512_BF16, attention and products on AMX tiles. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernel/kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,amx-tile,amx-bf16,prefer-vector-width=512")
#define NARROW(x) ((vh)_mm512_cvtneps_pbh((__m512)(x)))
#define KERNELS shore__kernels_amx
#include "kernel/kernels_avx512_body.h"

static void products_begin(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int t = 0; t < 8; t++) {
        config.row_bytes[t] = 64;
        config.rows[t] = 16;
    }
    _tile_loadconfig(&config);
}

static void products_end(void) {
    _tile_release();
}

/* gcc does not know that tile loads read memory: earlier stores must be there first. */
#define AFTER_STORES() __asm__ volatile("" ::: "memory")

/* 32 products at a time. */
static void product(float *c, size_t ldc, const uint16_t *a, size_t lda, const uint16_t *b, size_t ldb, size_t m,
                    size_t n, size_t from, size_t to, bool accumulate) {
    AFTER_STORES();
    for (size_t j = 0; j < n; j += 32)
        for (size_t r = 0; r < m; r += 32) {
            float *c0 = c + r * ldc + j, *c1 = c0 + 16 * ldc;
            if (accumulate) {
                _tile_loadd(0, c0, ldc * 4);
                _tile_loadd(1, c0 + 16, ldc * 4);
                _tile_loadd(2, c1, ldc * 4);
                _tile_loadd(3, c1 + 16, ldc * 4);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            for (size_t k = from; k < to; k += 32) {
                const uint16_t *a0 = a + r * lda + k, *b0 = b + k / 2 * ldb + j * 2;
                _tile_loadd(4, a0, lda * 2);
                _tile_loadd(6, b0, ldb * 2);
                _tile_loadd(7, b0 + 32, ldb * 2);
                _tile_dpbf16ps(0, 4, 6);
                _tile_loadd(5, a0 + 16 * lda, lda * 2);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, c0, ldc * 4);
            _tile_stored(1, c0 + 16, ldc * 4);
            _tile_stored(2, c1, ldc * 4);
            _tile_stored(3, c1 + 16, ldc * 4);
        }
}

#include "kernel/kernels_pairs_body.h"

#include "kernel/kernels_attention_bf16_body.h"
#include "kernel/kernels_element_body.h"
#include "kernel/kernels_product_amx_body.h"
#include "kernel/kernels_row_body.h"
#include "kernel/kernels_table_body.h"
#endif
