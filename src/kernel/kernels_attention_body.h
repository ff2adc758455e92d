/* Causal attention in blocks (Dao et al., arXiv 2205.14135): 128 queries against 128 keys at a time. The softmax is
 * carried along in fp32, the log-sum-exp is kept, and backward recomputes the probabilities.
 *
 * Key blocks lie at multiples of 128 positions, whatever the queries are, and keys that a query does not see add exact
 * zeros. So a query's result does not depend on the other queries. Everything is packed to fp32 first. A packed right
 * operand has panels of NR columns: element (k, j) is in panel j / NR. */

#define BLOCK ((size_t)128)
#define NR ((size_t)(2 * VL))
/* The sums of MR rows by two vectors fit the registers, together with their operands: of 32, or of 16. */
#if VL == 16 || !defined __x86_64__
#define MR 8
#else
#define MR 6
#endif
#define ROWS up_to(BLOCK, MR)
/* Not inlined: in the caller, constants would not stay in registers. */
#define APART static __attribute__((noinline))
#define S_LD (BLOCK + 16) /* not a power of two: rows must not share cache sets */

/* c [MR, NR] = (or +=) a [MR, k] b [k, NR]; element (m, k) of a at m am + k ak. */
INLINE void micro(float *c, size_t ldc, const float *a, size_t am, size_t ak, const float *b, size_t ldb, size_t k,
                  bool accumulate) {
    vf sum[MR][2];
    for (int m = 0; m < MR; m++)
        for (int v = 0; v < 2; v++)
            sum[m][v] = accumulate ? get(c, m * ldc + v * VL, VL, SHORE__F32) : splat(0.0f);
#pragma GCC unroll 4
    for (size_t p = 0; p < k; p++) {
        vf b0 = get(b, p * ldb, VL, SHORE__F32), b1 = get(b, p * ldb + VL, VL, SHORE__F32);
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++) {
            vf x = splat(a[m * am + p * ak]);
            sum[m][0] = FMA(x, b0, sum[m][0]);
            sum[m][1] = FMA(x, b1, sum[m][1]);
        }
    }
    for (int m = 0; m < MR; m++)
        for (int v = 0; v < 2; v++)
            put(c, m * ldc + v * VL, VL, sum[m][v], SHORE__F32);
}

struct right {
    const float *base;
    size_t ld, panel_stride;
};

/* c [m, n] = a b, m up to a multiple of MR, n to one of NR. Strips of MR rows from `row` on need the columns before
 * row + MR + triangle only. */
static void product_columns(float *c, size_t ldc, const float *a, size_t lda, struct right b, size_t m, size_t n,
                            size_t k, ptrdiff_t triangle) {
    for (size_t j = 0; j < n; j += NR)
        for (size_t r = 0; r < m; r += MR)
            if ((ptrdiff_t)(r + MR) + triangle > (ptrdiff_t)j)
                micro(c + r * ldc + j, ldc, a + r * lda, lda, 1, b.base + j / NR * b.panel_stride, b.ld, k, false);
}
/* c [m, n] += a b; a's columns from row + MR + triangle on are zero for strips from `row` on. */
static void product_sums(float *c, size_t ldc, const float *a, size_t lda, struct right b, size_t m, size_t n, size_t k,
                         ptrdiff_t triangle) {
    for (size_t j = 0; j < n; j += NR)
        for (size_t r = 0; r < m; r += MR) {
            ptrdiff_t end = (ptrdiff_t)(r + MR) + triangle;
            if (end > 0)
                micro(c + r * ldc + j, ldc, a + r * lda, lda, 1, b.base + j / NR * b.panel_stride, b.ld,
                      least(k, (size_t)end), true);
        }
}
/* c [m, n] += a^T b, a [k, m]; a's rows before row - triangle - MR + 1 .. are zero for columns from `row` on. */
static void product_transposed(float *c, size_t ldc, const float *a, size_t lda, struct right b, size_t m, size_t n,
                               size_t k, ptrdiff_t triangle) {
    for (size_t j = 0; j < n; j += NR)
        for (size_t r = 0; r < m; r += MR) {
            ptrdiff_t begin = (ptrdiff_t)r - triangle;
            size_t skip = begin > 0 ? (size_t)begin : 0;
            if (skip < k)
                micro(c + r * ldc + j, ldc, a + r + skip * lda, 1, lda, b.base + j / NR * b.panel_stride + skip * b.ld,
                      b.ld, k - skip, true);
        }
}

/* Prefetches a row of a head: rows lie too far apart for the processor to foresee them. */
#define AHEAD ((size_t)16)
INLINE void fetch_row(const void *p, size_t ld, size_t row, size_t rows, size_t n, bool write, enum shore__mode mode) {
    const char *line = (const char *)p + row * ld * act_bytes(mode), *end = line + n * act_bytes(mode);
    for (; row < rows && line < end; line += 64) {
        if (write)
            __builtin_prefetch(line, 1);
        else
            __builtin_prefetch(line);
    }
}

/* dst [rows up to a multiple of unit, ld] = src * scale, zeros around. */
APART void pack_rows(float *dst, size_t ld, const void *src, size_t src_ld, size_t rows, size_t unit, size_t n,
                     float scale, enum shore__mode mode) {
    for (size_t r = 0; r < up_to(rows, unit); r++) {
        fetch_row(src, src_ld, r + AHEAD, rows, n, false, mode);
        for (size_t j = 0; j < ld; j += VL) {
            size_t count = r < rows && j < n ? left(j, n) : 0;
            put(dst, r * ld + j, left(j, ld), count ? get(src, r * src_ld + j, count, mode) * scale : splat(0.0f),
                SHORE__F32);
        }
    }
}
/* dst panels [rows / NR][n][NR] = src^T, zeros beyond rows. */
APART void pack_transposed(float *dst, const void *src, size_t src_ld, size_t rows, size_t n, enum shore__mode mode) {
    for (size_t r = 0; r < up_to(rows, NR); r += VL) {
        float *panel = dst + r / NR * n * NR + r % NR;
        for (size_t i = r + VL; i < r + 2 * VL; i++)
            fetch_row(src, src_ld, i, rows, n, false, mode);
        for (size_t j = 0; j < n; j += VL) {
            float square[VL][VL];
            for (size_t i = 0; i < VL; i++) {
                vf v = r + i < rows ? get(src, (r + i) * src_ld + j, left(j, n), mode) : splat(0.0f);
                memcpy(square[i], &v, sizeof v);
            }
            for (size_t i = 0; i < left(j, n); i++) {
                vf column = {0};
                for (size_t l = 0; l < VL; l++)
                    column[l] = square[l][i];
                memcpy(panel + (j + i) * NR, &column, sizeof column);
            }
        }
    }
}

/* The columns of [0, n) of the key block at `block` that a query sees: [*begin, *end). */
INLINE void seen(const struct shore__attention_job *job, size_t query, size_t block, size_t n, size_t *begin,
                 size_t *end) {
    size_t position = job->first + query;
    size_t oldest = job->window && position + 1 > job->window ? position + 1 - job->window : 0;
    *begin = oldest > block ? least(oldest - block, n) : 0;
    *end = position + 1 > block ? least(position + 1 - block, n) : 0;
    if (*end < *begin) *end = *begin;
}
INLINE void fill(float *row, size_t begin, size_t end, float x) {
    for (size_t i = begin; i < end; i++)
        row[i] = x;
}

struct scratch {
    float *keys_t, *keys, *values_t, *values, *dkeys, *dvalues, *q, *s, *p, *o, *d, *row;
};
INLINE size_t carve(struct scratch *s, float *base, size_t keys, size_t head_dim, bool backward) {
    size_t wide = up_to(head_dim, NR), all = up_to(keys, BLOCK), at = 0;
    memset(s, 0, sizeof *s);
#define TAKE(field, floats)                             \
    do {                                                \
        if (base) s->field = base + at;                 \
        at += up_to((floats), 16) + 16; /* staggered */ \
    } while (0)
    TAKE(keys_t, all * head_dim);
    if (backward) {
        TAKE(keys, all * wide);
        TAKE(values_t, all * head_dim);
        TAKE(dkeys, (all + MR) * wide); /* the last strip of a block reaches beyond it */
        TAKE(dvalues, (all + MR) * wide);
        TAKE(p, ROWS * S_LD);
        TAKE(d, ROWS * wide);
    } else {
        TAKE(values, all * wide);
    }
    TAKE(q, ROWS * wide);
    TAKE(s, ROWS * S_LD);
    TAKE(o, ROWS * wide);
    TAKE(row, 2 * BLOCK);
#undef TAKE
    return at * sizeof(float);
}
static size_t k_attention_scratch(size_t keys, size_t head_dim, bool backward) {
    struct scratch s;
    return carve(&s, NULL, keys, head_dim, backward);
}

/* Caps scores that are already scaled (job->softcap). */
INLINE void cap_scores(const struct shore__attention_job *job, float *s, size_t n) {
    if (job->softcap == 0.0f) return;
    for (size_t j = 0; j < n; j += VL)
        put(s, j, VL, tanh_f(get(s, j, VL, SHORE__F32) / job->softcap) * job->softcap, SHORE__F32);
}

/* The first key block that any query from `query` on sees. */
INLINE size_t first_block(const struct shore__attention_job *job, size_t query) {
    size_t position = job->first + query;
    size_t oldest = job->window && position + 1 > job->window ? position + 1 - job->window : 0;
    return oldest / BLOCK * BLOCK;
}

/* Turns scores into probabilities relative to the running maximum, and rescales the sum and the earlier output. */
APART void softmax_block(const struct shore__attention_job *job, const struct scratch *t, size_t query, size_t rows,
                         size_t block, size_t n, size_t padded, size_t wide) {
    for (size_t r = 0; r < rows; r++) {
        float *s = t->s + r * S_LD, *top = t->row + r, *sum = t->row + BLOCK + r;
        size_t begin, end;
        seen(job, query + r, block, n, &begin, &end);
        if (begin == end) {
            fill(s, 0, padded, 0.0f);
            continue;
        }
        size_t stop = up_to(end, VL);
        cap_scores(job, s, stop);
        fill(s, 0, begin, -INFINITY);
        fill(s, end, stop, -INFINITY);
        fill(s, stop, padded, 0.0f);
        vf lane = splat(*top);
        for (size_t j = 0; j < stop; j += VL)
            lane = max_f(get(s, j, VL, SHORE__F32), lane);
        float max = max_lanes(lane);
        vf total = {0};
        for (size_t j = 0; j < stop; j += VL) {
            vf e = exp_f(get(s, j, VL, SHORE__F32) - max);
            total = total + e;
            put(s, j, VL, e, SHORE__F32);
        }
        float kept = exp_f(splat(*top - max))[0]; /* -inf at first: 0 */
        *sum = *sum * kept + sum_lanes(total);
        *top = max;
        if (kept != 1.0f)
            for (size_t j = 0; j < wide; j += VL)
                put(t->o, r * wide + j, VL, get(t->o, r * wide + j, VL, SHORE__F32) * kept, SHORE__F32);
    }
}

INLINE void attention_mode(const struct shore__attention_job *job, void *scratch, enum shore__mode mode) {
    struct scratch t;
    size_t hd = job->head_dim, wide = up_to(hd, NR), bytes = act_bytes(mode);
    carve(&t, scratch, job->keys, hd, false);
    pack_transposed(t.keys_t, job->k, job->kv_ld, job->keys, hd, mode);
    pack_rows(t.values, wide, job->v, job->kv_ld, job->keys, NR, hd, 1.0f, mode);
    for (size_t h = 0; h < job->heads; h++)
        for (size_t query = 0; query < job->queries; query += BLOCK) {
            size_t rows = least(BLOCK, job->queries - query), last = job->first + query + rows - 1;
            const char *q = (const char *)job->q + (query * job->q_ld + h * hd) * bytes;
            char *out = (char *)job->out + (query * job->out_ld + h * hd) * bytes;
            pack_rows(t.q, wide, q, job->q_ld, rows, MR, hd, job->scale, mode);
            fill(t.o, 0, up_to(rows, MR) * wide, 0.0f);
            /* a sink counts as a key that is seen already, whose value is zero */
            fill(t.row, 0, BLOCK, job->sinks ? job->sinks[h] : -INFINITY);
            fill(t.row, BLOCK, 2 * BLOCK, job->sinks ? 1.0f : 0.0f);
            for (size_t block = first_block(job, query); block <= last; block += BLOCK) {
                size_t n = least(BLOCK, job->keys - block), padded = up_to(n, NR);
                ptrdiff_t triangle = (ptrdiff_t)(job->first + query) - (ptrdiff_t)block;
                struct right keys = {t.keys_t + block * hd, NR, hd * NR};
                struct right values = {t.values + block * wide, wide, NR};
                product_columns(t.s, S_LD, t.q, wide, keys, rows, padded, hd, triangle);
                softmax_block(job, &t, query, rows, block, n, padded, wide);
                for (size_t r = rows; r < up_to(rows, MR); r++)
                    fill(t.s + r * S_LD, 0, padded, 0.0f);
                product_sums(t.o, wide, t.s, S_LD, values, rows, wide, n, triangle);
            }
            for (size_t r = 0; r < rows; r++) {
                float sum = t.row[BLOCK + r];
                for (size_t j = 0; j < hd; j += VL)
                    put(out, r * job->out_ld + j, left(j, hd), get(t.o, r * wide + j, VL, SHORE__F32) / sum, mode);
                if (job->lse) job->lse[h * job->lse_stride + query + r] = t.row[r] + logf(sum);
            }
        }
}
static void k_attention(const struct shore__attention_job *job, void *scratch) {
    FOR_MODE(job->mode, attention_mode(job, scratch, M));
}

/* Turns scores (already scaled) and dP into P (in t->p) and dS (in t->s, which held the scores): dS = P (dP - delta). A
 * single key without a sink has P = 1 whatever its score is. The difference would be rounding, which Adam would turn
 * into a step. */
APART void softmax_backward_block(const struct shore__attention_job *job, const struct scratch *t, const float *lse,
                                  size_t query, size_t rows, size_t block, size_t n, size_t padded) {
    const float cap = job->softcap;
    for (size_t r = 0; r < rows; r++) {
        float *s = t->s + r * S_LD, *p = t->p + r * S_LD;
        size_t begin, end;
        seen(job, query + r, block, n, &begin, &end);
        size_t stop = up_to(end, VL);
        cap_scores(job, s, stop);
        fill(s, 0, begin, -INFINITY);
        fill(s, end, stop, -INFINITY);
        fill(s, stop, padded, 0.0f);
        fill(p, 0, begin, 0.0f);
        fill(p, end, padded, 0.0f);
        for (size_t j = 0; j < stop; j += VL) {
            vf score = get(s, j, VL, SHORE__F32), prob = exp_f(score - lse[query + r]);
            vf ds = prob * (get(p, j, VL, SHORE__F32) - t->row[r]);
            if (cap != 0.0f) /* unseen keys have prob 0, and an infinite score */
                ds = select_f(prob > 0.0f, ds * (1.0f - score / cap * (score / cap)), splat(0.0f));
            put(s, j, VL, ds, SHORE__F32);
            put(p, j, VL, prob, SHORE__F32);
        }
        if (!job->sinks && (job->first + query + r == 0 || job->window == 1)) fill(s, 0, padded, 0.0f);
    }
    for (size_t r = rows; r < up_to(rows, MR); r++) {
        fill(t->s + r * S_LD, 0, padded, 0.0f);
        fill(t->p + r * S_LD, 0, padded, 0.0f);
    }
}

INLINE void attention_backward_mode(const struct shore__attention_job *job, void *scratch, enum shore__mode mode) {
    struct scratch t;
    size_t hd = job->head_dim, wide = up_to(hd, NR), bytes = act_bytes(mode);
    carve(&t, scratch, job->keys, hd, true);
    pack_transposed(t.keys_t, job->k, job->kv_ld, job->keys, hd, mode);
    pack_transposed(t.values_t, job->v, job->kv_ld, job->keys, hd, mode);
    pack_rows(t.keys, wide, job->k, job->kv_ld, job->keys, NR, hd, 1.0f, mode);
    for (size_t r = 0; r < ROWS; r++) { /* what the last strip of keys adds to rows beyond the block */
        fill(t.s + r * S_LD, BLOCK, S_LD, 0.0f);
        fill(t.p + r * S_LD, BLOCK, S_LD, 0.0f);
    }
    fill(t.dkeys, 0, up_to(job->keys, BLOCK) * wide, 0.0f);
    fill(t.dvalues, 0, up_to(job->keys, BLOCK) * wide, 0.0f);
    for (size_t h = 0; h < job->heads; h++)
        for (size_t query = 0; query < job->queries; query += BLOCK) {
            size_t rows = least(BLOCK, job->queries - query), last = job->first + query + rows - 1;
            size_t out_at = (query * job->out_ld + h * hd) * bytes, q_at = (query * job->q_ld + h * hd) * bytes;
            const char *out = (const char *)job->out_in + out_at, *dout = (const char *)job->dout + out_at;
            pack_rows(t.q, wide, (const char *)job->q + q_at, job->q_ld, rows, MR, hd, job->scale, mode);
            pack_rows(t.d, wide, dout, job->out_ld, rows, MR, hd, 1.0f, mode);
            for (size_t r = 0; r < rows; r++) {
                fetch_row(out, job->out_ld, r + AHEAD, rows, hd, false, mode);
                vf lane = {0};
                for (size_t j = 0; j < hd; j += VL)
                    lane = FMA(get(out, r * job->out_ld + j, left(j, hd), mode),
                               get(dout, r * job->out_ld + j, left(j, hd), mode), lane);
                t.row[r] = sum_lanes(lane);
            }
            fill(t.o, 0, up_to(rows, MR) * wide, 0.0f);
            for (size_t block = first_block(job, query); block <= last; block += BLOCK) {
                size_t n = least(BLOCK, job->keys - block), padded = up_to(n, NR);
                ptrdiff_t triangle = (ptrdiff_t)(job->first + query) - (ptrdiff_t)block;
                struct right keys_t = {t.keys_t + block * hd, NR, hd * NR};
                struct right values_t = {t.values_t + block * hd, NR, hd * NR};
                struct right keys = {t.keys + block * wide, wide, NR};
                struct right q = {t.q, wide, NR}, d = {t.d, wide, NR};
                product_columns(t.s, S_LD, t.q, wide, keys_t, rows, padded, hd, triangle);
                product_columns(t.p, S_LD, t.d, wide, values_t, rows, padded, hd, triangle);
                softmax_backward_block(job, &t, job->lse + h * job->lse_stride, query, rows, block, n, padded);
                product_transposed(t.dvalues + block * wide, wide, t.p, S_LD, d, n, wide, rows, triangle);
                product_transposed(t.dkeys + block * wide, wide, t.s, S_LD, q, n, wide, rows, triangle);
                product_sums(t.o, wide, t.s, S_LD, keys, rows, wide, n, triangle);
            }
            char *dq = (char *)job->dq + q_at;
            for (size_t r = 0; r < rows; r++)
                fetch_row(dq, job->q_ld, r, rows, hd, true, mode);
            for (size_t r = 0; r < rows; r++)
                for (size_t j = 0; j < hd; j += VL)
                    put(dq, r * job->q_ld + j, left(j, hd), get(t.o, r * wide + j, VL, SHORE__F32) * job->scale, mode);
        }
    for (size_t r = 0; r < job->keys; r++) {
        fetch_row(job->dk, job->kv_ld, r + AHEAD, job->keys, hd, true, mode);
        fetch_row(job->dv, job->kv_ld, r + AHEAD, job->keys, hd, true, mode);
        for (size_t j = 0; j < hd; j += VL) {
            put(job->dk, r * job->kv_ld + j, left(j, hd), get(t.dkeys, r * wide + j, VL, SHORE__F32), mode);
            put(job->dv, r * job->kv_ld + j, left(j, hd), get(t.dvalues, r * wide + j, VL, SHORE__F32), mode);
        }
    }
}
static void k_attention_backward(const struct shore__attention_job *job, void *scratch) {
    FOR_MODE(job->mode, attention_backward_mode(job, scratch, M));
}
