/* The 8-bit floating-point numbers of files: fp8 e4m3 (torch.float8_e4m3fn), and powers of two (e8m0). */
#ifndef SHORE_NUMBER_FP8_H
#define SHORE_NUMBER_FP8_H

#include "number/bf16.h"

static inline float shore__e4m3_to_f32(uint8_t code) {
    const uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7Fu;
    /* below 8, it counts in 2^-9; else it is an exponent and a fraction, as in fp32 */
    const uint32_t bits = magnitude < 8 ? shore__f32_bits((float)magnitude * 0x1p-9f) : (magnitude << 20) + 0x3C000000u;
    return shore__bits_f32(sign | (magnitude == 0x7Fu ? 0x7FC00000u : bits));
}

/* 2^(code - 127). 255, which is no number, gives infinity. */
static inline float shore__e8m0_to_f32(uint8_t code) {
    return shore__bits_f32(code ? (uint32_t)code << 23 : 0x00400000u);
}

#endif
