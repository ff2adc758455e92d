/* Specification of moments in 8 bits: every other version gives the same bits. */
#include "near/moments_impl.h"

/* Code of x, whose magnitude is at most 1. */
static inline unsigned char nearest(const struct shore__dynamic_code *code, float x) {
    uint32_t bits = shore__f32_bits(x);
    bool negative = bits >> 31;
    float a = shore__bits_f32(bits & SHORE__MAGNITUDE);
    int d = 0;
    for (int i = 0; i < 7; i++)
        d += a > code->bound[i];
    int32_t n = (int32_t)(a * code->scale[d] + code->shift[d]);
    if (n > code->cap[d]) n = code->cap[d];
    if (n < (d > 0)) n = 1;
    if (negative) return (unsigned char)(code->zero ? code->zero - n : 0);
    return (unsigned char)(code->zero + n + (a > code->bound[7]));
}

static int quantise_block(const struct shore__dynamic_code *code, unsigned char *out, float *absmax, const float *in) {
    uint32_t most = 0;
    for (size_t i = 0; i < SHORE__MOMENT_BLOCK_ELEMS; i++) {
        uint32_t magnitude = shore__f32_bits(in[i]) & SHORE__MAGNITUDE;
        if (magnitude > most) most = magnitude;
    }
    if (most == 0 || most >= SHORE__INFINITY) return shore__quantise_odd(code, out, absmax, most);
    *absmax = shore__bits_f32(most);
    for (size_t i = 0; i < SHORE__MOMENT_BLOCK_ELEMS; i++)
        out[i] = nearest(code, in[i] / *absmax);
    return 0;
}

int shore__quantise_scalar(const struct shore__dynamic_code *code, const struct shore__moment8 *out, const float *in,
                           size_t elems) {
    int worst = 0;
    for (size_t b = 0; b < elems / SHORE__MOMENT_BLOCK_ELEMS; b++) {
        size_t at = b * SHORE__MOMENT_BLOCK_ELEMS;
        int rc = quantise_block(code, out->code + at, &out->absmax[b], in + at);
        if (rc) worst = rc;
    }
    return worst;
}

void shore__dequantise_scalar(const struct shore__dynamic_code *code, float *out, const struct shore__moment8 *in,
                              size_t elems) {
    for (size_t i = 0; i < elems; i++)
        out[i] = code->value[in->code[i]] * in->absmax[i / SHORE__MOMENT_BLOCK_ELEMS];
}
