/* bf16, and the split of an fp32 master weight into its bf16 rounding and a 16-bit remainder. */
#ifndef SHORE_NUMBER_BF16_H
#define SHORE_NUMBER_BF16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t shore__f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float shore__bits_f32(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* Rounds to nearest, ties to even; NaN stays a (quiet) NaN. Integer arithmetic keeps denormals. */
static inline uint16_t shore__f32_to_bf16(float x) {
    uint32_t u = shore__f32_bits(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}
static inline float shore__bf16_to_f32(uint16_t h) {
    return shore__bits_f32((uint32_t)h << 16);
}

/* Splits a master: hi is its bf16, rounded with ties away from zero; lo restores all 32 bits, in modular 16-bit
 * arithmetic. Split and join are the identity on every bit pattern. */
static inline void shore__split_f32(float master, uint16_t *hi, uint16_t *lo) {
    uint32_t u = shore__f32_bits(master);
    *hi = (uint16_t)((u + 0x8000u) >> 16);
    *lo = (uint16_t)u;
}
static inline float shore__join_f32(uint16_t hi, uint16_t lo) {
    /* hi was rounded up exactly if lo has its top bit set */
    return shore__bits_f32(((uint32_t)(uint16_t)(hi - (lo >> 15)) << 16) | lo);
}

/* The same for arrays, with the fastest version for this processor. In and out may not overlap. Threading: any. */
void shore__bf16_from_f32(uint16_t *out, const float *in, size_t elems);
void shore__f32_from_bf16(float *out, const uint16_t *in, size_t elems);
/* The same where in may be the upper half of out. */
void shore__f32_from_bf16_below(float *out, const uint16_t *in, size_t elems);
void shore__f32_split(uint16_t *hi, uint16_t *lo, const float *in, size_t elems);
void shore__f32_join(float *out, const uint16_t *hi, const uint16_t *lo, size_t elems);

#endif
