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

/* Finds the decade by the exponent: one lookup instead of comparing all bounds. */
struct lanes_decades {
    ivec below[2];
    vec inside[2];
};
LANES_INLINE struct lanes_decades lanes_decades(const struct shore__dynamic_code *code) {
    struct lanes_decades d;
    for (int i = 0; i < 2; i++) {
        d.below[i] = _mm512_loadu_si512(code->below + 16 * i);
        d.inside[i] = _mm512_loadu_ps(code->inside + 16 * i);
    }
    return d;
}
LANES_INLINE ivec lanes_decade(const struct lanes_decades *decades, vec a) {
    /* smaller magnitudes count as this one: the lookup takes five bits of e + 127 */
    ivec least = lanes_seti((127 - 31) << 23);
    ivec e = _mm512_srli_epi32(lanes_maxi(lanes_bits(a), least), 23);
    return lanes_count(_mm512_permutex2var_epi32(decades->below[0], e, decades->below[1]), a,
                       _mm512_permutex2var_ps(decades->inside[0], e, decades->inside[1]));
}

LANES_INLINE vec lanes_values(const float *value, const unsigned char *code) {
    return _mm512_i32gather_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)code)), value, 4);
}

LANES_INLINE void lanes_put(unsigned char *code, ivec n) {
    _mm_storeu_si128((__m128i *)code, _mm512_cvtepi32_epi8(n));
}

#include "near/moments_lanes.h"

/* Looks up bytes that lie in registers. */
#define VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi")))
#define VBMI_INLINE VBMI static inline __attribute__((always_inline))

/* Puts byte b of values 64 i .. 64 i + 63 at [b][i]. */
VBMI_INLINE void bytes_of_values(__m512i table[4][4], const float *value) {
    __m512i every_fourth =
        _mm512_set_epi64(0, 0, 0, 0, 0x7C7874706C686460, 0x5C5854504C484440, 0x3C3834302C282420, 0x1C1814100C080400);
    for (int b = 0; b < 4; b++)
        for (int i = 0; i < 4; i++) {
            const float *v = value + 64 * i;
            __m512i which = _mm512_add_epi8(every_fourth, _mm512_set1_epi8((char)b));
            __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(v), which, _mm512_loadu_si512(v + 16));
            __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(v + 32), which, _mm512_loadu_si512(v + 48));
            table[b][i] = _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1);
        }
}

VBMI_INLINE __m512i byte_of_values(const __m512i table[4], __m512i code) {
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(code), _mm512_permutex2var_epi8(table[0], code, table[1]),
                                  _mm512_permutex2var_epi8(table[2], code, table[3]));
}

/* Takes 64 codes at a time, in an order in which interleaving their bytes within 128-bit lanes brings 16 neighbours
 * together. */
VBMI void shore__dequantise_avx512_vbmi(const struct shore__dynamic_code *code, float *out,
                                        const struct shore__moment8 *in, size_t elems) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i table[4][4];
    bytes_of_values(table, code->value);
    for (size_t at = 0; at < elems; at += 64) {
        __m512 absmax = _mm512_set1_ps(in->absmax[at / SHORE__MOMENT_BLOCK_ELEMS]);
        __m512i codes = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(in->code + at)), byte[4];
        for (int b = 0; b < 4; b++)
            byte[b] = byte_of_values(table[b], codes);
        __m512i low[2] = {_mm512_unpacklo_epi8(byte[0], byte[1]), _mm512_unpackhi_epi8(byte[0], byte[1])};
        __m512i high[2] = {_mm512_unpacklo_epi8(byte[2], byte[3]), _mm512_unpackhi_epi8(byte[2], byte[3])};
        for (int i = 0; i < 2; i++) {
            __m512i first = _mm512_unpacklo_epi16(low[i], high[i]), second = _mm512_unpackhi_epi16(low[i], high[i]);
            _mm512_storeu_ps(out + at + 32 * i, _mm512_mul_ps(_mm512_castsi512_ps(first), absmax));
            _mm512_storeu_ps(out + at + 32 * i + 16, _mm512_mul_ps(_mm512_castsi512_ps(second), absmax));
        }
    }
}
#endif
