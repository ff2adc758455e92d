/* The 8-bit floating-point numbers of files: fp8 e4m3 (torch.float8_e4m3fn), and powers of two (e8m0). */
#ifndef SHORE_NUMBER_FP8_H
#define SHORE_NUMBER_FP8_H

#include "number/fp16.h"

/* fp16 has a wider exponent: the same bits there mean 2^-8 of the number. */
static inline float shore__e4m3_to_f32(uint8_t code) {
    uint16_t magnitude = code & 0x7Fu;
    if (magnitude == 0x7Fu) return shore__bits_f32(0x7FC00000u);
    return shore__f16_to_f32((uint16_t)((code & 0x80u) << 8 | magnitude << 7)) * 256;
}

/* 2^(code - 127). 255, which is no number, gives infinity. */
static inline float shore__e8m0_to_f32(uint8_t code) {
    return shore__bits_f32(code ? (uint32_t)code << 23 : 0x00400000u);
}

#endif
