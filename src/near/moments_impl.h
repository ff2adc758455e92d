/* Versions of quantising, private to near/. The caller sets the control register. */
#ifndef SHORE_NEAR_MOMENTS_IMPL_H
#define SHORE_NEAR_MOMENTS_IMPL_H

#include <string.h>

#include "near/moments.h"
#include "near/rule.h"
#include "number/bf16.h"

typedef int shore__quantise_fn(const struct shore__dynamic_code *code, const struct shore__moment8 *out,
                               const float *in, size_t elems);
typedef void shore__dequantise_fn(const struct shore__dynamic_code *code, float *out, const struct shore__moment8 *in,
                                  size_t elems);

shore__quantise_fn shore__quantise_scalar, shore__quantise_avx2, shore__quantise_avx512;
shore__dequantise_fn shore__dequantise_scalar, shore__dequantise_avx2, shore__dequantise_avx512,
    shore__dequantise_avx512_vbmi;

#define SHORE__INFINITY 0x7F800000u
#define SHORE__MAGNITUDE 0x7FFFFFFFu
#define SHORE__LOST_CODE 0xFF /* of 1, which times an absmax of NaN is NaN */

/* Handles a block whose largest magnitude is 0, infinity or NaN. */
static inline int shore__quantise_odd(const struct shore__dynamic_code *code, unsigned char *out, float *absmax,
                                      uint32_t most) {
    *absmax = most ? shore__bits_f32(SHORE__CANONICAL_NAN) : 0.0f;
    memset(out, most ? SHORE__LOST_CODE : code->zero, SHORE__MOMENT_BLOCK_ELEMS);
    return most ? SHORE_ENONFINITE : 0;
}

#endif
