/* Attention in bf16, for SHORE__BF16 alone.
 *
 * The blocks are those of kernels_attention_body.h: 128 queries against the 128 keys at a multiple of 128 positions.
 * Operands of products are bf16: the activations as they are, and the probabilities and their gradients rounded. Sums,
 * softmax and the state between blocks are fp32. Products are added in a fixed order, and those of unseen keys are
 * exact zeros, so a query's result does not depend on the queries beside it.
 *
 * The including file defines how to multiply:
 *   products_begin(), products_end(): around all products of a job;
 *   product(c, ldc, a, lda, b, ldb, m, n, from, to, accumulate): c [m, n] fp32 = (or +=) a [m, k] b [k, n] (pairs:
 *   kernels_pairs_body.h), for k from `from` to `to`; m, n, from, to multiples of 32.
 *
 * Backward works on transposed scores (keys by queries). P and dS are then left operands of the gradients of values and
 * keys, and, in pairs, the right operand of the gradient of queries.
 */
#define BLOCK ((size_t)128)
#define STRIP ((size_t)32) /* rows of scores that stay in the first-level cache */
#define LOG2E 1.44269504088896341f
#define LN2 0.693147180559945309f

/* ---- packing ---- */

/* dst [padded, wide] = src, zeros around. */
static void pack(uint16_t *dst, size_t wide, const uint16_t *src, size_t ld, size_t rows, size_t padded, size_t n) {
    for (size_t j = 0; j < wide; j += 32) {
        __mmask32 mask = (__mmask32)((1ull << least(32, n - j)) - 1);
        for (size_t r = 0; r < rows; r++)
            _mm512_storeu_si512(dst + r * wide + j, _mm512_maskz_loadu_epi16(mask, src + r * ld + j));
    }
    memset(dst + rows * wide, 0, (padded - rows) * wide * sizeof *dst);
}
/* dst: pairs [rows / 2][wide][2] of src [rows, wide], a right operand with the rows as its k. */
static void pair_rows(uint16_t *dst, const uint16_t *src, size_t rows, size_t wide) {
    for (size_t r = 0; r < rows; r += 2)
        for (size_t j = 0; j < wide; j += 16) {
            __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(src + r * wide + j)));
            __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(src + (r + 1) * wide + j)));
            _mm512_storeu_si512(dst + r * wide + j * 2, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
}
/* dst: pairs [wide / 2][BLOCK][2] of src [rows, wide], a right operand with the columns as its k. */
static void pair_columns(uint16_t *dst, const uint16_t *src, size_t rows, size_t wide) {
    for (size_t r = 0; r < rows; r += 16)
        for (size_t k = 0; k < wide; k += 32) {
            __m512i pairs[16];
#pragma GCC unroll 16
            for (size_t i = 0; i < 16; i++)
                pairs[i] = _mm512_loadu_si512(src + (r + i) * wide + k);
            transpose(pairs);
#pragma GCC unroll 16
            for (size_t i = 0; i < 16; i++)
                _mm512_storeu_si512(dst + (k + 2 * i) * BLOCK + r * 2, pairs[i]);
        }
}
/* dst [wide, BLOCK]: the transpose, from pairs of columns. */
static void unpair(uint16_t *dst, const uint16_t *pairs, size_t wide) {
    for (size_t k = 0; k < wide; k += 2)
        for (size_t j = 0; j < BLOCK; j += 16) {
            __m512i both = _mm512_loadu_si512(pairs + k * BLOCK + j * 2);
            _mm256_storeu_si256((void *)(dst + k * BLOCK + j), _mm512_cvtepi32_epi16(both));
            _mm256_storeu_si256((void *)(dst + (k + 1) * BLOCK + j),
                                _mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
        }
}

/* ---- arithmetic ---- */

/* 2^x for x <= 0: x = n + r, |r| <= 1/2, and the Taylor polynomial of degree 6 in r ln 2. Relative error below 2e-7.
 * Values below -127 count as -127. NaN stays NaN. */
INLINE __m512 exp2_f(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-127.0f), x);
    __m512 n = _mm512_roundscale_ps(x, 0), r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(1.5403530393e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3333558146e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.6181291076e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5504108665e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022650696e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314718056e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}
/* Caps scores that are not scaled yet (job->softcap): afterwards, scale makes cap tanh(scale s / cap) of them. */
INLINE void cap_scores(const struct shore__attention_job *job, float *s, size_t n) {
    if (job->softcap == 0.0f) return;
    float to = job->scale / job->softcap, back = job->softcap / job->scale;
    for (size_t j = 0; j < n; j += 16)
        put(s, j, VL, tanh_f(get(s, j, VL, SHORE__F32) * to) * back, SHORE__F32);
}
/* Lanes j of a vector at `at` with begin <= at + j < end. */
INLINE __mmask16 between(size_t at, size_t begin, size_t end) {
    uint32_t from = begin > at ? (begin - at < 16 ? (uint32_t)(begin - at) : 16) : 0;
    uint32_t to = end > at ? (end - at < 16 ? (uint32_t)(end - at) : 16) : 0;
    return to > from ? (__mmask16)(((1u << to) - 1) & ~((1u << from) - 1)) : 0;
}

struct scratch {
    uint16_t *k_pairs, *v_pairs; /* forward */
    uint16_t *k, *v, *k_columns; /* backward: rows, rows, transposed by blocks */
    uint16_t *q, *d, *q_pairs, *q_columns, *d_pairs, *d_columns, *p, *ds, *ds_pairs;
    float *dk, *dv, *dq, *s, *dp, *o, *row;
};
static size_t carve(struct scratch *t, char *base, size_t keys, size_t head_dim, bool backward) {
    size_t wide = up_to(head_dim, 32), all = up_to(keys, BLOCK), at = 0;
    memset(t, 0, sizeof *t);
#define TAKE(field, elems)                                                                    \
    do {                                                                                      \
        if (base) t->field = (void *)(base + at);                                             \
        at += up_to((elems) * sizeof *t->field, 64) + 64; /* staggered over the cache sets */ \
    } while (0)
    TAKE(row, 2 * BLOCK);
    TAKE(s, STRIP * BLOCK);
    TAKE(p, STRIP * BLOCK);
    TAKE(q, BLOCK * wide);
    TAKE(d, BLOCK * wide);
    if (backward) {
        TAKE(dp, STRIP * BLOCK);
        TAKE(ds, STRIP * BLOCK);
        TAKE(ds_pairs, BLOCK * BLOCK);
        TAKE(q_pairs, BLOCK * wide);
        TAKE(q_columns, BLOCK * wide);
        TAKE(d_pairs, BLOCK * wide);
        TAKE(d_columns, BLOCK * wide);
        TAKE(dq, BLOCK * wide);
        TAKE(k, all * wide);
        TAKE(v, all * wide);
        TAKE(k_columns, all * wide);
        TAKE(dk, all * wide);
        TAKE(dv, all * wide);
    } else {
        TAKE(o, BLOCK * wide);
        TAKE(k_pairs, all * wide);
        TAKE(v_pairs, all * wide);
    }
#undef TAKE
    return at;
}

static size_t k_attention_scratch(size_t keys, size_t head_dim, bool backward) {
    struct scratch t;
    return carve(&t, NULL, keys, head_dim, backward);
}

INLINE size_t oldest(const struct shore__attention_job *job, size_t position) {
    return job->window && position + 1 > job->window ? position + 1 - job->window : 0;
}
INLINE size_t clip(size_t position, size_t block, size_t n) {
    return position > block ? least(position - block, n) : 0;
}

/* ---- forward ---- */

/* Raises the maximum of a row of scores (in units of ln 2), and rescales its sum and o [wide]. whole: all columns
 * before `padded` count; otherwise only begin .. end - 1. */
INLINE void raise_maximum(const float *s, float *top, float *sum, float *o, size_t begin, size_t end, size_t padded,
                          bool whole, float scale, size_t wide) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (size_t j = 0; j < padded; j += 16)
        most = _mm512_mask_max_ps(most, whole ? 0xFFFF : between(j, begin, end), _mm512_loadu_ps(s + j), most);
    float max = _mm512_reduce_max_ps(most) * scale;
    if (*top >= max) return;
    float kept = *top == -INFINITY ? 0.0f : _mm512_cvtss_f32(exp2_f(_mm512_set1_ps(*top - max)));
    *sum *= kept;
    for (size_t j = 0; j < wide; j += 16)
        _mm512_storeu_ps(o + j, _mm512_mul_ps(_mm512_loadu_ps(o + j), _mm512_set1_ps(kept)));
    *top = max;
}
/* Computes a row's probabilities, and adds them to its sum. */
INLINE void exponentials(const float *s, uint16_t *p, float top, float *sum, size_t begin, size_t end, size_t padded,
                         bool whole, float scale) {
    __m512 total = _mm512_setzero_ps(), minus = _mm512_set1_ps(-top);
    for (size_t j = 0; j < padded; j += 16) {
        __m512 e = exp2_f(_mm512_fmadd_ps(_mm512_loadu_ps(s + j), _mm512_set1_ps(scale), minus));
        if (!whole) e = _mm512_maskz_mov_ps(between(j, begin, end), e);
        total = _mm512_add_ps(total, e);
        put(p, j, VL, (vf)e, SHORE__BF16);
    }
    *sum += _mm512_reduce_add_ps(total);
}

/* Turns a strip of scores into probabilities (bf16, in t->p). first: position of the strip's first query; at: its row
 * in the block. The maxima of all rows come first, since a row's exponentials wait for its maximum. */
INLINE void softmax_strip(const struct shore__attention_job *job, const struct scratch *t, size_t at, size_t rows,
                          size_t first, size_t block, size_t n, size_t wide) {
    size_t padded = up_to(n, 32), begin[STRIP], end[STRIP];
    float scale = job->scale * LOG2E, *top = t->row + at, *sum = top + BLOCK;
    for (size_t r = 0; r < rows; r++) {
        float *s = t->s + r * BLOCK, *o = t->o + (at + r) * wide;
        cap_scores(job, s, padded);
        begin[r] = clip(oldest(job, first + r), block, n);
        end[r] = clip(first + r + 1, block, n);
        if (begin[r] == 0 && end[r] == padded)
            raise_maximum(s, top + r, sum + r, o, 0, padded, padded, true, scale, wide);
        else if (begin[r] < end[r])
            raise_maximum(s, top + r, sum + r, o, begin[r], end[r], padded, false, scale, wide);
    }
    for (size_t r = 0; r < STRIP; r++) {
        const float *s = t->s + r * BLOCK;
        uint16_t *p = t->p + r * BLOCK;
        if (r >= rows || begin[r] >= end[r])
            memset(p, 0, padded * sizeof *p);
        else if (begin[r] == 0 && end[r] == padded)
            exponentials(s, p, top[r], sum + r, 0, padded, padded, true, scale);
        else
            exponentials(s, p, top[r], sum + r, begin[r], end[r], padded, false, scale);
    }
}

static void forward_block(const struct shore__attention_job *job, const struct scratch *t, size_t query, size_t rows,
                          size_t head, size_t wide) {
    const uint16_t *q = (const uint16_t *)job->q + query * job->q_ld + head * job->head_dim;
    uint16_t *out = (uint16_t *)job->out + query * job->out_ld + head * job->head_dim;
    size_t first = job->first + query, last = first + rows - 1;
    pack(t->q, wide, q, job->q_ld, rows, up_to(rows, STRIP), job->head_dim);
    memset(t->o, 0, BLOCK * wide * sizeof *t->o);
    for (size_t r = 0; r < BLOCK; r++) {
        /* a sink counts as a key that is seen already, whose value is zero */
        t->row[r] = job->sinks ? job->sinks[head] * LOG2E : -INFINITY;
        t->row[BLOCK + r] = job->sinks ? 1.0f : 0.0f;
    }
    for (size_t block = oldest(job, first) / BLOCK * BLOCK; block <= last; block += BLOCK)
        for (size_t at = 0; at < rows; at += STRIP) {
            size_t count = least(STRIP, rows - at);
            size_t n = clip(first + at + count, block, least(BLOCK, job->keys - block)), padded = up_to(n, 32);
            if (n == 0) continue;
            product(t->s, BLOCK, t->q + at * wide, wide, t->k_pairs + block * wide, 2 * BLOCK, STRIP, padded, 0, wide,
                    false);
            softmax_strip(job, t, at, count, first + at, block, n, wide);
            product(t->o + at * wide, wide, t->p, BLOCK, t->v_pairs + block * wide, 2 * wide, STRIP, wide, 0, padded,
                    true);
        }
    for (size_t r = 0; r < rows; r++) {
        float sum = t->row[BLOCK + r];
        for (size_t j = 0; j < job->head_dim; j += 16)
            put(out, r * job->out_ld + j, left(j, job->head_dim),
                (vf)_mm512_div_ps(_mm512_loadu_ps(t->o + r * wide + j), _mm512_set1_ps(sum)), SHORE__BF16);
        if (job->lse) job->lse[head * job->lse_stride + query + r] = t->row[r] * LN2 + logf(sum);
    }
}

static void k_attention(const struct shore__attention_job *job, void *scratch) {
    struct scratch t;
    size_t wide = up_to(job->head_dim, 32);
    carve(&t, scratch, job->keys, job->head_dim, false);
    for (size_t block = 0; block < job->keys; block += BLOCK) {
        size_t n = least(BLOCK, job->keys - block);
        pack(t.d, wide, (const uint16_t *)job->k + block * job->kv_ld, job->kv_ld, n, BLOCK, job->head_dim);
        pair_columns(t.k_pairs + block * wide, t.d, BLOCK, wide);
        pack(t.d, wide, (const uint16_t *)job->v + block * job->kv_ld, job->kv_ld, n, BLOCK, job->head_dim);
        pair_rows(t.v_pairs + block * wide, t.d, BLOCK, wide);
    }
    products_begin();
    for (size_t head = 0; head < job->heads; head++)
        for (size_t query = 0; query < job->queries; query += BLOCK)
            forward_block(job, &t, query, least(BLOCK, job->queries - query), head, wide);
    products_end();
}

/* ---- backward ---- */

/* P and dS of a strip of keys (rows of t->s and t->dp: transposed scores and dP) for all queries of the block. A single
 * key without a sink has P = 1 whatever its score is. Its dS would be rounding, which Adam would turn into a step. */
INLINE void softmax_backward_strip(const struct shore__attention_job *job, const struct scratch *t, size_t strip,
                                   size_t first, size_t rows, size_t block, size_t n, size_t padded) {
    const __m512 scale = _mm512_set1_ps(job->scale * LOG2E);
    const float to_tangent = job->softcap != 0.0f ? job->scale / job->softcap : 0.0f;
    for (size_t r = 0; r < STRIP; r++)
        cap_scores(job, t->s + r * BLOCK, padded);
    for (size_t r = 0; r < STRIP; r += 2)
        for (size_t j = 0; j < padded; j += 16) {
            __m512 ds[2];
            /* queries that see one key */
            unsigned alone = job->sinks ? 0 : job->window == 1 ? 0xFFFFu : first + j == 0;
            for (size_t i = 0; i < 2; i++) {
                size_t key = strip + r + i, at = (r + i) * BLOCK + j;
                size_t begin = clip(block + key, first, rows), end = key < n ? rows : 0;
                if (job->window && key < n) end = clip(block + key + job->window, first, rows);
                __mmask16 seen = between(j, begin, end);
                __m512 e = _mm512_fmadd_ps(_mm512_loadu_ps(t->s + at), scale, _mm512_loadu_ps(t->row + j));
                __m512 p = _mm512_maskz_mov_ps(seen, exp2_f(e));
                ds[i] = _mm512_maskz_mul_ps(
                    (__mmask16)(seen & ~alone), p,
                    _mm512_sub_ps(_mm512_loadu_ps(t->dp + at), _mm512_loadu_ps(t->row + BLOCK + j)));
                if (to_tangent != 0.0f) {
                    vf tangent = get(t->s, at, VL, SHORE__F32) * to_tangent;
                    ds[i] = _mm512_maskz_mul_ps(seen, ds[i], (__m512)(1.0f - tangent * tangent));
                }
                put(t->p, at, VL, (vf)p, SHORE__BF16);
                put(t->ds, at, VL, (vf)ds[i], SHORE__BF16);
            }
            __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(ds[0]));
            __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(ds[1]));
            _mm512_storeu_si512(t->ds_pairs + (strip + r) * BLOCK + j * 2,
                                _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
}

/* -lse (in units of ln 2) and the sum of dout out for each query. A query beyond the last one sees nothing. */
INLINE void row_sums(const struct shore__attention_job *job, const struct scratch *t, const uint16_t *out,
                     const float *lse, size_t rows, size_t wide) {
    for (size_t r = 0; r < BLOCK; r++) {
        __m512 sum = _mm512_setzero_ps();
        for (size_t j = 0; r < rows && j < job->head_dim; j += 16) {
            vf o = get(out, r * job->out_ld + j, left(j, job->head_dim), SHORE__BF16);
            sum = _mm512_fmadd_ps((__m512)o, (__m512)get(t->d, r * wide + j, VL, SHORE__BF16), sum);
        }
        t->row[r] = r < rows ? lse[r] * -LOG2E : 0.0f;
        t->row[BLOCK + r] = _mm512_reduce_add_ps(sum);
    }
}

/* Prefetches rows, from `row` on, that the next block of queries starts with, while this block is computed: they lie
 * too far apart for the processor to foresee them. */
INLINE void prefetch_queries(const struct shore__attention_job *job, size_t row, size_t rows, size_t head) {
    for (size_t r = row; r < row + rows && r < job->queries; r++)
        for (size_t j = head * job->head_dim; j < (head + 1) * job->head_dim; j += 32) {
            _mm_prefetch((const char *)((const uint16_t *)job->q + r * job->q_ld + j), _MM_HINT_T1);
            _mm_prefetch((const char *)((const uint16_t *)job->dout + r * job->out_ld + j), _MM_HINT_T1);
            _mm_prefetch((const char *)((const uint16_t *)job->out_in + r * job->out_ld + j), _MM_HINT_T1);
        }
}

static void backward_block(const struct shore__attention_job *job, const struct scratch *t, size_t query, size_t rows,
                           size_t head, size_t wide) {
    size_t q_at = query * job->q_ld + head * job->head_dim, out_at = query * job->out_ld + head * job->head_dim;
    size_t first = job->first + query, last = first + rows - 1, padded = up_to(rows, 32), ahead = query + BLOCK;
    pack(t->q, wide, (const uint16_t *)job->q + q_at, job->q_ld, rows, padded, job->head_dim);
    pack(t->d, wide, (const uint16_t *)job->dout + out_at, job->out_ld, rows, padded, job->head_dim);
    pair_rows(t->q_pairs, t->q, padded, wide);
    pair_rows(t->d_pairs, t->d, padded, wide);
    pair_columns(t->q_columns, t->q, padded, wide);
    pair_columns(t->d_columns, t->d, padded, wide);
    row_sums(job, t, (const uint16_t *)job->out_in + out_at, job->lse + head * job->lse_stride + query, rows, wide);
    memset(t->dq, 0, BLOCK * wide * sizeof *t->dq);
    for (size_t block = oldest(job, first) / BLOCK * BLOCK; block <= last; block += BLOCK) {
        size_t n = least(BLOCK, job->keys - block);
        size_t keys = up_to(clip(last + 1, block, n), 32);
        for (size_t strip = 0; strip < keys; strip += STRIP) {
            /* no query before the strip's first key sees it */
            size_t from = clip(block + strip, first, padded) / 32 * 32;
            const uint16_t *k = t->k + (block + strip) * wide, *v = t->v + (block + strip) * wide;
            if (ahead < query + 2 * BLOCK) prefetch_queries(job, ahead, STRIP, head);
            ahead += STRIP;
            product(t->s + from, BLOCK, k, wide, t->q_columns + 2 * from, 2 * BLOCK, STRIP, padded - from, 0, wide,
                    false);
            product(t->dp + from, BLOCK, v, wide, t->d_columns + 2 * from, 2 * BLOCK, STRIP, padded - from, 0, wide,
                    false);
            softmax_backward_strip(job, t, strip, first, rows, block, n, padded);
            product(t->dv + (block + strip) * wide, wide, t->p, BLOCK, t->d_pairs, 2 * wide, STRIP, wide, from, padded,
                    true);
            product(t->dk + (block + strip) * wide, wide, t->ds, BLOCK, t->q_pairs, 2 * wide, STRIP, wide, from, padded,
                    true);
        }
        product(t->dq, BLOCK, t->k_columns + block * wide, BLOCK, t->ds_pairs, 2 * BLOCK, wide, padded, 0, keys, true);
    }
    for (size_t r = 0; r < rows; r += 16)
        for (size_t j = 0; j < job->head_dim; j += 16) {
            __m512i dq[16];
#pragma GCC unroll 16
            for (size_t i = 0; i < 16; i++)
                dq[i] = _mm512_loadu_si512(t->dq + (j + i) * BLOCK + r);
            transpose(dq);
            for (size_t i = 0; i < 16 && r + i < rows; i++)
                put(job->dq, q_at + (r + i) * job->q_ld + j, left(j, job->head_dim),
                    (vf)_mm512_mul_ps(_mm512_castsi512_ps(dq[i]), _mm512_set1_ps(job->scale)), SHORE__BF16);
        }
}

static void write_gradient(uint16_t *dst, size_t ld, const float *src, size_t wide, size_t rows, size_t n,
                           float scale) {
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < n; j += 16)
            put(dst, r * ld + j, left(j, n),
                (vf)_mm512_mul_ps(_mm512_loadu_ps(src + r * wide + j), _mm512_set1_ps(scale)), SHORE__BF16);
}

static void k_attention_backward(const struct shore__attention_job *job, void *scratch) {
    struct scratch t;
    size_t wide = up_to(job->head_dim, 32), all = up_to(job->keys, BLOCK);
    carve(&t, scratch, job->keys, job->head_dim, true);
    pack(t.k, wide, job->k, job->kv_ld, job->keys, all, job->head_dim);
    pack(t.v, wide, job->v, job->kv_ld, job->keys, all, job->head_dim);
    for (size_t block = 0; block < job->keys; block += BLOCK) {
        pair_columns(t.q_columns, t.k + block * wide, BLOCK, wide);
        unpair(t.k_columns + block * wide, t.q_columns, wide);
    }
    memset(t.dk, 0, all * wide * sizeof *t.dk);
    memset(t.dv, 0, all * wide * sizeof *t.dv);
    products_begin();
    for (size_t head = 0; head < job->heads; head++)
        for (size_t query = 0; query < job->queries; query += BLOCK)
            backward_block(job, &t, query, least(BLOCK, job->queries - query), head, wide);
    products_end();
    write_gradient(job->dk, job->kv_ld, t.dk, wide, job->keys, job->head_dim, job->scale);
    write_gradient(job->dv, job->kv_ld, t.dv, wide, job->keys, job->head_dim, 1.0f);
}
