/* Experts of the CPU backend: which rows go to which, and what comes back. Rows are split over threads; what counts
 * over rows is small, and one thread does it in order. */
#include <float.h>
#include <string.h>

#include "compute/cpu.h"
#include "number/bf16.h"

#define STRETCH ((size_t)256) /* elements of a row that are summed at once */
#define LANES ((size_t)16)    /* of a sum over a row */

static float *part(shore__buf route, enum shore__route_part which, size_t rows, const struct shore__routing *r) {
    return (float *)shore__cpu_ptr(route) + shore__route_at(which, rows, r);
}
static int32_t *numbers(shore__buf route, enum shore__route_part which, size_t rows, const struct shore__routing *r) {
    return (int32_t *)(void *)part(route, which, rows, r);
}
static char *row_of(const struct shore__cpu *c, shore__buf b, size_t row, size_t width) {
    return (char *)shore__cpu_ptr(b) + row * width * shore__mode_bytes(c->base.mode);
}

/* n elements of an activation, from element `at` on, as fp32: in place, or widened into `room`. */
static const float *floats(const struct shore__cpu *c, const char *act, size_t at, size_t n, float *room) {
    if (c->base.mode != SHORE__BF16) return (const float *)(const void *)act + at;
    shore__f32_from_bf16(room, (const uint16_t *)(const void *)act + at, n);
    return room;
}
static float as_activation(const struct shore__cpu *c, float x) {
    return c->base.mode == SHORE__F32 ? x : shore__bf16_to_f32(shore__f32_to_bf16(x));
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

/* p [experts] = the softmax of a row's logits. */
static void softmax(const struct shore__cpu *c, float *p, const char *logits, size_t experts) {
    float max = -FLT_MAX, sum = 0;
    const float *l = floats(c, logits, 0, experts, p);
    for (size_t e = 0; e < experts; e++)
        if (l[e] > max) max = l[e];
    c->kernels->exp(p, l, max, experts);
    for (size_t e = 0; e < experts; e++)
        sum += p[e];
    for (size_t e = 0; e < experts; e++)
        p[e] /= sum;
}

/* The largest logits, largest first; of equal ones, the first. */
static void choose(int32_t *chosen, const float *logits, const struct shore__routing *r) {
    for (size_t e = 0; e < r->experts; e++) {
        size_t at = e < r->chosen ? e : r->chosen;
        for (; at > 0 && logits[e] > logits[chosen[at - 1]]; at--)
            if (at < r->chosen) chosen[at] = chosen[at - 1];
        if (at < r->chosen) chosen[at] = (int32_t)e;
    }
}

static void route_row(const struct shore__cpu *c, float *weight, int32_t *expert, const char *logits,
                      const struct shore__routing *r) {
    float p[SHORE__EXPERTS_MOST], sum = 0;
    choose(expert, floats(c, logits, 0, r->experts, p), r);
    softmax(c, p, logits, r->experts);
    for (size_t j = 0; j < r->chosen; j++)
        sum += p[expert[j]];
    for (size_t j = 1; j < r->chosen; j++) /* in the order of experts */
        for (size_t i = j; i > 0 && expert[i] < expert[i - 1]; i--) {
            int32_t swapped = expert[i];
            expert[i] = expert[i - 1];
            expert[i - 1] = swapped;
        }
    for (size_t j = 0; j < r->chosen; j++)
        weight[j] = as_activation(c, r->renormalised ? p[expert[j]] / sum : p[expert[j]]);
}

int shore__cpu_route(struct shore__compute *base, struct shore__stream *s, shore__buf route, shore__buf logits,
                     size_t rows, const struct shore__routing *r) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    float *weight = part(route, SHORE__ROUTE_WEIGHT, rows, r);
    int32_t *expert = numbers(route, SHORE__ROUTE_EXPERT, rows, r),
            *place = numbers(route, SHORE__ROUTE_PLACE, rows, r);
    int32_t *row = numbers(route, SHORE__ROUTE_ROW, rows, r), *first = numbers(route, SHORE__ROUTE_FIRST, rows, r);
    SHORE__FOR_PART(c, rows, 1, p) {
        for (size_t t = p.begin; t < p.end; t++)
            route_row(c, weight + t * r->chosen, expert + t * r->chosen, row_of(c, logits, t, r->experts), r);
    }
    int32_t next[SHORE__EXPERTS_MOST];
    memset(first, 0, (r->experts + 1) * sizeof *first);
    for (size_t i = 0; i < rows * r->chosen; i++)
        first[expert[i] + 1]++;
    for (size_t e = 0; e < r->experts; e++)
        first[e + 1] += next[e] = first[e];
    for (size_t i = 0; i < rows * r->chosen; i++) {
        place[i] = next[expert[i]]++;
        row[place[i]] = (int32_t)(i / r->chosen);
    }
    return 0;
}

/* The softmax over all logits, or over the chosen ones, is differentiated as one function: it is then exact where the
 * sum of the chosen ones is small. */
int shore__cpu_route_backward(struct shore__compute *base, struct shore__stream *s, shore__buf dlogits,
                              shore__buf dweights, shore__buf logits, shore__buf route, shore__buf balance, size_t rows,
                              const struct shore__routing *r) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    const float *dweight = shore__cpu_ptr(dweights), *balanced = shore__cpu_ptr(balance);
    const int32_t *expert = numbers(route, SHORE__ROUTE_EXPERT, rows, r);
    SHORE__FOR_PART(c, rows, 1, part) {
        float p[SHORE__EXPERTS_MOST], d[SHORE__EXPERTS_MOST];
        for (size_t t = part.begin; t < part.end; t++) {
            const int32_t *chosen = expert + t * r->chosen;
            const float *dw = dweight + t * r->chosen;
            float sum = 0, mean = 0, all = 0;
            softmax(c, p, row_of(c, logits, t, r->experts), r->experts);
            for (size_t j = 0; j < r->chosen; j++) {
                sum += p[chosen[j]];
                mean += p[chosen[j]] * dw[j];
            }
            if (r->renormalised) mean /= sum;
            for (size_t e = 0; balanced && e < r->experts; e++)
                all += p[e] * balanced[e];
            for (size_t e = 0; e < r->experts; e++)
                d[e] = (r->renormalised ? 0 : -p[e] * mean) + (balanced ? p[e] * (balanced[e] - all) : 0);
            for (size_t j = 0; j < r->chosen; j++)
                d[chosen[j]] += r->renormalised ? p[chosen[j]] / sum * (dw[j] - mean) : p[chosen[j]] * dw[j];
            c->kernels->round(row_of(c, dlogits, t, r->experts), d, r->experts, base->mode);
        }
    }
    return 0;
}

int shore__cpu_route_count(struct shore__compute *base, struct shore__stream *s, shore__buf load, shore__buf logits,
                           shore__buf route, size_t rows, const struct shore__routing *r) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    const int32_t *first = numbers(route, SHORE__ROUTE_FIRST, rows, r);
    double *times = shore__cpu_ptr(load), *sums = times + r->experts;
    float p[SHORE__EXPERTS_MOST];
    for (size_t e = 0; e < r->experts; e++)
        times[e] += first[e + 1] - first[e];
    for (size_t t = 0; !shore__buf_is_none(logits) && t < rows; t++) {
        softmax(c, p, row_of(c, logits, t, r->experts), r->experts);
        for (size_t e = 0; e < r->experts; e++)
            sums[e] += p[e];
    }
    return 0;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

int shore__cpu_experts_gather(struct shore__compute *base, struct shore__stream *s, shore__buf y, shore__buf x,
                              shore__buf route, size_t rows, size_t d, const struct shore__routing *r) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    const int32_t *row = numbers(route, SHORE__ROUTE_ROW, rows, r);
    SHORE__FOR_PART(c, rows * r->chosen, 1, p) {
        for (size_t i = p.begin; i < p.end; i++)
            memcpy(row_of(c, y, i, d), row_of(c, x, (size_t)row[i], d), d * shore__mode_bytes(base->mode));
    }
    return 0;
}

int shore__cpu_experts_scatter(struct shore__compute *base, struct shore__stream *s, shore__buf y, shore__buf x,
                               shore__buf route, size_t rows, size_t d, bool weighted, bool add,
                               const struct shore__routing *r) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    const float *weight = part(route, SHORE__ROUTE_WEIGHT, rows, r);
    const int32_t *place = numbers(route, SHORE__ROUTE_PLACE, rows, r);
    SHORE__FOR_PART(c, rows, 1, p) {
        float sum[STRETCH], room[STRETCH];
        for (size_t t = p.begin; t < p.end; t++)
            for (size_t at = 0, n; at < d; at += n) {
                char *to = row_of(c, y, t, d);
                n = d - at < STRETCH ? d - at : STRETCH;
                if (add)
                    memcpy(sum, floats(c, to, at, n, room), n * sizeof *sum);
                else
                    memset(sum, 0, n * sizeof *sum);
                for (size_t i = t * r->chosen; i < (t + 1) * r->chosen; i++) {
                    const float *v = floats(c, row_of(c, x, (size_t)place[i], d), at, n, room);
                    const float w = weighted ? weight[i] : 1;
                    for (size_t e = 0; e < n; e++)
                        sum[e] += w * v[e];
                }
                c->kernels->round(to + at * shore__mode_bytes(base->mode), sum, n, base->mode);
            }
    }
    return 0;
}

static float sum_of(float lanes[LANES]) {
    for (size_t step = LANES / 2; step; step /= 2)
        for (size_t l = 0; l < step; l++)
            lanes[l] += lanes[l + step];
    return lanes[0];
}

/* Multiplies row d by the weight, and row act if it is given; returns what d was times act, or times the bias. */
static float weigh(const struct shore__cpu *c, char *d, char *act, const float *bias, float weight, size_t width) {
    float lanes[LANES] = {0}, a[STRETCH], b[STRETCH], room[STRETCH];
    for (size_t at = 0, n; at < width; at += n) {
        n = width - at < STRETCH ? width - at : STRETCH;
        memcpy(a, floats(c, d, at, n, room), n * sizeof *a);
        memcpy(b, act ? floats(c, act, at, n, room) : bias + at, n * sizeof *b);
        for (size_t e = 0; e < n; e++) {
            lanes[e % LANES] += a[e] * b[e];
            a[e] *= weight;
            b[e] *= weight;
        }
        c->kernels->round(d + at * shore__mode_bytes(c->base.mode), a, n, c->base.mode);
        if (act) c->kernels->round(act + at * shore__mode_bytes(c->base.mode), b, n, c->base.mode);
    }
    return sum_of(lanes);
}

int shore__cpu_experts_weigh(struct shore__compute *base, struct shore__stream *s, shore__buf dweights, shore__buf dact,
                             shore__buf act, shore__buf route, size_t rows, size_t width,
                             const struct shore__routing *r) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    const float *weight = part(route, SHORE__ROUTE_WEIGHT, rows, r);
    const int32_t *place = numbers(route, SHORE__ROUTE_PLACE, rows, r);
    float *dweight = shore__cpu_ptr(dweights);
    SHORE__FOR_PART(c, rows * r->chosen, 1, p) {
        for (size_t i = p.begin; i < p.end; i++)
            dweight[i] = weigh(c, row_of(c, dact, (size_t)place[i], width), row_of(c, act, (size_t)place[i], width),
                               NULL, weight[i], width);
    }
    return 0;
}

int shore__cpu_experts_weigh_bias(struct shore__compute *base, struct shore__stream *s, shore__buf dweights,
                                  shore__buf dy, shore__buf bias, shore__buf route, size_t rows, size_t n,
                                  const struct shore__routing *r) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    const float *weight = part(route, SHORE__ROUTE_WEIGHT, rows, r), *biases = shore__cpu_ptr(bias);
    const int32_t *place = numbers(route, SHORE__ROUTE_PLACE, rows, r);
    const int32_t *expert = numbers(route, SHORE__ROUTE_EXPERT, rows, r);
    float *dweight = shore__cpu_ptr(dweights);
    SHORE__FOR_PART(c, rows * r->chosen, 1, p) {
        for (size_t i = p.begin; i < p.end; i++)
            dweight[i] += weigh(c, row_of(c, dy, (size_t)place[i], n), NULL,
                                biases + (size_t)expert[i] * r->bias_stride, weight[i], n);
    }
    return 0;
}
