/* Gradients of weights in bf16: dw [m, n] = or += a^T b, of a [k, m] and b [k, n].
 *
 * STRIP_ROWS rows by PANEL columns stay in registers over all of k. b is packed before, a panel after the other, as
 * pairs (kernels_attention_bf16_body.h, whose helpers are used here), zero beyond k and n. a is transposed here,
 * BLOCK_ROWS rows of dw at a time, so that they stay in the second-level cache over all panels. Every element is a sum
 * over k in order, begun with what was there: its bits depend on nothing beside it.
 */
#define STRIP_ROWS ((size_t)6)
#define BLOCK_ROWS ((size_t)SHORE__WEIGHT_GRADIENT_ROWS)
#define PANEL ((size_t)SHORE__WEIGHT_GRADIENT_PANEL)

/* transpose() takes 16 pairs of rows at a time. */
INLINE size_t whole_k(size_t k) {
    return up_to(k, 32);
}
/* Rows of turned a lie so far apart; not a power of 2, so that they fall into different sets of the cache. */
INLINE size_t turned_ld(size_t k) {
    return whole_k(k) + 32;
}

static size_t k_weight_gradient_scratch(size_t k) {
    return BLOCK_ROWS * turned_ld(k) * sizeof(uint16_t);
}
static size_t k_weight_gradient_packed(size_t k, size_t n) {
    return up_to(n, PANEL) * whole_k(k) * sizeof(uint16_t);
}

/* 16 columns of rows r and r + 1 as pairs; zero where there is no row or column. */
INLINE __m512i pairs_of(const uint16_t *src, size_t ld, size_t r, size_t rows, size_t columns) {
    __mmask16 some = (__mmask16)((1u << least(16, columns)) - 1);
    __m256i low = _mm256_maskz_loadu_epi16(r < rows ? some : 0, src + r * ld);
    __m256i high = _mm256_maskz_loadu_epi16(r + 1 < rows ? some : 0, src + (r + 1) * ld);
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}

static void k_weight_gradient_pack(void *packed, const void *b, size_t k, size_t n, size_t begin, size_t end) {
    const uint16_t *src = b;
    for (size_t j = begin; j < end; j += 16) {
        uint16_t *dst = (uint16_t *)packed + j / PANEL * PANEL * whole_k(k) + j % PANEL * 2;
        for (size_t r = 0; r < whole_k(k); r += 2)
            _mm512_storeu_si512(dst + r * PANEL, pairs_of(src + j, n, r, k, n - j));
    }
}

/* dst [rows, turned_ld(k)] = the transpose of src [k, rows]; rows up to a multiple of STRIP_ROWS are zero. */
static void turn(uint16_t *dst, const uint16_t *src, size_t ld, size_t k, size_t rows) {
    for (size_t m = 0; m < up_to(rows, STRIP_ROWS); m += 16)
        for (size_t r = 0; r < whole_k(k); r += 32) {
            __m512i pairs[16];
#pragma GCC unroll 16
            for (size_t i = 0; i < 16; i++)
                pairs[i] = pairs_of(src + m, ld, r + 2 * i, k, m < rows ? rows - m : 0);
            transpose(pairs);
#pragma GCC unroll 16
            for (size_t i = 0; i < 16; i++)
                _mm512_storeu_si512(dst + (m + i) * turned_ld(k) + r, pairs[i]);
        }
}

/* One strip and panel: c = or += a b. next: what comes after, on its way while this one is computed; or NULL. */
INLINE void strip_of_panel(float *c, size_t ldc, const uint16_t *a, const uint16_t *b, size_t k, bool add,
                           const float *next) {
    __m512 sum[STRIP_ROWS][PANEL / 16];
    for (size_t i = 0; i < STRIP_ROWS; i++)
        for (size_t v = 0; v < PANEL / 16; v++)
            sum[i][v] = add ? _mm512_loadu_ps(c + i * ldc + 16 * v) : _mm512_setzero_ps();
    for (size_t i = 0; next && i < STRIP_ROWS; i++)
        for (size_t v = 0; v < PANEL / 16; v++)
            _mm_prefetch((const char *)(next + i * ldc + 16 * v), _MM_HINT_T0);
    for (size_t r = 0; r < whole_k(k); r += 2) {
        __m512bh row[PANEL / 16];
#pragma GCC unroll 4
        for (size_t v = 0; v < PANEL / 16; v++)
            row[v] = (__m512bh)_mm512_loadu_si512(b + r * PANEL + 32 * v);
#pragma GCC unroll 6
        for (size_t i = 0; i < STRIP_ROWS; i++) {
            int32_t pair;
            memcpy(&pair, a + i * turned_ld(k) + r, sizeof pair);
#pragma GCC unroll 4
            for (size_t v = 0; v < PANEL / 16; v++)
                sum[i][v] = _mm512_dpbf16_ps(sum[i][v], row[v], (__m512bh)_mm512_set1_epi32(pair));
        }
    }
    for (size_t i = 0; i < STRIP_ROWS; i++)
        for (size_t v = 0; v < PANEL / 16; v++)
            _mm512_storeu_ps(c + i * ldc + 16 * v, sum[i][v]);
}

/* The same where rows or columns are missing. */
static void part_of_panel(float *c, size_t ldc, const uint16_t *a, const uint16_t *b, size_t k, bool add, size_t rows,
                          size_t columns) {
    float whole[STRIP_ROWS * PANEL] = {0};
    for (size_t i = 0; add && i < rows; i++)
        memcpy(whole + i * PANEL, c + i * ldc, columns * sizeof *c);
    strip_of_panel(whole, PANEL, a, b, k, add, NULL);
    for (size_t i = 0; i < rows; i++)
        memcpy(c + i * ldc, whole + i * PANEL, columns * sizeof *c);
}

static void k_weight_gradient(const struct shore__weight_gradient_job *job, void *scratch) {
    size_t k = job->k, n = job->n, rows = job->row_end - job->row_begin;
    turn(scratch, (const uint16_t *)job->a + job->row_begin, job->m, k, rows);
    for (size_t j = job->column_begin; j < job->column_end; j += PANEL) {
        const uint16_t *b = (const uint16_t *)job->packed_b + j * whole_k(k);
        size_t columns = least(PANEL, job->column_end - j);
        for (size_t r = 0; r < rows; r += STRIP_ROWS) {
            const uint16_t *a = (const uint16_t *)scratch + r * turned_ld(k);
            float *c = job->dw + (job->row_begin + r) * n + j;
            if (columns == PANEL && rows - r >= STRIP_ROWS)
                strip_of_panel(c, n, a, b, k, job->add, j + 2 * PANEL <= job->column_end ? c + PANEL : NULL);
            else
                part_of_panel(c, n, a, b, k, job->add, least(STRIP_ROWS, rows - r), columns);
        }
    }
}
