/* The head: logits of one slice of the vocabulary at a time, with the softmax carried over the slices. */
#include <math.h>

#include "compute/cpu.h"

int shore__cpu_head_logits(struct shore__compute *base, struct shore__stream *s, shore__buf logits, shore__buf x,
                           shore__buf w, float cap, size_t rows, size_t n, size_t d) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    struct shore__product product = shore__cpu_head_logits_product(c, rows, n, d);
    int rc = shore__cpu_product(c, &product, shore__cpu_ptr(logits), shore__cpu_ptr(x), shore__cpu_ptr(w), NULL);
    if (rc || cap == 0) return rc;
    SHORE__FOR_PART(c, rows, 1, p) {
        c->kernels->softcap((float *)shore__cpu_ptr(logits) + p.begin * n, cap, (p.end - p.begin) * n);
    }
    return 0;
}

int shore__cpu_head_merge(struct shore__compute *base, struct shore__stream *s, shore__buf max, shore__buf sum,
                          shore__buf target_logit, shore__buf logits, shore__buf targets, size_t rows, size_t n,
                          size_t first) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    float *m = shore__cpu_ptr(max), *z = shore__cpu_ptr(sum), *t = shore__cpu_ptr(target_logit);
    const float *l = shore__cpu_ptr(logits);
    const int32_t *target = shore__cpu_ptr(targets);
    SHORE__FOR_PART(c, rows, 1, p) {
        c->kernels->head_merge(m + p.begin, z + p.begin, t + p.begin, l + p.begin * n, target + p.begin,
                               p.end - p.begin, n, first);
    }
    return 0;
}

int shore__cpu_head_loss(struct shore__compute *base, struct shore__stream *s, shore__buf loss, shore__buf max,
                         shore__buf sum, shore__buf target_logit, shore__buf targets, size_t rows) {
    float *out = shore__cpu_ptr(loss);
    const float *m = shore__cpu_ptr(max), *z = shore__cpu_ptr(sum), *t = shore__cpu_ptr(target_logit);
    const int32_t *target = shore__cpu_ptr(targets);
    for (size_t r = 0; r < rows; r++)
        out[r] = target[r] < 0 ? 0.0f : logf(z[r]) - (t[r] - m[r]);
    return 0;
}

int shore__cpu_head_dlogits(struct shore__compute *base, struct shore__stream *s, shore__buf dlogits, shore__buf logits,
                            shore__buf max, shore__buf sum, shore__buf targets, float scale, float cap, size_t rows,
                            size_t n, size_t first) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    char *d = shore__cpu_ptr(dlogits);
    const float *l = shore__cpu_ptr(logits), *m = shore__cpu_ptr(max), *z = shore__cpu_ptr(sum);
    const int32_t *target = shore__cpu_ptr(targets);
    size_t row_bytes = n * shore__mode_bytes(base->mode);
    SHORE__FOR_PART(c, rows, 1, p) {
        c->kernels->head_dlogits(d + p.begin * row_bytes, l + p.begin * n, m + p.begin, z + p.begin, target + p.begin,
                                 scale, cap, p.end - p.begin, n, first, base->mode);
    }
    return 0;
}

int shore__cpu_head_backward_x(struct shore__compute *base, struct shore__stream *s, shore__buf dx_f32,
                               shore__buf dlogits, shore__buf w, size_t rows, size_t n, size_t d) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    struct shore__product p = shore__cpu_head_backward_x_product(rows, n, d);
    return shore__cpu_product(c, &p, shore__cpu_ptr(dx_f32), shore__cpu_ptr(dlogits), shore__cpu_ptr(w), NULL);
}

int shore__cpu_head_backward_w(struct shore__compute *base, struct shore__stream *s, shore__buf dw, shore__buf dlogits,
                               shore__buf x, size_t rows, size_t n, size_t d, bool add) {
    return shore__cpu_linear_backward_w(base, s, dw, dlogits, x, rows, n, d, true, add);
}
