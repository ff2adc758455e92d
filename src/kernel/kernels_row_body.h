/* Kernels that sum along rows or columns: norms, the head's softmax, bias gradients. */

INLINE float row_sum(const void *x, size_t at, size_t d, float minus, bool square, enum shore__mode mode) {
    vf lane[4] = {{0}, {0}, {0}, {0}};
    size_t j = 0;
    for (; j + 4 * VL <= d; j += 4 * VL)
        for (int l = 0; l < 4; l++) {
            vf v = get(x, at + j + l * VL, VL, mode) - minus;
            lane[l] = square ? FMA(v, v, lane[l]) : lane[l] + v;
        }
    for (int l = 0; j < d; j += VL, l++) {
        vf v = get(x, at + j, left(j, d), mode);
        if (left(j, d) < VL && minus != 0.0f) {
            float whole[VL];
            memcpy(whole, &v, sizeof whole);
            for (size_t i = 0; i < left(j, d); i++)
                whole[i] -= minus;
            memcpy(&v, whole, sizeof v);
        } else {
            v = v - minus;
        }
        lane[l] = square ? FMA(v, v, lane[l]) : lane[l] + v;
    }
    return sum_lanes((lane[0] + lane[2]) + (lane[1] + lane[3]));
}

INLINE vf gain_at(const float *gain, size_t j, size_t count, enum shore__norm_kind kind) {
    vf g = get(gain, j, count, SHORE__F32);
    return kind == SHORE__RMS_NORM_FROM_1 ? 1.0f + g : g;
}

/* Layer norm (Ba et al., arXiv 1607.06450), RMS norm (Zhang and Sennrich, arXiv 1910.07467). */
INLINE void norm_rows(void *y, float *stats, const void *x, const float *gain, const float *bias, float eps,
                      enum shore__norm_kind kind, size_t rows, size_t d, enum shore__mode mode) {
    for (size_t r = 0; r < rows; r++) {
        size_t at = r * d;
        float mean = kind != SHORE__LAYER_NORM ? 0.0f : row_sum(x, at, d, 0.0f, false, mode) / (float)d;
        float inv = 1.0f / sqrtf(row_sum(x, at, d, mean, true, mode) / (float)d + eps);
        stats[2 * r] = mean;
        stats[2 * r + 1] = inv;
        for (size_t j = 0; y && j < d; j += VL) {
            size_t count = left(j, d);
            vf v = (get(x, at + j, count, mode) - mean) * inv * gain_at(gain, j, count, kind);
            if (bias) v = v + get(bias, j, count, SHORE__F32);
            put(y, at + j, count, v, mode);
        }
    }
}
static void k_norm(void *y, float *stats, const void *x, const float *gain, const float *bias, float eps,
                   enum shore__norm_kind kind, size_t rows, size_t d, enum shore__mode mode) {
    FOR_MODE(mode, norm_rows(y, stats, x, gain, bias, eps, kind, rows, d, M));
}

INLINE void norm_backward_rows(void *dx, const void *dy, const void *dx_add, const void *x, const float *gain,
                               const float *stats, enum shore__norm_kind kind, size_t rows, size_t d,
                               enum shore__mode mode) {
    for (size_t r = 0; r < rows; r++) {
        size_t at = r * d;
        float mean = kind != SHORE__LAYER_NORM ? 0.0f : stats[2 * r], inv = stats[2 * r + 1];
        vf lane_g = {0}, lane_gx = {0};
        for (size_t j = 0; j < d; j += VL) {
            size_t count = left(j, d);
            vf g = get(dy, at + j, count, mode) * gain_at(gain, j, count, kind);
            vf h = (get(x, at + j, count, mode) - mean) * inv;
            lane_g = lane_g + g;
            lane_gx = FMA(g, h, lane_gx); /* past the end g is zero */
        }
        float mean_g = kind != SHORE__LAYER_NORM ? 0.0f : sum_lanes(lane_g) / (float)d,
              mean_gx = sum_lanes(lane_gx) / (float)d;
        for (size_t j = 0; j < d; j += VL) {
            size_t count = left(j, d);
            vf g = get(dy, at + j, count, mode) * gain_at(gain, j, count, kind);
            vf h = (get(x, at + j, count, mode) - mean) * inv;
            vf v = (g - mean_g - h * mean_gx) * inv;
            if (dx_add) v = v + get(dx_add, at + j, count, mode);
            put(dx, at + j, count, v, mode);
        }
    }
}
static void k_norm_backward(void *dx, const void *dy, const void *dx_add, const void *x, const float *gain,
                            const float *stats, enum shore__norm_kind kind, size_t rows, size_t d,
                            enum shore__mode mode) {
    FOR_MODE(mode, norm_backward_rows(dx, dy, dx_add, x, gain, stats, kind, rows, d, M));
}

#define COLUMN_VECTORS 4 /* that stay in registers while the rows go by */
INLINE void norm_columns_strip(float *dgain, float *dbias, const void *dy, const void *x, const float *stats,
                               enum shore__norm_kind kind, size_t rows, size_t d, size_t j, size_t end, bool whole,
                               enum shore__mode mode) {
    vf gain[COLUMN_VECTORS], bias[COLUMN_VECTORS];
    size_t count[COLUMN_VECTORS];
    for (int v = 0; v < COLUMN_VECTORS; v++) {
        size_t at = j + v * VL;
        count[v] = whole ? VL : at >= end ? 0 : left(at, end);
        gain[v] = dgain ? get(dgain, at, count[v], SHORE__F32) : splat(0.0f);
        bias[v] = dbias ? get(dbias, at, count[v], SHORE__F32) : splat(0.0f);
    }
    for (size_t r = 0; r < rows; r++) {
        float mean = kind != SHORE__LAYER_NORM ? 0.0f : stats[2 * r], inv = stats[2 * r + 1];
        for (int v = 0; v < COLUMN_VECTORS; v++) {
            vf g = get(dy, r * d + j + v * VL, count[v], mode);
            vf h = (get(x, r * d + j + v * VL, count[v], mode) - mean) * inv;
            gain[v] = FMA(g, h, gain[v]);
            bias[v] = bias[v] + g;
        }
    }
    for (int v = 0; v < COLUMN_VECTORS; v++) {
        if (dgain) put(dgain, j + v * VL, count[v], gain[v], SHORE__F32);
        if (dbias) put(dbias, j + v * VL, count[v], bias[v], SHORE__F32);
    }
}
INLINE void norm_columns_all(float *dgain, float *dbias, const void *dy, const void *x, const float *stats,
                             enum shore__norm_kind kind, size_t rows, size_t d, size_t begin, size_t end,
                             enum shore__mode mode) {
    size_t j = begin;
    for (; j + COLUMN_VECTORS * VL <= end; j += COLUMN_VECTORS * VL)
        norm_columns_strip(dgain, dbias, dy, x, stats, kind, rows, d, j, end, true, mode);
    if (j < end) norm_columns_strip(dgain, dbias, dy, x, stats, kind, rows, d, j, end, false, mode);
}
static void k_norm_columns(float *dgain, float *dbias, const void *dy, const void *x, const float *stats,
                           enum shore__norm_kind kind, size_t rows, size_t d, size_t begin, size_t end,
                           enum shore__mode mode) {
    FOR_MODE(mode, norm_columns_all(dgain, dbias, dy, x, stats, kind, rows, d, begin, end, M));
}

INLINE void column_sums_strip(float *db, const void *dy, size_t rows, size_t n, size_t j, size_t end, bool whole,
                              enum shore__mode mode) {
    vf sum[COLUMN_VECTORS];
    size_t count[COLUMN_VECTORS];
    for (int v = 0; v < COLUMN_VECTORS; v++) {
        size_t at = j + v * VL;
        count[v] = whole ? VL : at >= end ? 0 : left(at, end);
        sum[v] = get(db, at, count[v], SHORE__F32);
    }
    for (size_t r = 0; r < rows; r++)
        for (int v = 0; v < COLUMN_VECTORS; v++)
            sum[v] = sum[v] + get(dy, r * n + j + v * VL, count[v], mode);
    for (int v = 0; v < COLUMN_VECTORS; v++)
        put(db, j + v * VL, count[v], sum[v], SHORE__F32);
}
INLINE void column_sums_all(float *db, const void *dy, size_t rows, size_t n, size_t begin, size_t end,
                            enum shore__mode mode) {
    size_t j = begin;
    for (; j + COLUMN_VECTORS * VL <= end; j += COLUMN_VECTORS * VL)
        column_sums_strip(db, dy, rows, n, j, end, true, mode);
    if (j < end) column_sums_strip(db, dy, rows, n, j, end, false, mode);
}
static void k_column_sums(float *db, const void *dy, size_t rows, size_t n, size_t begin, size_t end,
                          enum shore__mode mode) {
    FOR_MODE(mode, column_sums_all(db, dy, rows, n, begin, end, M));
}

static void k_head_merge(float *max, float *sum, float *target_logit, const float *logits, const int32_t *targets,
                         size_t rows, size_t n, size_t first) {
    for (size_t r = 0; r < rows; r++) {
        const float *row = logits + r * n;
        vf top_lane = splat(-INFINITY);
        size_t j = 0;
        for (; j + VL <= n; j += VL)
            top_lane = max_f(get(row, j, VL, SHORE__F32), top_lane);
        float top = max_lanes(top_lane);
        for (; j < n; j++)
            top = row[j] > top ? row[j] : top;
        if (max[r] > top) top = max[r];
        vf lane = {0};
        for (j = 0; j + VL <= n; j += VL)
            lane = lane + exp_f(get(row, j, VL, SHORE__F32) - top);
        float slice = sum_lanes(lane);
        if (j < n) {
            float tail[VL];
            vf e = exp_f(get(row, j, n - j, SHORE__F32) - top);
            memcpy(tail, &e, sizeof tail);
            for (size_t i = 0; i < n - j; i++)
                slice += tail[i];
        }
        float kept = sum[r] == 0.0f ? 0.0f : sum[r] * exp_f(splat(max[r] - top))[0];
        sum[r] = kept + slice;
        max[r] = top;
        if (targets[r] >= 0 && (size_t)targets[r] >= first && (size_t)targets[r] - first < n)
            target_logit[r] = row[(size_t)targets[r] - first];
    }
}

/* The slope of cap tanh(x / cap) where its value is y; cap 0: none. */
INLINE vf cap_slope(vf y, float cap) {
    vf tangent = y / cap;
    return cap == 0.0f ? splat(1.0f) : 1.0f - tangent * tangent;
}
INLINE void head_dlogits_rows(void *dlogits, const float *logits, const float *max, const float *sum,
                              const int32_t *targets, float scale, float cap, size_t rows, size_t n, size_t first,
                              enum shore__mode mode) {
    for (size_t r = 0; r < rows; r++) {
        if (targets[r] < 0) { /* the row does not count */
            for (size_t j = 0; j < n; j += VL)
                put(dlogits, r * n + j, left(j, n), splat(0.0f), mode);
            continue;
        }
        float target = 0.0f;
        bool here = (size_t)targets[r] >= first && (size_t)targets[r] - first < n;
        size_t t = here ? (size_t)targets[r] - first : 0;
        float of_each = scale / sum[r];
        if (here) target = logits[r * n + t]; /* before the row is overwritten: dlogits may be logits */
        for (size_t j = 0; j < n; j += VL) {
            size_t count = left(j, n);
            vf logit = get(logits, r * n + j, count, SHORE__F32);
            put(dlogits, r * n + j, count, exp_f(logit - max[r]) * of_each * cap_slope(logit, cap), mode);
        }
        vf at_target = (exp_f(splat(target - max[r])) / sum[r] - 1.0f) * scale * cap_slope(splat(target), cap);
        if (here) put(dlogits, r * n + t, 1, at_target, mode);
    }
}
static void k_head_dlogits(void *dlogits, const float *logits, const float *max, const float *sum,
                           const int32_t *targets, float scale, float cap, size_t rows, size_t n, size_t first,
                           enum shore__mode mode) {
    FOR_MODE(mode, head_dlogits_rows(dlogits, logits, max, sum, targets, scale, cap, rows, n, first, M));
}

INLINE void sink_backward_rows(float *dsink, float sink, const void *dout, const void *out, const float *lse,
                               size_t rows, size_t ld, size_t head_dim, enum shore__mode mode) {
    float total = *dsink;
    for (size_t r = 0; r < rows; r++) {
        vf lane = {0};
        for (size_t j = 0; j < head_dim; j += VL) {
            size_t count = left(j, head_dim);
            lane = FMA(get(out, r * ld + j, count, mode), get(dout, r * ld + j, count, mode), lane);
        }
        total -= exp_f(splat(sink - lse[r]))[0] * sum_lanes(lane);
    }
    *dsink = total;
}
static void k_sink_backward(float *dsink, float sink, const void *dout, const void *out, const float *lse, size_t rows,
                            size_t ld, size_t head_dim, enum shore__mode mode) {
    FOR_MODE(mode, sink_backward_rows(dsink, sink, dout, out, lse, rows, ld, head_dim, M));
}
