#if defined(__x86_64__)
#include <immintrin.h>

#include "near/rule.h"

#define LANES 16u
#define LANES_NAME shore__update_avx512
#define LANES_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define LANES_INLINE LANES_TARGET static inline __attribute__((always_inline))

typedef __m512 vec;
#define lanes_set _mm512_set1_ps
#define lanes_load _mm512_loadu_ps
#define lanes_store _mm512_storeu_ps
#define lanes_add _mm512_add_ps
#define lanes_sub _mm512_sub_ps
#define lanes_mul _mm512_mul_ps
#define lanes_div _mm512_div_ps
#define lanes_sqrt _mm512_sqrt_ps

LANES_INLINE vec lanes_stored(vec x) {
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(x, nan, _mm512_castsi512_ps(_mm512_set1_epi32((int)SHORE__CANONICAL_NAN)));
}

LANES_INLINE vec lanes_join(const uint16_t *hi, const uint16_t *lo) {
    __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)hi));
    __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)lo));
    high = _mm512_slli_epi32(_mm512_sub_epi32(high, _mm512_srli_epi32(low, 15)), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(high, low));
}

LANES_INLINE void lanes_split(vec p, uint16_t *hi, uint16_t *lo, uint16_t *hi_again) {
    __m512i u = _mm512_castps_si512(p);
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x8000)), 16);
    __m256i high = _mm512_cvtepi32_epi16(rounded);
    _mm256_storeu_si256((__m256i *)hi, high);
    _mm256_storeu_si256((__m256i *)lo, _mm512_cvtepi32_epi16(u));
    if (hi_again) _mm256_storeu_si256((__m256i *)hi_again, high);
}

LANES_INLINE int lanes_nonfinite(vec p, int flag) {
    __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(p), _mm512_set1_epi32(0x7FFFFFFF));
    return flag | _mm512_cmpge_epi32_mask(magnitude, _mm512_set1_epi32((int)SHORE__NONFINITE_MASTER));
}

#include "near/update_lanes.h"
#endif
