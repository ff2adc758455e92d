/* fp32 arithmetic on bits, in integers alone (C++): add, multiply, divide and root, correctly rounded to nearest even,
 * with denormals. Floating-point cores of FPGAs take denormals as zero, so that they would give other bits than
 * processors do. These give the same wherever they are built, and no compiler can fuse them. A NaN that they make is
 * 0x7FC00000. Each is straight-line code over loops of a fixed length, so it takes new operands at every clock. */
#ifndef SHORE_NEAR_HLS_FP32_BITS_H
#define SHORE_NEAR_HLS_FP32_BITS_H

#include <stdint.h>

namespace fp32 {

const uint32_t SIGN = 0x80000000u, MAGNITUDE = 0x7FFFFFFFu, INF = 0x7F800000u, NOT_A_NUMBER = 0x7FC00000u,
               ONE = 0x3F800000u;

inline bool is_nan(uint32_t a) {
    return (a & MAGNITUDE) > INF;
}

inline int leading_zeros(uint32_t x) { /* x is not 0 */
    int n = 0;
    for (int step = 16; step; step /= 2) {
        bool empty = !(x >> (32 - step));
        n += empty ? step : 0;
        x <<= empty ? step : 0;
    }
    return n;
}

/* Shifts right. The lowest bit stays set if a bit is lost: rounding needs to know no more of them. */
inline uint32_t shift_jam(uint32_t x, int by) {
    if (by <= 0) return x;
    if (by > 31) return x != 0;
    return x >> by | ((x & ((1u << by) - 1)) != 0);
}

/* Rounds. significand: bit 30 leads, and the lowest 7 bits are below the last place; exponent: biased. */
inline uint32_t pack(uint32_t sign, int exponent, uint32_t significand) {
    if (exponent > 254) return sign | INF;
    significand = shift_jam(significand, 1 - exponent);
    if (exponent < 1) exponent = 1;
    uint32_t half = significand & 0x7F, rounded = significand >> 7;
    rounded += half > 0x40 || (half == 0x40 && (rounded & 1));
    return sign | (((uint32_t)(exponent - 1) << 23) + rounded); /* a carry goes into the exponent, up to infinity */
}

struct parts {
    int exponent;
    uint32_t significand; /* bit 23 leads */
};
inline parts unpack(uint32_t a) { /* neither zero, infinity nor NaN */
    int exponent = (int)(a >> 23 & 0xFF);
    uint32_t significand = a & 0x7FFFFF;
    if (exponent) return {exponent, significand | 1u << 23};
    int by = leading_zeros(significand) - 8;
    return {1 - by, significand << by};
}

inline uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t sign = (a ^ b) & SIGN, x = a & MAGNITUDE, y = b & MAGNITUDE;
    if (x > INF || y > INF || (x == INF && !y) || (y == INF && !x)) return NOT_A_NUMBER;
    if (x == INF || y == INF) return sign | INF;
    if (!x || !y) return sign;
    parts p = unpack(x), q = unpack(y);
    uint64_t product = (uint64_t)p.significand * q.significand; /* bit 46 or 47 leads */
    int up = (int)(product >> 47);
    uint32_t lost = (uint32_t)product & ((1u << (16 + up)) - 1);
    return pack(sign, p.exponent + q.exponent - 127 + up, (uint32_t)(product >> (16 + up)) | (lost != 0));
}

inline uint32_t add(uint32_t a, uint32_t b) {
    if ((a & MAGNITUDE) < (b & MAGNITUDE)) {
        uint32_t swapped = a;
        a = b;
        b = swapped;
    }
    uint32_t x = a & MAGNITUDE, y = b & MAGNITUDE;
    bool subtracts = (a ^ b) >> 31;
    if (x > INF || (y == INF && subtracts)) return NOT_A_NUMBER;
    if (x == INF) return a;
    int high = (int)(x >> 23), low = (int)(y >> 23);
    uint32_t large = (x & 0x7FFFFF) | (high ? 1u << 23 : 0), small = (y & 0x7FFFFF) | (low ? 1u << 23 : 0);
    high = high ? high : 1;
    low = low ? low : 1;
    small = shift_jam(small << 7, high - low);
    uint32_t sum = subtracts ? (large << 7) - small : (large << 7) + small;
    if (!sum) return subtracts ? 0 : a & SIGN;
    int by = leading_zeros(sum) - 1;
    return pack(a & SIGN, high - by, by < 0 ? shift_jam(sum, 1) : sum << by);
}
inline uint32_t subtract(uint32_t a, uint32_t b) {
    return add(a, b ^ SIGN);
}

inline uint32_t divide(uint32_t a, uint32_t b) {
    uint32_t sign = (a ^ b) & SIGN, x = a & MAGNITUDE, y = b & MAGNITUDE;
    if (x > INF || y > INF || (x == INF && y == INF) || (!x && !y)) return NOT_A_NUMBER;
    if (x == INF || !y) return sign | INF;
    if (!x || y == INF) return sign;
    parts p = unpack(x), q = unpack(y);
    int down = p.significand < q.significand;
    uint64_t dividend = (uint64_t)p.significand << (25 + down);
    uint32_t quotient = (uint32_t)(dividend / q.significand); /* bit 25 leads */
    bool rest = dividend != (uint64_t)quotient * q.significand;
    return pack(sign, p.exponent - q.exponent + 127 - down, quotient << 5 | rest);
}

inline uint32_t square_root(uint32_t a) {
    if (!(a & MAGNITUDE)) return a;
    if (is_nan(a) || (a & SIGN)) return NOT_A_NUMBER;
    if (a == INF) return a;
    parts p = unpack(a);
    int odd = (p.exponent - 127) & 1;
    uint64_t rest = 0, square = (uint64_t)p.significand << (27 + odd); /* of a root whose bit 25 leads */
    uint32_t root = 0;
    for (int i = 25; i >= 0; i--) { /* digit by digit */
        rest = rest << 2 | (square >> (2 * i) & 3);
        uint64_t trial = (uint64_t)root << 2 | 1;
        bool fits = rest >= trial;
        rest -= fits ? trial : 0;
        root = root << 1 | fits;
    }
    return pack(0, (p.exponent - 127 - odd) / 2 + 127, root << 5 | (rest != 0));
}

/* The integer part of a value from 0 to 2^23; below 0: 0. */
inline uint32_t truncate(uint32_t a) {
    int exponent = (int)(a >> 23) - 127; /* of a negative one: beyond 127 */
    if (exponent < 0 || (a & SIGN)) return 0;
    return ((a & 0x7FFFFF) | 1u << 23) >> (23 - (exponent > 23 ? 23 : exponent));
}

} // namespace fp32

#endif
