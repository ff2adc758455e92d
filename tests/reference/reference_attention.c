/* The scalar reference: rotary positions and attention, one query at a time. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "reference/reference.h"

#define get shore__reference_get
#define put shore__reference_put

static float *floats(shore__buf b) {
    return (float *)b.handle;
}

int shore__reference_rope(struct shore__compute *c, struct shore__stream *s, shore__buf qkv, shore__buf cos_sin,
                          const struct shore__attention *a, size_t first_position, bool inverse) {
    size_t hd = a->head_dim, turned = shore__rotary_dim(a), half = turned / 2;
    size_t row = (a->n_head + 2 * a->n_kv_head) * hd;
    for (size_t r = 0; r < a->sequences * a->seq_len; r++)
        for (size_t h = 0; h < a->n_head + a->n_kv_head; h++)
            for (size_t i = 0; i < half; i++) {
                const float *table = floats(cos_sin) + (first_position + r % a->seq_len) * turned;
                double cosine = table[i], sine = inverse ? -table[half + i] : table[half + i];
                size_t at = r * row + h * hd + i;
                double x = get(c, qkv, at), y = get(c, qkv, at + half);
                put(c, qkv, at, x * cosine - y * sine);
                put(c, qkv, at + half, y * cosine + x * sine);
            }
    return 0;
}

/* Where one query head's vectors lie: element i of key p at k + p kv_ld + i. */
struct head {
    shore__buf keys, values;
    size_t k, v, kv_ld, number;
};

static double dot(struct shore__compute *c, shore__buf a, size_t i, shore__buf b, size_t j, size_t n) {
    double sum = 0;
    for (size_t e = 0; e < n; e++)
        sum += get(c, a, i + e) * get(c, b, j + e);
    return sum;
}

static size_t oldest(const struct shore__attention *a, size_t position) {
    return a->window && position + 1 > a->window ? position + 1 - a->window : 0;
}

static double capped(const struct shore__attention *a, double score) {
    return a->softcap == 0 ? score : a->softcap * tanh(score / a->softcap);
}

/* Probabilities of the keys that the query at `position` sees, and the logarithm of their sum. */
static double softmax(struct shore__compute *c, const struct shore__attention *a, shore__buf qkv, size_t q,
                      const struct head *h, size_t position, double *p) {
    bool sunk = !shore__buf_is_none(a->sinks);
    double sink = sunk ? floats(a->sinks)[h->number] : 0, max = sunk ? sink : -INFINITY, sum = 0;
    for (size_t key = oldest(a, position); key <= position; key++) {
        p[key] = capped(a, dot(c, qkv, q, h->keys, h->k + key * h->kv_ld, a->head_dim) * a->scale);
        if (!(p[key] <= max)) max = p[key];
    }
    for (size_t key = oldest(a, position); key <= position; key++)
        sum += p[key] = exp(p[key] - max);
    if (sunk) sum += exp(sink - max);
    for (size_t key = oldest(a, position); key <= position; key++)
        p[key] /= sum;
    return max + log(sum);
}

static void weigh(struct shore__compute *c, const struct shore__attention *a, shore__buf out, size_t at,
                  const struct head *h, size_t position, const double *p) {
    for (size_t i = 0; i < a->head_dim; i++) {
        double sum = 0;
        for (size_t key = oldest(a, position); key <= position; key++)
            sum += p[key] * get(c, h->values, h->v + key * h->kv_ld + i);
        put(c, out, at + i, sum);
    }
}

static struct head head_of(const struct shore__attention *a, shore__buf qkv, size_t sequence, size_t head) {
    size_t hd = a->head_dim, ld = (a->n_head + 2 * a->n_kv_head) * hd, kv = head / (a->n_head / a->n_kv_head);
    size_t base = sequence * a->seq_len * ld;
    return (struct head){qkv, qkv, base + (a->n_head + kv) * hd, base + (a->n_head + a->n_kv_head + kv) * hd, ld, head};
}

int shore__reference_attention(struct shore__compute *c, struct shore__stream *s, shore__buf out, shore__buf lse,
                               shore__buf qkv, const struct shore__attention *a) {
    size_t hd = a->head_dim, ld = (a->n_head + 2 * a->n_kv_head) * hd, rows = a->sequences * a->seq_len;
    double *p = malloc(a->seq_len * sizeof *p);
    if (!p) return -ENOMEM;
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < a->n_head; h++) {
            struct head head = head_of(a, qkv, r / a->seq_len, h);
            double log_sum = softmax(c, a, qkv, r * ld + h * hd, &head, r % a->seq_len, p);
            if (!shore__buf_is_none(lse)) floats(lse)[h * rows + r] = (float)log_sum;
            weigh(c, a, out, (r * a->n_head + h) * hd, &head, r % a->seq_len, p);
        }
    free(p);
    return 0;
}

int shore__reference_attention_cached(struct shore__compute *c, struct shore__stream *s, shore__buf out, shore__buf lse,
                                      shore__buf qkv, shore__buf keys, shore__buf values, size_t rows, size_t first,
                                      size_t capacity, const struct shore__attention *a) {
    size_t hd = a->head_dim, ld = (a->n_head + 2 * a->n_kv_head) * hd;
    double *p = malloc((first + rows) * sizeof *p);
    if (!p) return -ENOMEM;
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < a->n_head; h++) {
            size_t at = h / (a->n_head / a->n_kv_head) * capacity * hd;
            struct head head = {keys, values, at, at, hd, h};
            double log_sum = softmax(c, a, qkv, r * ld + h * hd, &head, first + r, p);
            if (!shore__buf_is_none(lse)) floats(lse)[h * rows + r] = (float)log_sum;
            weigh(c, a, out, (r * a->n_head + h) * hd, &head, first + r, p);
        }
    free(p);
    return 0;
}

int shore__reference_attention_backward(struct shore__compute *c, struct shore__stream *s, shore__buf dqkv,
                                        shore__buf dout, shore__buf qkv, shore__buf out, shore__buf lse,
                                        const struct shore__attention *a) {
    size_t hd = a->head_dim, ld = (a->n_head + 2 * a->n_kv_head) * hd, rows = a->sequences * a->seq_len;
    double *sum = calloc(rows * ld, sizeof *sum); /* dqkv before rounding */
    if (!sum) return -ENOMEM;
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < a->n_head; h++) {
            struct head head = head_of(a, qkv, r / a->seq_len, h);
            size_t position = r % a->seq_len, q = r * ld + h * hd, o = (r * a->n_head + h) * hd;
            double delta = dot(c, out, o, dout, o, hd);
            size_t first = oldest(a, position);
            for (size_t key = first; key <= position; key++) {
                size_t k = head.k + key * ld, v = head.v + key * ld;
                double score = capped(a, dot(c, qkv, q, qkv, k, hd) * a->scale);
                double p = exp(score - floats(lse)[h * rows + r]);
                double ds = p * (dot(c, dout, o, qkv, v, hd) - delta) * a->scale;
                if (a->softcap != 0) ds *= 1 - score / a->softcap * (score / a->softcap);
                /* otherwise rounding would decide it */
                if (first == position && shore__buf_is_none(a->sinks)) ds = 0;
                for (size_t i = 0; i < hd; i++) {
                    sum[q + i] += ds * get(c, qkv, k + i);
                    sum[k + i] += ds * get(c, qkv, q + i);
                    sum[v + i] += p * get(c, dout, o + i);
                }
            }
        }
    for (size_t i = 0; i < rows * ld; i++)
        put(c, dqkv, i, sum[i]);
    free(sum);
    return 0;
}

int shore__reference_sink_backward(struct shore__compute *c, struct shore__stream *s, shore__buf dsinks,
                                   shore__buf dout, shore__buf out, shore__buf lse, const struct shore__attention *a) {
    size_t hd = a->head_dim, rows = a->sequences * a->seq_len;
    for (size_t h = 0; h < a->n_head; h++) {
        double sum = floats(dsinks)[h];
        for (size_t r = 0; r < rows; r++) {
            size_t o = (r * a->n_head + h) * hd;
            sum -= exp((double)floats(a->sinks)[h] - floats(lse)[h * rows + r]) * dot(c, out, o, dout, o, hd);
        }
        floats(dsinks)[h] = (float)sum;
    }
    return 0;
}
