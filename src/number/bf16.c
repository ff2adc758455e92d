#include "number/bf16.h"
#include "number/cpu_features.h"

/* Each loop is written once in plain C and compiled for each kind of processor. It uses integers only, so every version
 * gives the same bits, and the compiler's vectors reach memory speed. */
#define BODY static inline __attribute__((always_inline)) void

BODY bf16_from_f32(uint16_t *restrict out, const float *restrict in, size_t elems) {
    for (size_t i = 0; i < elems; i++) {
        uint32_t u = shore__f32_bits(in[i]);
        uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
        uint32_t quiet = (u >> 16) | 0x40u;
        out[i] = (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
    }
}

BODY f32_from_bf16(float *restrict out, const uint16_t *restrict in, size_t elems) {
    for (size_t i = 0; i < elems; i++)
        out[i] = shore__bits_f32((uint32_t)in[i] << 16);
}

BODY f32_split(uint16_t *restrict hi, uint16_t *restrict lo, const float *restrict in, size_t elems) {
    for (size_t i = 0; i < elems; i++) {
        uint32_t u = shore__f32_bits(in[i]);
        hi[i] = (uint16_t)((u + 0x8000u) >> 16);
        lo[i] = (uint16_t)u;
    }
}

BODY f32_join(float *restrict out, const uint16_t *restrict hi, const uint16_t *restrict lo, size_t elems) {
    for (size_t i = 0; i < elems; i++) {
        uint32_t low = lo[i];
        out[i] = shore__bits_f32(((uint32_t)hi[i] - (low >> 15)) << 16 | low);
    }
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define VERSIONS(name, parameters, arguments)     \
    static void name##_plain parameters {         \
        name arguments;                           \
    }                                             \
    AVX2 static void name##_avx2 parameters {     \
        name arguments;                           \
    }                                             \
    AVX512 static void name##_avx512 parameters { \
        name arguments;                           \
    }                                             \
    void shore__##name parameters {               \
        if (shore__has_avx512())                  \
            name##_avx512 arguments;              \
        else if (shore__has_avx2())               \
            name##_avx2 arguments;                \
        else                                      \
            name##_plain arguments;               \
    }
#else
#define VERSIONS(name, parameters, arguments) \
    void shore__##name parameters {           \
        name arguments;                       \
    }
#endif

VERSIONS(bf16_from_f32, (uint16_t * out, const float *in, size_t elems), (out, in, elems))
VERSIONS(f32_from_bf16, (float *out, const uint16_t *in, size_t elems), (out, in, elems))
VERSIONS(f32_split, (uint16_t * hi, uint16_t *lo, const float *in, size_t elems), (hi, lo, in, elems))
VERSIONS(f32_join, (float *out, const uint16_t *hi, const uint16_t *lo, size_t elems), (out, hi, lo, elems))

/* Through a copy of the next elements, which the call is about to write over. */
void shore__f32_from_bf16_below(float *out, const uint16_t *in, size_t elems) {
    enum { CHUNK = 4096 };
    uint16_t chunk[CHUNK];
    for (size_t at = 0, n; at < elems; at += n) {
        n = elems - at < CHUNK ? elems - at : CHUNK;
        memcpy(chunk, in + at, n * sizeof *chunk);
        shore__f32_from_bf16(out + at, chunk, n);
    }
}
