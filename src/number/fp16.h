/* fp16, as files store it. */
#ifndef SHORE_NUMBER_FP16_H
#define SHORE_NUMBER_FP16_H

#include "number/bf16.h"

/* The smallest magnitude that becomes infinite: the largest finite fp16 is 65504. */
#define SHORE__F16_OVERFLOWS 65520.0f

/* Rounds to nearest, ties to even, also below 2^-14; NaN stays NaN. */
static inline uint16_t shore__f32_to_f16(float x) {
    uint32_t u = shore__f32_bits(x), sign = u >> 16 & 0x8000u, magnitude = u & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);
    if (magnitude >= shore__f32_bits(SHORE__F16_OVERFLOWS)) return (uint16_t)(sign | 0x7C00u);
    /* next to 0.5, the last place of fp32 is fp16's smallest number: 2^-24 */
    if (magnitude < 0x38800000u)
        return (uint16_t)(sign | (shore__f32_bits(shore__bits_f32(magnitude) + 0.5f) - 0x3F000000u));
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1u)) >> 13));
}

static inline float shore__f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 1023u;
    if (exponent == 31) return shore__bits_f32(sign | 0x7F800000u | fraction << 13);
    if (exponent) return shore__bits_f32(sign | (exponent + 112) << 23 | fraction << 13);
    float magnitude = (float)fraction * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

#endif
