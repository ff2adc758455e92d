/* The scalar reference: routing, and the products of experts. */
#include <math.h>
#include <stdlib.h>

#include "reference/reference.h"

#define get shore__reference_get
#define put shore__reference_put

static float *floats(shore__buf b) {
    return (float *)b.handle;
}
/* Element i of a part of route. */
static float *weight(shore__buf route, size_t i) {
    return floats(route) + i;
}
static int32_t *number(shore__buf route, enum shore__route_part part, size_t rows, const struct shore__routing *r,
                       size_t i) {
    return (int32_t *)route.handle + shore__route_at(part, rows, r) + i;
}
#define FIRST(e) ((size_t)*number(route, SHORE__ROUTE_FIRST, rows, r, e))
#define PLACE(i) ((size_t)*number(route, SHORE__ROUTE_PLACE, rows, r, i))
#define EXPERT(i) ((size_t)*number(route, SHORE__ROUTE_EXPERT, rows, r, i))

/* The softmax of logit e of a row. */
static double probability(struct shore__compute *c, shore__buf logits, size_t row, size_t e,
                          const struct shore__routing *r) {
    double sum = 0;
    for (size_t i = 0; i < r->experts; i++)
        sum += exp(get(c, logits, row * r->experts + i) - get(c, logits, row * r->experts + e));
    return 1 / sum;
}

/* How many experts come before e in a row. */
static size_t rank_of(struct shore__compute *c, shore__buf logits, size_t row, size_t e,
                      const struct shore__routing *r) {
    size_t before = 0;
    double own = get(c, logits, row * r->experts + e);
    for (size_t i = 0; i < r->experts; i++) {
        double other = get(c, logits, row * r->experts + i);
        before += other > own || (other == own && i < e);
    }
    return before;
}

int shore__reference_route(struct shore__compute *c, struct shore__stream *s, shore__buf route, shore__buf logits,
                           size_t rows, const struct shore__routing *r) {
    for (size_t t = 0; t < rows; t++) {
        double sum = 0;
        for (size_t e = 0, j = 0; e < r->experts; e++)
            if (rank_of(c, logits, t, e, r) < r->chosen) {
                *number(route, SHORE__ROUTE_EXPERT, rows, r, t * r->chosen + j++) = (int32_t)e;
                sum += probability(c, logits, t, e, r);
            }
        for (size_t i = t * r->chosen; i < (t + 1) * r->chosen; i++)
            *weight(route, i) = (float)(probability(c, logits, t, EXPERT(i), r) / (r->renormalised ? sum : 1));
    }
    size_t next = 0;
    for (size_t e = 0; e <= r->experts; e++) {
        *number(route, SHORE__ROUTE_FIRST, rows, r, e) = (int32_t)next;
        for (size_t i = 0; e < r->experts && i < rows * r->chosen; i++)
            if (EXPERT(i) == e) {
                *number(route, SHORE__ROUTE_ROW, rows, r, next) = (int32_t)(i / r->chosen);
                *number(route, SHORE__ROUTE_PLACE, rows, r, i) = (int32_t)next++;
            }
    }
    if (c->mode != SHORE__F32)
        for (size_t i = 0; i < rows * r->chosen; i++)
            *weight(route, i) = shore__bf16_to_f32(shore__f32_to_bf16(*weight(route, i)));
    return 0;
}

int shore__reference_route_backward(struct shore__compute *c, struct shore__stream *s, shore__buf dlogits,
                                    shore__buf dweights, shore__buf logits, shore__buf route, shore__buf balance,
                                    size_t rows, const struct shore__routing *r) {
    for (size_t t = 0; t < rows; t++) {
        double chosen = 0;
        for (size_t i = t * r->chosen; i < (t + 1) * r->chosen; i++)
            chosen += probability(c, logits, t, EXPERT(i), r);
        for (size_t x = 0; x < r->experts; x++) {
            double px = probability(c, logits, t, x, r), d = 0;
            bool is_chosen = rank_of(c, logits, t, x, r) < r->chosen;
            for (size_t i = t * r->chosen; i < (t + 1) * r->chosen; i++) {
                double p = probability(c, logits, t, EXPERT(i), r), own = EXPERT(i) == x;
                double slope = r->renormalised ? p / chosen * (own - (is_chosen ? px / chosen : 0)) : p * (own - px);
                d += floats(dweights)[i] * slope;
            }
            for (size_t e = 0; !shore__buf_is_none(balance) && e < r->experts; e++)
                d += floats(balance)[e] * probability(c, logits, t, e, r) * ((e == x) - px);
            put(c, dlogits, t * r->experts + x, d);
        }
    }
    return 0;
}

int shore__reference_route_count(struct shore__compute *c, struct shore__stream *s, shore__buf load, shore__buf logits,
                                 shore__buf route, size_t rows, const struct shore__routing *r) {
    double *times = (double *)load.handle;
    for (size_t e = 0; e < r->experts; e++) {
        times[e] += (double)(FIRST(e + 1) - FIRST(e));
        for (size_t t = 0; !shore__buf_is_none(logits) && t < rows; t++)
            times[r->experts + e] += probability(c, logits, t, e, r);
    }
    return 0;
}

int shore__reference_experts_gather(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf x,
                                    shore__buf route, size_t rows, size_t d, const struct shore__routing *r) {
    for (size_t i = 0; i < rows * r->chosen; i++)
        for (size_t e = 0; e < d; e++)
            put(c, y, PLACE(i) * d + e, get(c, x, i / r->chosen * d + e));
    return 0;
}

int shore__reference_experts_scatter(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf x,
                                     shore__buf route, size_t rows, size_t d, bool weighted, bool add,
                                     const struct shore__routing *r) {
    for (size_t t = 0; t < rows; t++)
        for (size_t e = 0; e < d; e++) {
            double sum = add ? get(c, y, t * d + e) : 0;
            for (size_t i = t * r->chosen; i < (t + 1) * r->chosen; i++)
                sum += (weighted ? (double)*weight(route, i) : 1) * get(c, x, PLACE(i) * d + e);
            put(c, y, t * d + e, sum);
        }
    return 0;
}

int shore__reference_experts_weigh(struct shore__compute *c, struct shore__stream *s, shore__buf dweights,
                                   shore__buf dact, shore__buf act, shore__buf route, size_t rows, size_t width,
                                   const struct shore__routing *r) {
    for (size_t i = 0; i < rows * r->chosen; i++) {
        double sum = 0;
        for (size_t e = PLACE(i) * width; e < (PLACE(i) + 1) * width; e++) {
            sum += get(c, dact, e) * get(c, act, e);
            put(c, dact, e, get(c, dact, e) * *weight(route, i));
            put(c, act, e, get(c, act, e) * *weight(route, i));
        }
        floats(dweights)[i] = (float)sum;
    }
    return 0;
}

int shore__reference_experts_weigh_bias(struct shore__compute *c, struct shore__stream *s, shore__buf dweights,
                                        shore__buf dy, shore__buf bias, shore__buf route, size_t rows, size_t n,
                                        const struct shore__routing *r) {
    for (size_t i = 0; i < rows * r->chosen; i++) {
        double sum = floats(dweights)[i];
        for (size_t e = 0; e < n; e++) {
            double d = get(c, dy, PLACE(i) * n + e);
            sum += d * floats(bias)[EXPERT(i) * r->bias_stride + e];
            put(c, dy, PLACE(i) * n + e, d * *weight(route, i));
        }
        floats(dweights)[i] = (float)sum;
    }
    return 0;
}

/* ---- products: those of a layer, expert by expert ---------------------------------------------------------------- */

#define EACH(e) for (size_t e = 0; e < r->experts; e++)
static shore__buf at(struct shore__compute *c, shore__buf b, size_t elems) {
    return shore__buf_is_none(b) ? b : shore__at(b, elems * shore__mode_bytes(c->mode));
}

int shore__reference_experts_linear(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf x,
                                    shore__buf w, shore__buf bias, shore__buf route, size_t rows, size_t n, size_t k,
                                    bool w_is_nk, const struct shore__routing *r) {
    EACH(e)
    c->ops->linear(c, s, at(c, y, FIRST(e) * n), at(c, x, FIRST(e) * k), at(c, w, e * r->stride),
                   shore__buf_is_none(bias) ? bias : shore__at(bias, e * r->bias_stride * 4), FIRST(e + 1) - FIRST(e),
                   n, k, w_is_nk);
    return 0;
}
int shore__reference_experts_linear_backward_x(struct shore__compute *c, struct shore__stream *s, shore__buf dx,
                                               shore__buf dy, shore__buf w, shore__buf route, size_t rows, size_t n,
                                               size_t k, bool w_is_nk, const struct shore__routing *r) {
    EACH(e)
    c->ops->linear_backward_x(c, s, at(c, dx, FIRST(e) * k), at(c, dy, FIRST(e) * n), at(c, w, e * r->stride),
                              FIRST(e + 1) - FIRST(e), n, k, w_is_nk);
    return 0;
}
int shore__reference_experts_linear_backward_w(struct shore__compute *c, struct shore__stream *s, shore__buf dw,
                                               shore__buf dy, shore__buf x, shore__buf route, size_t rows, size_t n,
                                               size_t k, bool w_is_nk, bool add, const struct shore__routing *r) {
    EACH(e)
    c->ops->linear_backward_w(c, s, shore__at(dw, e * r->stride * 4), at(c, dy, FIRST(e) * n), at(c, x, FIRST(e) * k),
                              FIRST(e + 1) - FIRST(e), n, k, w_is_nk, add);
    return 0;
}
int shore__reference_experts_bias_backward(struct shore__compute *c, struct shore__stream *s, shore__buf db,
                                           shore__buf dy, shore__buf route, size_t rows, size_t n,
                                           const struct shore__routing *r) {
    EACH(e)
    c->ops->bias_backward(c, s, shore__at(db, e * r->stride * 4), at(c, dy, FIRST(e) * n), FIRST(e + 1) - FIRST(e), n);
    return 0;
}
