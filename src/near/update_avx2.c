#if defined(__x86_64__)
#include <immintrin.h>

#include "near/rule.h"

#define LANES 8u
#define LANES_NAME shore__update_avx2
#define LANES_TARGET __attribute__((target("avx2")))
#define LANES_INLINE LANES_TARGET static inline __attribute__((always_inline))

typedef __m256 vec;
#define lanes_set _mm256_set1_ps
#define lanes_load _mm256_loadu_ps
#define lanes_store _mm256_storeu_ps
#define lanes_add _mm256_add_ps
#define lanes_sub _mm256_sub_ps
#define lanes_mul _mm256_mul_ps
#define lanes_div _mm256_div_ps
#define lanes_sqrt _mm256_sqrt_ps

LANES_INLINE vec lanes_stored(vec x) {
    vec nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)SHORE__CANONICAL_NAN)), nan);
}

LANES_INLINE vec lanes_join(const uint16_t *hi, const uint16_t *lo) {
    __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)hi));
    __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)lo));
    high = _mm256_slli_epi32(_mm256_sub_epi32(high, _mm256_srli_epi32(low, 15)), 16);
    return _mm256_castsi256_ps(_mm256_or_si256(high, low));
}

LANES_INLINE void lanes_split(vec p, uint16_t *hi, uint16_t *lo, uint16_t *hi_again) {
    __m256i u = _mm256_castps_si256(p);
    __m256i high = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x8000)), 16);
    __m256i low = _mm256_and_si256(u, _mm256_set1_epi32(0xFFFF));
    /* pack works within halves of the register: join the two quarters of high, then those of low */
    __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, low), 0xD8);
    _mm_storeu_si128((__m128i *)hi, _mm256_castsi256_si128(both));
    _mm_storeu_si128((__m128i *)lo, _mm256_extracti128_si256(both, 1));
    if (hi_again) _mm_storeu_si128((__m128i *)hi_again, _mm256_castsi256_si128(both));
}

LANES_INLINE int lanes_nonfinite(vec p, int flag) {
    __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(p), _mm256_set1_epi32(0x7FFFFFFF));
    __m256i beyond = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32((int)SHORE__NONFINITE_MASTER - 1));
    return flag | _mm256_movemask_epi8(beyond);
}

#include "near/update_lanes.h"
#endif
