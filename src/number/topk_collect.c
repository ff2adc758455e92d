/* The loop that reads every element and collects those of at least a given magnitude. The scalar version is the
 * specification. */
#include "number/bf16.h"
#include "number/cpu_features.h"
#include "number/topk.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static size_t collect_scalar(const float *x, size_t elems, uint32_t least, uint16_t *index, uint32_t *bits,
                             size_t capacity) {
    size_t n = 0;
    for (size_t i = 0; i < elems; i += SHORE__TOPK_GROUP) {
        bool any = false;
        for (size_t j = i; j < i + SHORE__TOPK_GROUP; j++)
            any |= (shore__f32_bits(x[j]) & SHORE__TOPK_MAGNITUDE) >= least;
        if (!any) continue;
        if (capacity - n < SHORE__TOPK_GROUP) return SHORE__TOPK_FULL;
        for (size_t j = i; j < i + SHORE__TOPK_GROUP; j++) {
            uint32_t u = shore__f32_bits(x[j]);
            if ((u & SHORE__TOPK_MAGNITUDE) < least) continue;
            index[n] = (uint16_t)j;
            bits[n++] = u;
        }
    }
    return n;
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) static size_t collect_avx2(const float *x, size_t elems, uint32_t least,
                                                           uint16_t *index, uint32_t *bits, size_t capacity) {
    /* magnitudes are below 2^31, so signed comparison works; least 0 takes all */
    const __m256i magnitude = _mm256_set1_epi32((int)SHORE__TOPK_MAGNITUDE);
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    size_t n = 0;
    for (size_t i = 0; i < elems; i += SHORE__TOPK_GROUP) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(x + i + 8));
        __m256i in_a = _mm256_cmpgt_epi32(_mm256_and_si256(a, magnitude), below);
        __m256i in_b = _mm256_cmpgt_epi32(_mm256_and_si256(b, magnitude), below);
        if (_mm256_testz_si256(_mm256_or_si256(in_a, in_b), _mm256_or_si256(in_a, in_b))) continue;
        if (capacity - n < SHORE__TOPK_GROUP) return SHORE__TOPK_FULL;
        unsigned hits = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(in_a)) |
                        (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(in_b)) << 8;
        for (; hits; hits &= hits - 1) {
            size_t j = i + (size_t)__builtin_ctz(hits);
            index[n] = (uint16_t)j;
            bits[n++] = shore__f32_bits(x[j]);
        }
    }
    return n;
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static size_t
collect_avx512(const float *x, size_t elems, uint32_t least, uint16_t *index, uint32_t *bits, size_t capacity) {
    const __m512i magnitude = _mm512_set1_epi32((int)SHORE__TOPK_MAGNITUDE);
    const __m512i limit = _mm512_set1_epi32((int)least);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    size_t n = 0;
    for (size_t i = 0; i < elems; i += SHORE__TOPK_GROUP) {
        __m512i v = _mm512_loadu_si512(x + i);
        __mmask16 hits = _mm512_cmpge_epu32_mask(_mm512_and_si512(v, magnitude), limit);
        if (!hits) continue;
        if (capacity - n < SHORE__TOPK_GROUP) return SHORE__TOPK_FULL;
        __m512i at = _mm512_add_epi32(lanes, _mm512_set1_epi32((int)i));
        _mm512_storeu_si512(bits + n, _mm512_maskz_compress_epi32(hits, v));
        _mm256_storeu_si256((__m256i *)(void *)(index + n),
                            _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(hits, at)));
        n += (size_t)__builtin_popcount(hits);
    }
    return n;
}

#endif

static const struct shore__topk_version versions[] = {
    {"scalar", shore__has_any, collect_scalar},
#if defined(__x86_64__)
    {"avx2", shore__has_avx2, collect_avx2},
    {"avx512", shore__has_avx512, collect_avx512},
#endif
    {NULL, NULL, NULL},
};
SHORE__CHOOSE_BEST(struct shore__topk_version)

const struct shore__topk_version *shore__topk_versions(void) {
    return versions;
}

size_t shore__topk_collect(const float *x, size_t elems, uint32_t least, uint16_t *index, uint32_t *bits,
                           size_t capacity) {
    return best()->collect(x, elems, least, index, bits, capacity);
}
