/* Products in fp32 for AVX2: c [m, n] = a [m, k] b [k, n] (+ bias) or c += a b.
 *
 * STRIP_ROWS rows by PANEL columns stay in registers over a span of k. A job packs its rows' span of a, strip by strip,
 * which stays in the second-level cache over all panels. Then it packs the panels of b one by one, each of which stays
 * in the first-level cache over all strips. Both are then read in order, wherever a and b lie. Every element is a sum
 * of sums over the spans, each in order, to which bias or the old value is added: its bits depend on nothing beside
 * it. */
#define STRIP_ROWS ((size_t)6)
#define PANEL ((size_t)16)
#define SPAN ((size_t)256)
#define JOB_ROWS (43 * STRIP_ROWS)
/* Space between strips: a vector stored at the start of a strip's row reaches beyond it. */
#define STRIP_SIZE (SPAN * STRIP_ROWS + VL)

static size_t product_scratch(size_t k) {
    return (SPAN * PANEL + JOB_ROWS / STRIP_ROWS * STRIP_SIZE) * sizeof(float);
}

/* Transposes a square of 8 by 8. */
INLINE void transpose(vf row[VL]) {
    __m256 pair[VL], quad[VL];
#pragma GCC unroll 4
    for (int i = 0; i < VL; i += 2) {
        pair[i] = _mm256_unpacklo_ps((__m256)row[i], (__m256)row[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps((__m256)row[i], (__m256)row[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < VL; i += 4) {
        quad[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
        quad[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xEE);
        quad[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
        quad[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xEE);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        row[i] = (vf)_mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20);
        row[i + 4] = (vf)_mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31);
    }
}

/* Lays out `width` columns (at most a vector) of dst [depth, ld] from src [depth, src_ld], or, if transposed, from the
 * rows of src [width, src_ld], which may be read up to `end`. Rows of dst are whole vectors, written in order, each
 * over the end of the previous one; if transposed, whole squares. */
INLINE void lay_out(float *dst, size_t ld, const float *src, size_t src_ld, bool transposed, size_t width, size_t depth,
                    size_t end) {
    if (!transposed) {
        for (size_t p = 0; p < depth; p++)
            put(dst, p * ld, VL, get(src, p * src_ld, width, SHORE__F32), SHORE__F32);
        return;
    }
    for (size_t p = 0; p < depth; p += VL) {
        vf square[VL];
#pragma GCC unroll 8
        for (size_t i = 0; i < VL; i++)
            square[i] = i < width ? get(src, i * src_ld + p, left(p, end), SHORE__F32) : splat(0.0f);
        transpose(square);
#pragma GCC unroll 8
        for (size_t i = 0; i < VL; i++)
            put(dst, (p + i) * ld, VL, square[i], SHORE__F32);
    }
}

/* A span of k. All spans have the same length. */
struct span {
    size_t begin, depth;
    bool first, last;
};
static struct span span_at(const struct shore__product_job *job, size_t begin) {
    size_t spans = (job->k + SPAN - 1) / SPAN, depth = spans ? up_to((job->k + spans - 1) / spans, VL) : 0;
    return (struct span){begin, least(depth, job->k - begin), begin == 0, begin + depth >= job->k};
}

static void pack_strips(float *dst, const struct shore__product_job *job, struct span span) {
    const float *a = job->a;
    /* Each row of a transposed a is in its own pages: take a few at a time, over all strips. */
    size_t few = job->a_transposed ? 32 : SPAN;
    for (size_t p = 0; p < span.depth; p += few)
        for (size_t row = job->row_begin, strip = 0; row < job->row_end; row += STRIP_ROWS, strip += STRIP_SIZE) {
            size_t k = span.begin + p, depth = least(few, span.depth - p), there = job->m - row;
            float *to = dst + strip + p * STRIP_ROWS;
            if (job->a_transposed)
                lay_out(to, STRIP_ROWS, a + k * job->m + row, job->m, false, there, depth, 0);
            else
                lay_out(to, STRIP_ROWS, a + row * job->k + k, job->k, true, least(STRIP_ROWS, there), depth,
                        job->k - k);
        }
}

/* Behind column n, the rest of the panel keeps its old values: sums with them are not stored. */
static void pack_panel(float *dst, const struct shore__product_job *job, size_t j, struct span span) {
    const float *b = job->b;
    size_t k = span.begin;
    for (size_t v = 0; v < PANEL && j + v < job->n; v += VL)
        if (job->b_transposed)
            lay_out(dst + v, PANEL, b + (j + v) * job->k + k, job->k, true, left(j + v, job->n), span.depth,
                    job->k - k);
        else
            lay_out(dst + v, PANEL, b + k * job->n + j + v, job->n, false, left(j + v, job->n), span.depth, 0);
}

/* `count` columns from j of a row of c. */
INLINE void put_sum(const struct shore__product_job *job, float *c, size_t j, size_t count, vf sum, struct span span) {
    if (!span.first || job->accumulate) sum = sum + get(c, 0, count, SHORE__F32);
    if (span.last && job->bias) sum = sum + get(job->bias, j, count, SHORE__F32);
    put(c, 0, count, sum, span.last ? job->c_mode : SHORE__F32);
}

/* `rows` rows of c, from `first`, by the columns of a panel from j. */
static void strip_of_panel(const struct shore__product_job *job, size_t first, size_t rows, size_t j,
                           const float *strip, const float *panel, struct span span) {
    float *c = (float *)job->c + first * job->n + j;
    size_t columns = least(PANEL, job->n - j);
    vf sum[STRIP_ROWS][2];
#pragma GCC unroll 6
    for (size_t i = 0; i < STRIP_ROWS; i++) {
        sum[i][0] = sum[i][1] = splat(0.0f);
        __builtin_prefetch(c + i * job->n, 1);
    }
#pragma GCC unroll 4
    for (size_t p = 0; p < span.depth; p++) {
        vf b0 = get(panel, p * PANEL, VL, SHORE__F32), b1 = get(panel, p * PANEL + VL, VL, SHORE__F32);
#pragma GCC unroll 6
        for (size_t i = 0; i < STRIP_ROWS; i++) {
            vf x = splat(strip[p * STRIP_ROWS + i]);
            sum[i][0] = FMA(x, b0, sum[i][0]);
            sum[i][1] = FMA(x, b1, sum[i][1]);
        }
    }
    bool whole = rows == STRIP_ROWS && columns == PANEL;
#pragma GCC unroll 6
    for (size_t i = 0; i < STRIP_ROWS; i++)
#pragma GCC unroll 2
        for (size_t v = 0; v < PANEL; v += VL) {
            float *to = c + i * job->n + v;
            if (whole)
                put_sum(job, to, j + v, VL, sum[i][v / VL], span);
            else if (i < rows && v < columns)
                put_sum(job, to, j + v, left(v, columns), sum[i][v / VL], span);
        }
}

/* Prefetches part `self` of `parts` of a block's rows into the second-level cache. The block may be out of bounds,
 * since a prefetch does not fault. */
INLINE void fetch(const float *block, size_t ld, size_t rows, size_t columns, size_t self, size_t parts) {
    for (size_t r = rows * self / parts; r < rows * (self + 1) / parts; r++)
        for (size_t j = 0; j < columns; j += 16)
            _mm_prefetch((const char *)(block + r * ld + j), _MM_HINT_T1);
}
INLINE void fetch_panel(const struct shore__product_job *job, size_t j, struct span span, size_t self, size_t parts) {
    const float *b = job->b;
    if (job->b_transposed)
        fetch(b + j * job->k + span.begin, job->k, PANEL, span.depth, self, parts);
    else
        fetch(b + span.begin * job->n + j, job->n, span.depth, PANEL, self, parts);
}
INLINE void fetch_rows(const struct shore__product_job *job, struct span span, size_t self, size_t parts) {
    const float *a = job->a;
    size_t rows = job->row_end - job->row_begin;
    if (job->a_transposed)
        fetch(a + span.begin * job->m + job->row_begin, job->m, span.depth, rows, self, parts);
    else
        fetch(a + job->row_begin * job->k + span.begin, job->k, rows, span.depth, self, parts);
}

static void product_run(const struct shore__product_job *job, void *scratch) {
    float *panel = scratch, *strips = panel + SPAN * PANEL;
    size_t count = (job->row_end - job->row_begin + STRIP_ROWS - 1) / STRIP_ROWS;
    for (struct span span = span_at(job, 0);; span = span_at(job, span.begin + span.depth)) {
        struct span next = span_at(job, span.begin + (span.last ? 0 : span.depth));
        pack_strips(strips, job, span);
        for (size_t j = job->column_begin; j < job->column_end; j += PANEL) {
            bool more = j + PANEL < job->column_end;
            pack_panel(panel, job, j, span);
            for (size_t s = 0, row = job->row_begin; s < count; s++, row += STRIP_ROWS) {
                if (more)
                    fetch_panel(job, j + PANEL, span, s, count);
                else if (!span.last) {
                    fetch_panel(job, job->column_begin, next, s, count);
                    fetch_rows(job, next, s, count);
                }
                strip_of_panel(job, row, least(STRIP_ROWS, job->row_end - row), j, strips + s * STRIP_SIZE, panel,
                               span);
            }
        }
        if (span.last) return;
    }
}

static struct shore__job_size job_size(size_t k, bool a_transposed) {
    return (struct shore__job_size){.rows = JOB_ROWS, .jobs = 2};
}

static const struct shore__product_kernel k_product = {
    .strip = STRIP_ROWS,
    .panel = PANEL,
    .job_size = job_size,
    .scratch = product_scratch,
    .run = product_run,
};
#define PRODUCT k_product
