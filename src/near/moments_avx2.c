#if defined(__x86_64__)
#include <immintrin.h>

#include "near/moments_impl.h"

#define LANES 8u
#define LANES_TARGET __attribute__((target("avx2")))
#define LANES_INLINE LANES_TARGET static inline __attribute__((always_inline))
#define LANES_QUANTISE shore__quantise_avx2
#define LANES_DEQUANTISE shore__dequantise_avx2

typedef __m256 vec;
typedef __m256i ivec;
#define lanes_set _mm256_set1_ps
#define lanes_load _mm256_loadu_ps
#define lanes_store _mm256_storeu_ps
#define lanes_add _mm256_add_ps
#define lanes_mul _mm256_mul_ps
#define lanes_div _mm256_div_ps
#define lanes_seti _mm256_set1_epi32
#define lanes_and _mm256_and_si256
#define lanes_andnot _mm256_andnot_si256
#define lanes_xor _mm256_xor_si256
#define lanes_addi _mm256_add_epi32
#define lanes_subi _mm256_sub_epi32
#define lanes_maxi _mm256_max_epi32
#define lanes_mini _mm256_min_epi32
#define lanes_bits _mm256_castps_si256
#define lanes_float _mm256_castsi256_ps
#define lanes_trunc _mm256_cvttps_epi32
#define lanes_sign(bits) _mm256_srai_epi32(bits, 31)
#define lanes_count(n, a, b) _mm256_sub_epi32(n, _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GT_OQ)))
#define lanes_table _mm256_loadu_ps
#define lanes_tablei(table) _mm256_loadu_si256((const __m256i *)(table))
#define lanes_pick _mm256_permutevar8x32_ps
#define lanes_picki _mm256_permutevar8x32_epi32

struct lanes_decades {
    vec bound[7];
};
LANES_INLINE struct lanes_decades lanes_decades(const struct shore__dynamic_code *code) {
    struct lanes_decades d;
    for (int i = 0; i < 7; i++)
        d.bound[i] = lanes_set(code->bound[i]);
    return d;
}
LANES_INLINE ivec lanes_decade(const struct lanes_decades *decades, vec a) {
    ivec d = lanes_seti(0);
    for (int i = 0; i < 7; i++)
        d = lanes_count(d, a, decades->bound[i]);
    return d;
}

LANES_INLINE uint32_t lanes_highest(ivec i) {
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1)));
    return (uint32_t)_mm_cvtsi128_si32(half);
}

/* No gather: on processors with AVX2 alone, single lookups are faster. */
LANES_INLINE vec lanes_values(const float *value, const unsigned char *code) {
    return _mm256_setr_ps(value[code[0]], value[code[1]], value[code[2]], value[code[3]], value[code[4]],
                          value[code[5]], value[code[6]], value[code[7]]);
}

LANES_INLINE void lanes_put(unsigned char *code, ivec n) {
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
    _mm_storel_epi64((__m128i *)code, _mm_packus_epi16(words, words));
}

#include "near/moments_lanes.h"
#endif
