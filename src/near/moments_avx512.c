#if defined(__x86_64__)
#include <immintrin.h>

#include "near/moments_impl.h"

#define LANES 16u
#define LANES_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define LANES_INLINE LANES_TARGET static inline __attribute__((always_inline))
#define LANES_QUANTISE shore__quantise_avx512
#define LANES_DEQUANTISE shore__dequantise_avx512

typedef __m512 vec;
typedef __m512i ivec;
#define lanes_set _mm512_set1_ps
#define lanes_load _mm512_loadu_ps
#define lanes_store _mm512_storeu_ps
#define lanes_add _mm512_add_ps
#define lanes_mul _mm512_mul_ps
#define lanes_div _mm512_div_ps
#define lanes_seti _mm512_set1_epi32
#define lanes_and _mm512_and_si512
#define lanes_andnot _mm512_andnot_si512
#define lanes_xor _mm512_xor_si512
#define lanes_addi _mm512_add_epi32
#define lanes_subi _mm512_sub_epi32
#define lanes_maxi _mm512_max_epi32
#define lanes_mini _mm512_min_epi32
#define lanes_bits _mm512_castps_si512
#define lanes_float _mm512_castsi512_ps
#define lanes_trunc _mm512_cvttps_epi32
#define lanes_sign(bits) _mm512_srai_epi32(bits, 31)
#define lanes_count(n, a, b) _mm512_mask_add_epi32(n, _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), n, _mm512_set1_epi32(1))
#define lanes_table(table) _mm512_castps256_ps512(_mm256_loadu_ps(table))
#define lanes_tablei(table) _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(table)))
#define lanes_pick(table, index) _mm512_permutexvar_ps(index, table)
#define lanes_picki(table, index) _mm512_permutexvar_epi32(index, table)
#define lanes_highest(i) (uint32_t) _mm512_reduce_max_epi32(i)

LANES_INLINE vec lanes_values(const float *value, const unsigned char *code) {
    return _mm512_i32gather_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)code)), value, 4);
}

LANES_INLINE void lanes_put(unsigned char *code, ivec n) {
    _mm_storeu_si128((__m128i *)code, _mm512_cvtepi32_epi8(n));
}

#include "near/moments_lanes.h"
#endif
