#if defined(__x86_64__)

/* xxHash chooses its width when it is compiled. The intrinsics come first, so that only xxHash itself is compiled for
 * the wider processor. */
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif
#define XXH_VECTOR 3 /* XXH_AVX512 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "storage/hash.h"

void shore__hash128_avx512(const void *data, size_t bytes, uint64_t seed, unsigned char out[16]) {
    XXH128_canonicalFromHash((XXH128_canonical_t *)out, XXH3_128bits_withSeed(data, bytes, seed));
}

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
typedef int shore__hash_avx512_is_not_empty;
