/* The scalar reference: norms and activation functions. */
#include <math.h>

#include "reference/reference.h"

#define get shore__reference_get
#define put shore__reference_put

static float *floats(shore__buf b) {
    return (float *)b.handle;
}

int shore__reference_norm(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf stats,
                          shore__buf x, shore__buf gain, shore__buf bias, float eps, bool rms, size_t rows, size_t d) {
    for (size_t r = 0; r < rows; r++) {
        double mean = 0, square = 0;
        for (size_t i = 0; i < d && !rms; i++)
            mean += get(c, x, r * d + i) / (double)d;
        for (size_t i = 0; i < d; i++) {
            double v = get(c, x, r * d + i) - mean;
            square += v * v / (double)d;
        }
        double inv = 1 / sqrt(square + eps);
        floats(stats)[2 * r] = (float)mean;
        floats(stats)[2 * r + 1] = (float)inv;
        for (size_t i = 0; i < d; i++) {
            double b = shore__buf_is_none(bias) ? 0 : floats(bias)[i];
            put(c, y, r * d + i, (get(c, x, r * d + i) - mean) * inv * floats(gain)[i] + b);
        }
    }
    return 0;
}

int shore__reference_norm_backward(struct shore__compute *c, struct shore__stream *s, shore__buf dx, shore__buf dgain,
                                   shore__buf dbias, shore__buf dy, shore__buf dx_add, shore__buf x, shore__buf gain,
                                   shore__buf stats, bool rms, size_t rows, size_t d) {
    for (size_t i = 0; i < d; i++) {
        double g = floats(dgain)[i], b = shore__buf_is_none(dbias) ? 0 : floats(dbias)[i];
        for (size_t r = 0; r < rows; r++) {
            double mean = rms ? 0 : floats(stats)[2 * r], inv = floats(stats)[2 * r + 1];
            g += get(c, dy, r * d + i) * (get(c, x, r * d + i) - mean) * inv;
            b += get(c, dy, r * d + i);
        }
        floats(dgain)[i] = (float)g;
        if (!shore__buf_is_none(dbias)) floats(dbias)[i] = (float)b;
    }
    for (size_t r = 0; r < rows; r++) {
        double mean = rms ? 0 : floats(stats)[2 * r], inv = floats(stats)[2 * r + 1], sum_g = 0, sum_gh = 0;
        for (size_t i = 0; i < d; i++) {
            double g = get(c, dy, r * d + i) * floats(gain)[i], h = (get(c, x, r * d + i) - mean) * inv;
            sum_g += g;
            sum_gh += g * h;
        }
        if (rms) sum_g = 0;
        for (size_t i = 0; i < d; i++) {
            double g = get(c, dy, r * d + i) * floats(gain)[i], h = (get(c, x, r * d + i) - mean) * inv;
            double kept = shore__buf_is_none(dx_add) ? 0 : get(c, dx_add, r * d + i);
            put(c, dx, r * d + i, kept + inv * (g - sum_g / (double)d - h * sum_gh / (double)d));
        }
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
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < out; i++) {
            double value = act(get(c, x, r * width + i), f);
            put(c, y, r * out + i, gated ? value * get(c, x, r * width + out + i) : value);
        }
    return 0;
}

int shore__reference_act_backward(struct shore__compute *c, struct shore__stream *s, shore__buf dx, shore__buf dy,
                                  shore__buf x, enum shore__act_fn f, bool gated, size_t rows, size_t width) {
    size_t out = gated ? width / 2 : width;
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < out; i++) {
            double d = get(c, dy, r * out + i), v = get(c, x, r * width + i);
            double up = gated ? get(c, x, r * width + out + i) : 1;
            put(c, dx, r * width + i, d * up * slope(v, f));
            if (gated) put(c, dx, r * width + out + i, d * act(v, f));
        }
    return 0;
}
