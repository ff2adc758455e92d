/* Products in bf16 for AVX512_BF16: c [m, n] = a [m, k] b [k, n] (+ bias) or c += a b.
 *
 * STRIP_ROWS rows by PANEL columns stay in registers over all of k. b is packed in advance, panel by panel, as pairs
 * (kernels_pairs_body.h), with zeros beyond k and n. a is read in place if its pairs lie so. Otherwise the rows of a
 * job are transposed here, and stay in the second-level cache over all panels. Every element is a sum over k in order,
 * to which bias or the old value is added: its bits depend on nothing beside it. (oneDNN's kernel for this processor
 * adds sums over spans of k, which gives other bits from some hundreds on.) */
#define STRIP_ROWS ((size_t)6)
#define STRIP_VECTORS (PANEL / 16)
#define PANEL ((size_t)64)
#define JOB_ROWS (8 * STRIP_ROWS)

/* transpose() takes 16 pairs of rows at a time. */
INLINE size_t whole_k(size_t k) {
    return up_to(k, 32);
}
/* Distance between rows of transposed a. It is not a power of 2, so that they fall into different sets of the cache. */
INLINE size_t turned_ld(size_t k) {
    return whole_k(k) + 32;
}

static size_t product_scratch(size_t k) {
    return up_to(JOB_ROWS, 16) * turned_ld(k) * sizeof(uint16_t);
}
static size_t product_packed(size_t k, size_t n) {
    return up_to(n, PANEL) * whole_k(k) * sizeof(uint16_t);
}

static void product_pack(void *packed, const void *b, enum shore__mode mode, bool transposed, size_t k, size_t n,
                         size_t begin, size_t end) {
    const uint16_t *src = b;
    for (size_t j = begin; j < end; j += 16) {
        uint16_t *dst = (uint16_t *)packed + j / PANEL * PANEL * whole_k(k) + j % PANEL * 2;
        for (size_t r = 0; r < k; r += 32) {
            __m512i pairs[16];
            if (transposed) pairs_of_transposed(pairs, src + j * k, k, r, k, n - j);
#pragma GCC unroll 16
            for (size_t i = 0; i < 16; i++)
                _mm512_storeu_si512(dst + (r + 2 * i) * PANEL,
                                    transposed ? pairs[i] : pairs_of(src + j, n, r + 2 * i, k, n - j));
        }
    }
}

/* dst [rows, turned_ld(k)] = the transpose of src [k, rows]. */
static void turn(uint16_t *dst, const uint16_t *src, size_t ld, size_t k, size_t rows) {
    for (size_t m = 0; m < rows; m += 16)
        for (size_t r = 0; r < k; r += 32) {
            __m512i pairs[16];
#pragma GCC unroll 16
            for (size_t i = 0; i < 16; i++)
                pairs[i] = pairs_of(src + m, ld, r + 2 * i, k, rows - m);
            transpose(pairs);
#pragma GCC unroll 16
            for (size_t i = 0; i < 16; i++)
                _mm512_storeu_si512(dst + (m + i) * turned_ld(k) + r, pairs[i]);
        }
}
/* dst [rows, turned_ld(k)] = src [rows, k], with a zero at its end: for an odd k. */
static void lay(uint16_t *dst, const uint16_t *src, size_t k, size_t rows) {
    for (size_t r = 0; r < rows; r++) {
        memcpy(dst + r * turned_ld(k), src + r * k, k * sizeof *dst);
        dst[r * turned_ld(k) + k] = 0;
    }
}

/* 16 columns from j of a row of c. */
INLINE void put_sum(const struct shore__product_job *job, size_t row, size_t j, __m512 sum) {
    __mmask16 some = (__mmask16)((1u << least(16, job->n - j)) - 1);
    bool all = job->n - j >= 16;
    if (job->bias) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(some, job->bias + j));
    if (job->c_mode != SHORE__F32) {
        uint16_t *c = (uint16_t *)job->c + row * job->n + j;
        __m256i narrow = (__m256i)_mm512_cvtneps_pbh(sum);
        if (all)
            _mm256_storeu_si256((void *)c, narrow);
        else
            _mm256_mask_storeu_epi16(c, some, narrow);
        return;
    }
    float *c = (float *)job->c + row * job->n + j;
    if (job->accumulate) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(some, c));
    if (all)
        _mm512_storeu_ps(c, sum);
    else
        _mm512_mask_storeu_ps(c, some, sum);
}

/* Memory needed after a strip, one line per step over k, prefetched into the second-level cache meanwhile. It may be
 * out of bounds, since a prefetch does not fault. */
struct ahead {
    const char *line;
    size_t stride;
};
INLINE struct ahead ahead_of(const struct shore__product_job *job, size_t j, size_t strip) {
    const uint16_t *a = job->a, *b = job->b, *line = b;
    size_t steps = (job->k + 1) / 2, stride = 0;
    if (strip < STRIP_VECTORS && (j + PANEL < job->n || !job->a_transposed)) {
        /* the next panel, or the rows that follow */
        line = j + PANEL < job->n ? b + (j + PANEL) * whole_k(job->k) : a + job->row_end * job->k;
        line += strip * steps * 32;
        stride = 64;
    } else if (strip >= STRIP_VECTORS && job->a_transposed && j + 2 * PANEL >= job->column_end) {
        /* whole lines of the rows to be turned next, by two threads: half of k during each of the last two panels */
        size_t from = j + PANEL < job->column_end ? 0 : job->k / 2;
        line = a + from * job->m + job->row_end + (strip - STRIP_VECTORS) * 32;
        stride = job->m * sizeof *a;
    }
    return (struct ahead){(const char *)line, stride};
}

/* `rows` rows of c, from `first`, by the columns of a panel from j. */
static void strip_of_panel(const struct shore__product_job *job, size_t first, size_t rows, size_t j, const uint16_t *a,
                           size_t lda, struct ahead ahead) {
    const uint16_t *b = (const uint16_t *)job->b + j * whole_k(job->k), *row[STRIP_ROWS];
    size_t element = job->c_mode == SHORE__F32 ? sizeof(float) : sizeof(uint16_t);
    __m512 sum[STRIP_ROWS][STRIP_VECTORS];
#pragma GCC unroll 6
    for (size_t i = 0; i < STRIP_ROWS; i++) {
        row[i] = a + (i < rows ? i : 0) * lda;
        for (size_t v = 0; v < STRIP_VECTORS; v++)
            sum[i][v] = _mm512_setzero_ps();
        /* Prefetch for writing: stores that wait for their lines at the end would hold up the next strip. */
        char *c = (char *)job->c + ((first + i) * job->n + j) * element;
        for (size_t line = 0; line < PANEL * element; line += 64)
            __builtin_prefetch(c + line, 1);
    }
    for (size_t r = 0; r < job->k; r += 2) {
        __m512bh panel[STRIP_VECTORS];
#pragma GCC unroll 4
        for (size_t v = 0; v < STRIP_VECTORS; v++)
            panel[v] = (__m512bh)_mm512_loadu_si512(b + r * PANEL + 32 * v);
        _mm_prefetch(ahead.line, _MM_HINT_T1);
        ahead.line += ahead.stride;
#pragma GCC unroll 6
        for (size_t i = 0; i < STRIP_ROWS; i++) {
            int32_t pair;
            memcpy(&pair, row[i] + r, sizeof pair);
#pragma GCC unroll 4
            for (size_t v = 0; v < STRIP_VECTORS; v++)
                sum[i][v] = _mm512_dpbf16_ps(sum[i][v], panel[v], (__m512bh)_mm512_set1_epi32(pair));
        }
    }
#pragma GCC unroll 6
    for (size_t i = 0; i < STRIP_ROWS; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < STRIP_VECTORS; v++)
            if (i < rows && j + 16 * v < job->n) put_sum(job, first + i, j + 16 * v, sum[i][v]);
}

static void product_run(const struct shore__product_job *job, void *scratch) {
    size_t rows = job->row_end - job->row_begin, lda = turned_ld(job->k);
    const uint16_t *a = job->a;
    if (job->a_transposed) {
        turn(scratch, a + job->row_begin, job->m, job->k, rows);
        a = scratch;
    } else if (job->k % 2) {
        lay(scratch, a + job->row_begin * job->k, job->k, rows);
        a = scratch;
    } else {
        a += job->row_begin * job->k;
        lda = job->k;
    }
    for (size_t j = job->column_begin; j < job->column_end; j += PANEL)
        for (size_t r = 0; r < rows; r += STRIP_ROWS)
            strip_of_panel(job, job->row_begin + r, least(STRIP_ROWS, rows - r), j, a + r * lda, lda,
                           ahead_of(job, j, r / STRIP_ROWS));
}

/* Small jobs leave less to wait for at the end. But half as many rows to transpose would take half lines of a, and more
 * groups of columns would transpose them again. */
static struct shore__job_size job_size(size_t k, bool a_transposed) {
    return a_transposed ? (struct shore__job_size){.rows = JOB_ROWS, .jobs = 2}
                        : (struct shore__job_size){.rows = JOB_ROWS / 2, .jobs = 64};
}

static const struct shore__product_kernel k_product = {
    .strip = STRIP_ROWS,
    .panel = PANEL,
    .job_size = job_size,
    .scratch = product_scratch,
    .packed = product_packed,
    .pack = product_pack,
    .run = product_run,
};
#define PRODUCT k_product
