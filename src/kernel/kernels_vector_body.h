/* Vectors of VL floats for kernels_*_body.h. The including file defines VL and FMA(). If the processor has instructions
 * for them (gcc takes longer ways), it also defines: WIDEN(h): fp32 of bf16; NARROW(x): bf16 of x, rounded to nearest,
 * ties to even, subnormal numbers as zero; MIN(a, b), MAX(a, b): b where either is NaN; NEAREST(x): the nearest
 * integer; SCALE(x, n): x 2^n with its overflow and underflow; SUM_LANES(x), MAX_LANES(x): over all lanes, half by
 * half. NaN stays NaN. */
#include <math.h>
#include <string.h>

#include "kernel/kernels.h"

#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));

INLINE vf splat(float x) {
    return x - (vf){0}; /* x - 0 is x for every x; x + 0 is not for -0 */
}
INLINE vf select_f(vi mask, vf yes, vf no) {
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}
/* b where either is NaN */
INLINE vf min_f(vf a, vf b) {
#ifdef MIN
    return MIN(a, b);
#else
    return select_f(a < b, a, b);
#endif
}
INLINE vf max_f(vf a, vf b) {
#ifdef MAX
    return MAX(a, b);
#else
    return select_f(a > b, a, b);
#endif
}

INLINE vf widened(vh h) {
#ifdef WIDEN
    return WIDEN(h);
#else
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

/* Element i of an activation, widened. count < VL: the rest is zero. Whole vectors and the last one use separate
 * variables: one that is filled in part anywhere would lie in memory everywhere. */
INLINE vf get(const void *p, size_t i, size_t count, enum shore__mode mode) {
    if (mode == SHORE__BF16) {
        const uint16_t *from = (const uint16_t *)p + i;
        if (count >= VL) {
            vh whole;
            memcpy(&whole, from, sizeof whole);
            return widened(whole);
        }
        vh part = {0};
        memcpy(&part, from, count * sizeof *from);
        return widened(part);
    }
    const float *from = (const float *)p + i;
    if (count >= VL) {
        vf whole;
        memcpy(&whole, from, sizeof whole);
        return whole;
    }
    vf part = {0};
    memcpy(&part, from, count * sizeof *from);
    return part;
}

/* Round to nearest, ties to even, NaN kept: the value as fp32. */
INLINE vu rounded_bits(vf x) {
    vu u = (vu)x;
    vu nan = (vu)((vi)(u & 0x7FFFFFFFu) > 0x7F800000);
    vu r = u + 0x7FFFu + ((u >> 16) & 1u);
    return ((nan & (u | 0x400000u)) | (~nan & r)) & 0xFFFF0000u;
}

#ifndef NARROW
#define NARROW(x) __builtin_convertvector(rounded_bits(x) >> 16, vh)
#endif

INLINE void put(void *p, size_t i, size_t count, vf x, enum shore__mode mode) {
    if (mode == SHORE__BF16) {
        uint16_t *to = (uint16_t *)p + i;
        vh whole = NARROW(x);
        if (count >= VL) {
            memcpy(to, &whole, sizeof whole);
            return;
        }
        vh part = whole;
        memcpy(to, &part, count * sizeof *to);
        return;
    }
    float *to = (float *)p + i;
    vf whole = mode == SHORE__BF16_IN_F32 ? (vf)rounded_bits(x) : x;
    if (count >= VL) {
        memcpy(to, &whole, sizeof whole);
        return;
    }
    vf part = whole;
    memcpy(to, &part, count * sizeof *to);
}

INLINE size_t up_to(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}
INLINE size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}
INLINE size_t left(size_t i, size_t n) {
    return n - i < VL ? n - i : VL;
}
INLINE size_t act_bytes(enum shore__mode mode) {
    return mode == SHORE__BF16 ? 2 : 4;
}

INLINE float sum_lanes(vf x) {
#ifdef SUM_LANES
    return SUM_LANES(x);
#else
    float lane[VL];
    memcpy(lane, &x, sizeof lane);
    for (size_t step = VL / 2; step > 0; step /= 2)
        for (size_t i = 0; i < step; i++)
            lane[i] += lane[i + step];
    return lane[0];
#endif
}
INLINE float max_lanes(vf x) {
#ifdef MAX_LANES
    return MAX_LANES(x);
#else
    float lane[VL];
    memcpy(lane, &x, sizeof lane);
    for (size_t step = VL / 2; step > 0; step /= 2)
        for (size_t i = 0; i < step; i++)
            lane[i] = lane[i] > lane[i + step] ? lane[i] : lane[i + step];
    return lane[0];
#endif
}

/* exp: x = n ln 2 + r, |r| <= ln 2 / 2, and a polynomial of degree 6 with the coefficients of Cephes expf. Relative
 * error below 3e-7 (2.5 units in the last place). Zero below -87.3, infinity from 88.4 on; NaN stays NaN. */
INLINE vf exp_f(vf x) {
#ifdef SCALE
    vf c = min_f(splat(89.0f), max_f(splat(-104.0f), x)); /* so far that SCALE() underflows or overflows */
    vf n = NEAREST(c * 1.44269504088896341f);
#else
    vi under = x < -87.3f;
    vf c = min_f(splat(89.0f), max_f(splat(-87.3f), x));
    vf shifted = FMA(c, splat(1.44269504088896341f), splat(12582912.0f));
    vf n = shifted - 12582912.0f;
#endif
    vf r = FMA(n, splat(-0.693359375f), c);
    r = FMA(n, splat(2.12194440e-4f), r);
    vf p = splat(1.9875691500e-4f);
    p = FMA(p, r, splat(1.3981999507e-3f));
    p = FMA(p, r, splat(8.3334519073e-3f));
    p = FMA(p, r, splat(4.1665795894e-2f));
    p = FMA(p, r, splat(1.6666665459e-1f));
    p = FMA(p, r, splat(5.0000001201e-1f));
    p = FMA(p, r * r, r + 1.0f);
#ifdef SCALE
    return SCALE(p, n);
#else
    vf power = (vf)(((vi)shifted << 23) + 0x3F800000);
    vf y = p * power;
    return (vf)(~under & (vi)y);
#endif
}

/* tanh: near 0 the odd polynomial of Cephes tanhf, elsewhere 1 - 2 / (exp(2 |x|) + 1). Relative error below 3e-7. */
INLINE vf tanh_f(vf x) {
    vf a = (vf)((vi)x & 0x7FFFFFFF), z = x * x;
    vf p = splat(-5.70498872745e-3f);
    p = FMA(p, z, splat(2.06390887954e-2f));
    p = FMA(p, z, splat(-5.37397155531e-2f));
    p = FMA(p, z, splat(1.33314422036e-1f));
    p = FMA(p, z, splat(-3.33332819422e-1f));
    vf far = 1.0f - 2.0f / (exp_f(a + a) + 1.0f);
    far = (vf)((vi)far | ((vi)x & (int32_t)0x80000000));
    return select_f(a < 0.625f, FMA(p * z, x, x), far);
}

/* Converts a mode known only at run time into one that the compiler knows. */
#define FOR_MODE(mode, call)                               \
    do {                                                   \
        switch (mode) {                                    \
        case SHORE__BF16: {                                \
            const enum shore__mode M = SHORE__BF16;        \
            call;                                          \
        } break;                                           \
        case SHORE__BF16_IN_F32: {                         \
            const enum shore__mode M = SHORE__BF16_IN_F32; \
            call;                                          \
        } break;                                           \
        default: {                                         \
            const enum shore__mode M = SHORE__F32;         \
            call;                                          \
        } break;                                           \
        }                                                  \
    } while (0)
