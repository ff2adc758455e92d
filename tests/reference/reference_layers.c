/* The scalar reference: norms and activation functions. */
#include <math.h>

#include "reference/reference.h"

#define get shore__reference_get
#define put shore__reference_put

static float *floats(shore__buf b) {
    return (float *)b.handle;
}

/* One row of a norm: elements x .. x + d - 1 of a buffer, with the gain from `gain` on, and its statistics. */
struct row {
    size_t x, d, gain, stats;
    enum shore__norm_kind kind;
};
static double gain_of(const struct row *n, shore__buf gain, size_t i) {
    return floats(gain)[n->gain + i] + (n->kind == SHORE__RMS_NORM_FROM_1 ? 1.0 : 0.0);
}

static void norm_row(struct shore__compute *c, const struct row *n, shore__buf y, shore__buf stats, shore__buf x,
                     shore__buf gain, shore__buf bias, float eps) {
    double mean = 0, square = 0;
    for (size_t i = 0; i < n->d && n->kind == SHORE__LAYER_NORM; i++)
        mean += get(c, x, n->x + i) / (double)n->d;
    for (size_t i = 0; i < n->d; i++) {
        double v = get(c, x, n->x + i) - mean;
        square += v * v / (double)n->d;
    }
    double inv = 1 / sqrt(square + eps);
    floats(stats)[n->stats] = (float)mean;
    floats(stats)[n->stats + 1] = (float)inv;
    for (size_t i = 0; !shore__buf_is_none(y) && i < n->d; i++) {
        double b = shore__buf_is_none(bias) ? 0 : floats(bias)[i];
        put(c, y, n->x + i, (get(c, x, n->x + i) - mean) * inv * gain_of(n, gain, i) + b);
    }
}

/* dx may be dy. The gradients of gain and bias come first, of all rows. */
static void norm_row_backward(struct shore__compute *c, const struct row *n, shore__buf dx, shore__buf dy,
                              shore__buf dx_add, shore__buf x, shore__buf gain, shore__buf stats) {
    double mean = n->kind == SHORE__LAYER_NORM ? floats(stats)[n->stats] : 0, inv = floats(stats)[n->stats + 1];
    double sum_g = 0, sum_gh = 0;
    for (size_t i = 0; i < n->d; i++) {
        double g = get(c, dy, n->x + i) * gain_of(n, gain, i), h = (get(c, x, n->x + i) - mean) * inv;
        sum_g += g;
        sum_gh += g * h;
    }
    if (n->kind != SHORE__LAYER_NORM) sum_g = 0;
    for (size_t i = 0; i < n->d; i++) {
        double g = get(c, dy, n->x + i) * gain_of(n, gain, i), h = (get(c, x, n->x + i) - mean) * inv;
        double kept = shore__buf_is_none(dx_add) ? 0 : get(c, dx_add, n->x + i);
        put(c, dx, n->x + i, kept + inv * (g - sum_g / (double)n->d - h * sum_gh / (double)n->d));
    }
}

int shore__reference_norm(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf stats,
                          shore__buf x, shore__buf gain, shore__buf bias, float eps, enum shore__norm_kind kind,
                          size_t rows, size_t d) {
    for (size_t r = 0; r < rows; r++)
        norm_row(c, &(struct row){r * d, d, 0, 2 * r, kind}, y, stats, x, gain, bias, eps);
    return 0;
}

int shore__reference_norm_backward(struct shore__compute *c, struct shore__stream *s, shore__buf dx, shore__buf dgain,
                                   shore__buf dbias, shore__buf dy, shore__buf dx_add, shore__buf x, shore__buf gain,
                                   shore__buf stats, enum shore__norm_kind kind, size_t rows, size_t d) {
    for (size_t i = 0; i < d; i++) {
        double g = shore__buf_is_none(dgain) ? 0 : floats(dgain)[i],
               b = shore__buf_is_none(dbias) ? 0 : floats(dbias)[i];
        for (size_t r = 0; r < rows; r++) {
            double mean = kind == SHORE__LAYER_NORM ? floats(stats)[2 * r] : 0, inv = floats(stats)[2 * r + 1];
            g += get(c, dy, r * d + i) * (get(c, x, r * d + i) - mean) * inv;
            b += get(c, dy, r * d + i);
        }
        if (!shore__buf_is_none(dgain)) floats(dgain)[i] = (float)g;
        if (!shore__buf_is_none(dbias)) floats(dbias)[i] = (float)b;
    }
    for (size_t r = 0; r < rows; r++)
        norm_row_backward(c, &(struct row){r * d, d, 0, 2 * r, kind}, dx, dy, dx_add, x, gain, stats);
    return 0;
}

/* Row `part` of the norms of row r: a head of queries, then of keys; whole: all of queries, then of keys. */
static struct row part_of(const struct shore__attention *a, bool whole, enum shore__norm_kind kind, size_t r,
                          size_t part) {
    size_t hd = a->head_dim, x = r * (a->n_head + 2 * a->n_kv_head) * hd;
    size_t parts = whole ? 2 : a->n_head + a->n_kv_head, stats = 2 * (r * parts + part);
    if (!whole) return (struct row){x + part * hd, hd, part < a->n_head ? 0 : hd, stats, kind};
    size_t queries = a->n_head * hd;
    return part ? (struct row){x + queries, a->n_kv_head * hd, queries, stats, kind}
                : (struct row){x, queries, 0, stats, kind};
}
static void copy_values(struct shore__compute *c, const struct shore__attention *a, shore__buf to, shore__buf from,
                        size_t r) {
    size_t row = (a->n_head + 2 * a->n_kv_head) * a->head_dim;
    for (size_t i = (a->n_head + a->n_kv_head) * a->head_dim; i < row; i++)
        put(c, to, r * row + i, get(c, from, r * row + i));
}

int shore__reference_head_norm(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf stats,
                               shore__buf x, shore__buf gain, float eps, enum shore__norm_kind kind, bool whole,
                               const struct shore__attention *a) {
    size_t parts = whole ? 2 : a->n_head + a->n_kv_head;
    for (size_t r = 0; r < a->sequences * a->seq_len; r++) {
        for (size_t part = 0; part < parts; part++) {
            struct row n = part_of(a, whole, kind, r, part);
            norm_row(c, &n, y, stats, x, gain, SHORE__NO_BUF, eps);
        }
        copy_values(c, a, y, x, r);
    }
    return 0;
}

int shore__reference_head_norm_backward(struct shore__compute *c, struct shore__stream *s, shore__buf dx,
                                        shore__buf dgain, shore__buf dy, shore__buf x, shore__buf gain,
                                        shore__buf stats, enum shore__norm_kind kind, bool whole,
                                        const struct shore__attention *a) {
    size_t parts = whole ? 2 : a->n_head + a->n_kv_head, rows = a->sequences * a->seq_len;
    for (size_t r = 0; r < rows && !shore__buf_is_none(dgain); r++)
        for (size_t part = 0; part < parts; part++) {
            struct row n = part_of(a, whole, kind, r, part);
            for (size_t i = 0; i < n.d; i++)
                floats(dgain)[n.gain + i] +=
                    (float)(get(c, dy, n.x + i) * get(c, x, n.x + i) * floats(stats)[n.stats + 1]);
        }
    for (size_t r = 0; r < rows; r++) {
        for (size_t part = 0; part < parts; part++) {
            struct row n = part_of(a, whole, kind, r, part);
            norm_row_backward(c, &n, dx, dy, SHORE__NO_BUF, x, gain, stats);
        }
        copy_values(c, a, dx, dy, r);
    }
    return 0;
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double act(double x, enum shore__act_fn f) {
    switch (f) {
    case SHORE__GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case SHORE__GELU_ERF:
        return 0.5 * x * erfc(-x / sqrt(2));
    case SHORE__RELU:
        return x < 0 ? 0 : x;
    default:
        return x * sigmoid(x);
    }
}
static double slope(double x, enum shore__act_fn f) {
    switch (f) {
    case SHORE__GELU_TANH: {
        double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    }
    case SHORE__GELU_ERF:
        return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    case SHORE__RELU:
        return x > 0;
    default:
        return sigmoid(x) * (1 + x * (1 - sigmoid(x)));
    }
}

int shore__reference_act(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf x,
                         enum shore__act_fn f, bool gated, size_t rows, size_t width) {
    size_t out = gated ? width / 2 : width;
    for (size_t i = 0; f == SHORE__SWIGLU_CLAMPED && i < rows * out; i++) {
        double g = fmin(get(c, x, 2 * i), 7), u = fmin(fmax(get(c, x, 2 * i + 1), -7), 7);
        put(c, y, i, (u + 1) * g * sigmoid(1.702 * g));
    }
    for (size_t r = 0; f != SHORE__SWIGLU_CLAMPED && r < rows; r++)
        for (size_t i = 0; i < out; i++) {
            double value = act(get(c, x, r * width + i), f);
            put(c, y, r * out + i, gated ? value * get(c, x, r * width + out + i) : value);
        }
    return 0;
}

int shore__reference_act_backward(struct shore__compute *c, struct shore__stream *s, shore__buf dx, shore__buf dy,
                                  shore__buf x, enum shore__act_fn f, bool gated, size_t rows, size_t width) {
    size_t out = gated ? width / 2 : width;
    for (size_t i = 0; f == SHORE__SWIGLU_CLAMPED && i < rows * out; i++) {
        double gate = get(c, x, 2 * i), up = get(c, x, 2 * i + 1), d = get(c, dy, i);
        double g = fmin(gate, 7), sig = sigmoid(1.702 * g);
        put(c, dx, 2 * i, gate > 7 ? 0 : d * (fmin(fmax(up, -7), 7) + 1) * (sig + 1.702 * g * sig * (1 - sig)));
        put(c, dx, 2 * i + 1, fabs(up) > 7 ? 0 : d * g * sig);
    }
    for (size_t r = 0; f != SHORE__SWIGLU_CLAMPED && r < rows; r++)
        for (size_t i = 0; i < out; i++) {
            double d = get(c, dy, r * out + i), v = get(c, x, r * width + i);
            double up = gated ? get(c, x, r * width + out + i) : 1;
            put(c, dx, r * width + i, d * up * slope(v, f));
            if (gated) put(c, dx, r * width + out + i, d * act(v, f));
        }
    return 0;
}
