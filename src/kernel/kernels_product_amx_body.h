/* Products in bf16 on AMX tiles (kernels_product_strips_body.h).
 *
 * A tile is 16 rows of 32 elements of k (a), or 16 pairs of rows of k by 16 columns (b, kernels_pairs_body.h): 1 KiB,
 * laid out in consecutive lines. A step of a strip or a panel is two tiles; a block of sums is four. Tiles multiply ten
 * times as fast as vectors, so only moving operands is left to improve. */
#define WIDENS false
#define TILE ((size_t)16)
#define STEP ((size_t)32)
#define STRIP_ROWS (2 * TILE)
#define PANEL (2 * TILE)
#define SPAN ((size_t)256)
#define STRIPS_BYTES ((size_t)1 << 20)
#define MOST_STRIPS ((size_t)16)
typedef uint16_t operand;

INLINE void put_tile(uint16_t *tile, const __m512i line[TILE]) {
#pragma GCC unroll 16
    for (size_t i = 0; i < TILE; i++)
        _mm512_store_si512(tile + i * STEP, line[i]);
}

/* Rows r .. r + STEP - 1 of b, columns j .. j + PANEL - 1. */
INLINE void pack_step(uint16_t *to, const uint16_t *b, enum shore__mode mode, bool transposed, size_t k, size_t n,
                      size_t r, size_t j) {
    for (size_t t = 0; t < PANEL; t += TILE) {
        size_t columns = j + t < n ? n - j - t : 0;
        __m512i pairs[TILE];
        if (transposed)
            pairs_of_transposed(pairs, b + (j + t) * k, k, r, k, columns);
        else
#pragma GCC unroll 16
            for (size_t i = 0; i < TILE; i++)
                pairs[i] = pairs_of(b + j + t, n, r + 2 * i, k, columns);
        put_tile(to + t * STEP, pairs);
    }
}
/* A strip of rows of a from `first`, columns r .. r + STEP - 1. */
INLINE void lay_step(uint16_t *to, const struct shore__product_job *job, enum shore__mode mode, bool transposed,
                     size_t first, size_t r) {
    const uint16_t *a = job->a;
    for (size_t t = 0; t < STRIP_ROWS; t += TILE) {
        size_t row = first + t, rows = row < job->row_end ? job->row_end - row : 0;
        __m512i line[TILE];
        if (transposed) {
#pragma GCC unroll 16
            for (size_t i = 0; i < TILE; i++)
                line[i] = pairs_of(a + row, job->m, r + 2 * i, job->k, rows);
            transpose(line);
        } else {
            __mmask32 some = (__mmask32)((1ull << least(STEP, job->k - r)) - 1);
#pragma GCC unroll 16
            for (size_t i = 0; i < TILE; i++)
                line[i] = _mm512_maskz_loadu_epi16(i < rows ? some : 0, a + (row + i) * job->k + r);
        }
        put_tile(to + t * STEP, line);
    }
}
#include "kernel/kernels_product_strips_body.h"

INLINE void strip_by_panel(struct sums to, struct sums from, const operand *a, const operand *b, size_t steps,
                           struct ahead ahead) {
    AFTER_STORES();
    if (from.at) {
        _tile_loadd(0, from.at, from.ld * sizeof(float));
        _tile_loadd(1, from.at + TILE, from.ld * sizeof(float));
        _tile_loadd(2, from.at + TILE * from.ld, from.ld * sizeof(float));
        _tile_loadd(3, from.at + TILE * from.ld + TILE, from.ld * sizeof(float));
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t s = 0; s < steps; s++, a += 2 * TILE * STEP, b += 2 * TILE * STEP) {
        fetch(&ahead);
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + TILE * STEP, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a + TILE * STEP, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, to.at, to.ld * sizeof(float));
    _tile_stored(1, to.at + TILE, to.ld * sizeof(float));
    _tile_stored(2, to.at + TILE * to.ld, to.ld * sizeof(float));
    _tile_stored(3, to.at + TILE * to.ld + TILE, to.ld * sizeof(float));
}
