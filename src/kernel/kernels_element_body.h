/* Elementwise kernels: rounding, sums, activation functions, rotary positions. */

INLINE void round_n(void *act, const float *src, size_t n, enum shore__mode mode) {
    for (size_t i = 0; i < n; i += VL)
        put(act, i, left(i, n), get(src, i, left(i, n), SHORE__F32), mode);
}
static void k_round(void *act, const float *src, size_t n, enum shore__mode mode) {
    FOR_MODE(mode, round_n(act, src, n, M));
}

INLINE void add_n(void *y, const void *a, const void *b, size_t n, enum shore__mode mode) {
    for (size_t i = 0; i < n; i += VL)
        put(y, i, left(i, n), get(a, i, left(i, n), mode) + get(b, i, left(i, n), mode), mode);
}
static void k_add(void *y, const void *a, const void *b, size_t n, enum shore__mode mode) {
    FOR_MODE(mode, add_n(y, a, b, n, M));
}

INLINE void scale_n(void *x, float factor, size_t n, enum shore__mode mode) {
    for (size_t i = 0; i < n; i += VL)
        put(x, i, left(i, n), get(x, i, left(i, n), mode) * factor, mode);
}
static void k_scale(void *x, float factor, size_t n, enum shore__mode mode) {
    FOR_MODE(mode, scale_n(x, factor, n, M));
}

static void k_exp(float *y, const float *x, float minus, size_t n) {
    for (size_t j = 0; j < n; j += VL)
        put(y, j, left(j, n), exp_f(get(x, j, left(j, n), SHORE__F32) - minus), SHORE__F32);
}
static void k_softcap(float *x, float cap, size_t n) {
    for (size_t i = 0; i < n; i += VL)
        put(x, i, left(i, n), tanh_f(get(x, i, left(i, n), SHORE__F32) / cap) * cap, SHORE__F32);
}

INLINE void add_to_n(float *dst, const void *src, size_t n, enum shore__mode mode) {
    for (size_t i = 0; i < n; i += VL) {
        vf sum = get(dst, i, left(i, n), SHORE__F32) + get(src, i, left(i, n), mode);
        put(dst, i, left(i, n), sum, SHORE__F32);
    }
}
static void k_add_to(float *dst, const void *src, size_t n, enum shore__mode mode) {
    FOR_MODE(mode, add_to_n(dst, src, n, M));
}

/* The normal distribution function as half of erfc(-x / sqrt 2); erfc by the Chebyshev fit of Press et al., Numerical
 * Recipes in C, 6.2 (erfcc): relative error below 1.2e-7 before rounding. */
INLINE vf normal_cdf(vf x) {
    vf z = x * -0.707106781186547524f;
    vf a = (vf)((vi)z & 0x7FFFFFFF);
    vf t = 1.0f / FMA(a, splat(0.5f), splat(1.0f));
    vf p = splat(0.17087277f);
    p = FMA(p, t, splat(-0.82215223f));
    p = FMA(p, t, splat(1.48851587f));
    p = FMA(p, t, splat(-1.13520398f));
    p = FMA(p, t, splat(0.27886807f));
    p = FMA(p, t, splat(-0.18628806f));
    p = FMA(p, t, splat(0.09678418f));
    p = FMA(p, t, splat(0.37409196f));
    p = FMA(p, t, splat(1.00002368f));
    p = FMA(p, t, splat(-1.26551223f));
    vf half = t * exp_f(p - a * a) * 0.5f;
    return select_f(z < 0.0f, 1.0f - half, half);
}

/* GELU, tanh form (Hendrycks and Gimpel, arXiv 1606.08415), written as x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715
 * x^3): 1/2 (1 + tanh u) is sigmoid(2 u), and keeps its relative accuracy where tanh u is near -1. */
#define GELU_2A 1.5957691216057308f
#define GELU_B 0.044715f
INLINE vf sigmoid(vf x) {
    return 1.0f / (1.0f + exp_f(-x));
}

INLINE vf act_f(vf x, enum shore__act_fn f) {
    switch (f) {
    case SHORE__GELU_TANH:
        return x * sigmoid(x * GELU_2A * FMA(x * x, splat(GELU_B), splat(1.0f)));
    case SHORE__GELU_ERF:
        return x * normal_cdf(x);
    case SHORE__RELU:
        return select_f(x < 0.0f, splat(0.0f), x); /* NaN stays */
    default:
        return x * sigmoid(x);
    }
}
INLINE vf act_slope(vf x, enum shore__act_fn f) {
    switch (f) {
    case SHORE__GELU_TANH: {
        vf s = sigmoid(x * GELU_2A * FMA(x * x, splat(GELU_B), splat(1.0f)));
        vf du = GELU_2A * FMA(x * x, splat(3.0f * GELU_B), splat(1.0f));
        return FMA(x * s * (1.0f - s), du, s);
    }
    case SHORE__GELU_ERF:
        return FMA(x * 0.398942280401432678f, exp_f(x * x * -0.5f), normal_cdf(x));
    case SHORE__RELU:
        return select_f(x > 0.0f, splat(1.0f), splat(0.0f));
    default: {
        vf s = sigmoid(x);
        return FMA(x * s, 1.0f - s, s);
    }
    }
}

/* gpt-oss (openai/gpt-oss, torch/model.py): y = (up + 1) gate sigmoid(1.702 gate), gate at most 7, up within 7. */
#define CLAMP_AT 7.0f
#define CLAMPED_SLOPE 1.702f
/* Gates and ups of elements at .. at + count - 1 of a row, which alternate. */
INLINE void get_pairs(const void *x, size_t at, size_t count, vf *gate, vf *up, enum shore__mode mode) {
    float pairs[2 * VL];
    vf low = get(x, at, least(2 * count, VL), mode), g = {0}, u = {0};
    vf high = 2 * count > VL ? get(x, at + VL, 2 * count - VL, mode) : splat(0.0f);
    memcpy(pairs, &low, sizeof low);
    memcpy(pairs + VL, &high, sizeof high);
    for (size_t i = 0; i < VL; i++) {
        g[i] = pairs[2 * i];
        u[i] = pairs[2 * i + 1];
    }
    *gate = g;
    *up = u;
}
INLINE void put_pairs(void *x, size_t at, size_t count, vf gate, vf up, enum shore__mode mode) {
    float pairs[2 * VL];
    for (size_t i = 0; i < VL; i++) {
        pairs[2 * i] = gate[i];
        pairs[2 * i + 1] = up[i];
    }
    put(x, at, least(2 * count, VL), get(pairs, 0, VL, SHORE__F32), mode);
    if (2 * count > VL) put(x, at + VL, 2 * count - VL, get(pairs, VL, VL, SHORE__F32), mode);
}
INLINE void clamped_rows(void *y, const void *x, size_t rows, size_t width, enum shore__mode mode) {
    for (size_t j = 0; j < rows * width; j += VL) {
        vf g, u;
        size_t count = left(j, rows * width);
        get_pairs(x, 2 * j, count, &g, &u, mode);
        g = min_f(splat(CLAMP_AT), g);
        u = min_f(splat(CLAMP_AT), max_f(splat(-CLAMP_AT), u));
        put(y, j, count, (u + 1.0f) * (g * sigmoid(g * CLAMPED_SLOPE)), mode);
    }
}
INLINE void clamped_backward_rows(void *dx, const void *dy, const void *x, size_t rows, size_t width,
                                  enum shore__mode mode) {
    for (size_t j = 0; j < rows * width; j += VL) {
        vf gate, up, zero = {0};
        size_t count = left(j, rows * width);
        get_pairs(x, 2 * j, count, &gate, &up, mode);
        vf g = min_f(splat(CLAMP_AT), gate), u = min_f(splat(CLAMP_AT), max_f(splat(-CLAMP_AT), up));
        vf s = sigmoid(g * CLAMPED_SLOPE), d = get(dy, j, count, mode);
        vf dg = d * (u + 1.0f) * FMA(g * s * CLAMPED_SLOPE, 1.0f - s, s);
        put_pairs(dx, 2 * j, count, select_f(gate > CLAMP_AT, zero, dg),
                  select_f((up > CLAMP_AT) | (up < -CLAMP_AT), zero, d * (g * s)), mode);
    }
}

INLINE void act_rows(void *y, const void *x, enum shore__act_fn f, bool gated, size_t rows, size_t width,
                     enum shore__mode mode) {
    if (!gated) {
        width *= rows;
        rows = 1;
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < width; j += VL) {
            size_t at = (gated ? 2 * width : width) * r + j, count = left(j, width);
            vf v = act_f(get(x, at, count, mode), f);
            if (gated) v = v * get(x, at + width, count, mode);
            put(y, width * r + j, count, v, mode);
        }
}
INLINE void act_backward_rows(void *dx, const void *dy, const void *x, enum shore__act_fn f, bool gated, size_t rows,
                              size_t width, enum shore__mode mode) {
    if (!gated) {
        width *= rows;
        rows = 1;
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < width; j += VL) {
            size_t at = (gated ? 2 * width : width) * r + j, count = left(j, width);
            vf d = get(dy, width * r + j, count, mode), v = get(x, at, count, mode);
            if (gated) {
                vf up = get(x, at + width, count, mode);
                put(dx, at + width, count, d * act_f(v, f), mode);
                d = d * up;
            }
            put(dx, at, count, d * act_slope(v, f), mode);
        }
}

#define FOR_FUNCTION(f, call)                              \
    do {                                                   \
        switch (f) {                                       \
        case SHORE__GELU_TANH: {                           \
            const enum shore__act_fn F = SHORE__GELU_TANH; \
            call;                                          \
        } break;                                           \
        case SHORE__GELU_ERF: {                            \
            const enum shore__act_fn F = SHORE__GELU_ERF;  \
            call;                                          \
        } break;                                           \
        case SHORE__RELU: {                                \
            const enum shore__act_fn F = SHORE__RELU;      \
            call;                                          \
        } break;                                           \
        default: {                                         \
            const enum shore__act_fn F = SHORE__SILU;      \
            call;                                          \
        } break;                                           \
        }                                                  \
    } while (0)

static void k_act(void *y, const void *x, enum shore__act_fn f, bool gated, size_t rows, size_t width,
                  enum shore__mode mode) {
    if (f == SHORE__SWIGLU_CLAMPED)
        FOR_MODE(mode, clamped_rows(y, x, rows, width, M));
    else
        FOR_FUNCTION(f, FOR_MODE(mode, act_rows(y, x, F, gated, rows, width, M)));
}
static void k_act_backward(void *dx, const void *dy, const void *x, enum shore__act_fn f, bool gated, size_t rows,
                           size_t width, enum shore__mode mode) {
    if (f == SHORE__SWIGLU_CLAMPED)
        FOR_MODE(mode, clamped_backward_rows(dx, dy, x, rows, width, M));
    else
        FOR_FUNCTION(f, FOR_MODE(mode, act_backward_rows(dx, dy, x, F, gated, rows, width, M)));
}

/* RoPE (Su et al., arXiv 2104.09864) in the half-split form of GPT-NeoX. */
INLINE void rope_row(void *row, const float *cos_sin, size_t heads, size_t head_dim, size_t rotary, bool inverse,
                     enum shore__mode mode) {
    size_t half = rotary / 2;
    for (size_t h = 0; h < heads; h++)
        for (size_t j = 0; j < half; j += VL) {
            size_t at = h * head_dim + j, count = left(j, half);
            vf c = get(cos_sin, j, count, SHORE__F32), s = get(cos_sin, half + j, count, SHORE__F32);
            vf a = get(row, at, count, mode), b = get(row, at + half, count, mode);
            if (inverse) s = -s;
            put(row, at, count, a * c - b * s, mode);
            put(row, at + half, count, b * c + a * s, mode);
        }
}
static void k_rope(void *row, const float *cos_sin, size_t heads, size_t head_dim, size_t rotary, bool inverse,
                   enum shore__mode mode) {
    FOR_MODE(mode, rope_row(row, cos_sin, heads, head_dim, rotary, inverse, M));
}
