/* What the files of the scalar reference share. */
#ifndef SHORE_COMPUTE_REFERENCE_H
#define SHORE_COMPUTE_REFERENCE_H

#include "compute/compute.h"
#include "number/bf16.h"

/* Element i of an activation (or of a weight: they have the same types). */
static inline double shore__reference_get(const struct shore__compute *c, shore__buf b, size_t i) {
    if (c->mode == SHORE__BF16) return shore__bf16_to_f32(((const uint16_t *)b.handle)[i]);
    return ((const float *)b.handle)[i];
}
static inline void shore__reference_put(const struct shore__compute *c, shore__buf b, size_t i, double value) {
    float x = (float)value;
    if (c->mode == SHORE__BF16)
        ((uint16_t *)b.handle)[i] = shore__f32_to_bf16(x);
    else if (c->mode == SHORE__BF16_IN_F32)
        ((float *)b.handle)[i] = shore__bf16_to_f32(shore__f32_to_bf16(x));
    else
        ((float *)b.handle)[i] = x;
}

int shore__reference_rope(struct shore__compute *, struct shore__stream *, shore__buf qkv, shore__buf cos_sin,
                          const struct shore__attention *a, size_t first_position, bool inverse);
int shore__reference_attention(struct shore__compute *, struct shore__stream *, shore__buf out, shore__buf lse,
                               shore__buf qkv, const struct shore__attention *a);
int shore__reference_attention_backward(struct shore__compute *, struct shore__stream *, shore__buf dqkv,
                                        shore__buf dout, shore__buf qkv, shore__buf out, shore__buf lse,
                                        const struct shore__attention *a);
int shore__reference_attention_cached(struct shore__compute *, struct shore__stream *, shore__buf out, shore__buf lse,
                                      shore__buf qkv, shore__buf keys, shore__buf values, size_t rows, size_t first,
                                      size_t capacity, const struct shore__attention *a);
int shore__reference_attention_merge(struct shore__compute *, struct shore__stream *, shore__buf out, shore__buf lse,
                                     shore__buf outs, shore__buf lses, size_t parts, size_t rows,
                                     const struct shore__attention *a);

int shore__reference_norm(struct shore__compute *, struct shore__stream *, shore__buf y, shore__buf stats, shore__buf x,
                          shore__buf gain, shore__buf bias, float eps, bool rms, size_t rows, size_t d);
int shore__reference_norm_backward(struct shore__compute *, struct shore__stream *, shore__buf dx, shore__buf dgain,
                                   shore__buf dbias, shore__buf dy, shore__buf dx_add, shore__buf x, shore__buf gain,
                                   shore__buf stats, bool rms, size_t rows, size_t d);
int shore__reference_act(struct shore__compute *, struct shore__stream *, shore__buf y, shore__buf x,
                         enum shore__act_fn f, bool gated, size_t rows, size_t width);
int shore__reference_act_backward(struct shore__compute *, struct shore__stream *, shore__buf dx, shore__buf dy,
                                  shore__buf x, enum shore__act_fn f, bool gated, size_t rows, size_t width);

#endif
