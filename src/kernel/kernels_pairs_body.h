/* Transposes squares, and arranges operands as pairs, for AVX-512: the form of a right operand in bf16, with element
 * (k, j) at [k / 2][j][k % 2]. */
/* 16 by 16 elements of 32 bits. */
INLINE void transpose(__m512i row[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        row[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        row[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        row[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        row[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i even0 = _mm512_shuffle_i32x4(row[i], row[i + 4], 0x88);
        __m512i odd0 = _mm512_shuffle_i32x4(row[i], row[i + 4], 0xDD);
        __m512i even1 = _mm512_shuffle_i32x4(row[i + 8], row[i + 12], 0x88);
        __m512i odd1 = _mm512_shuffle_i32x4(row[i + 8], row[i + 12], 0xDD);
        row[i] = _mm512_shuffle_i32x4(even0, even1, 0x88);
        row[i + 4] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
        row[i + 8] = _mm512_shuffle_i32x4(even0, even1, 0xDD);
        row[i + 12] = _mm512_shuffle_i32x4(odd0, odd1, 0xDD);
    }
}

/* 16 columns of rows r and r + 1 as pairs; zero where there is no row or column. */
INLINE __m512i pairs_of(const uint16_t *src, size_t ld, size_t r, size_t rows, size_t columns) {
    __mmask16 some = (__mmask16)((1u << least(16, columns)) - 1);
    __m256i low = _mm256_maskz_loadu_epi16(r < rows ? some : 0, src + r * ld);
    __m256i high = _mm256_maskz_loadu_epi16(r + 1 < rows ? some : 0, src + (r + 1) * ld);
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}
/* The same of src's transpose [k, n]: pairs[i] are its rows r + 2 i and r + 2 i + 1. */
INLINE void pairs_of_transposed(__m512i pairs[16], const uint16_t *src, size_t ld, size_t r, size_t rows,
                                size_t columns) {
    __mmask32 some = (__mmask32)((1ull << least(32, rows - r)) - 1);
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; i++)
        pairs[i] = _mm512_maskz_loadu_epi16(i < columns ? some : 0, src + i * ld + r);
    transpose(pairs);
}
