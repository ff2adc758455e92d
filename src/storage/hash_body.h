/* shore__hash128 for one width of vectors. The including file defines HASH_TARGET, XXH_VECTOR (xxHash's width at
 * compile time) and HASH_NAME. Intrinsics are included first, so that only xxHash itself is compiled for the wider
 * processor. */
#include <immintrin.h>
#include <stdint.h>

#define HASH_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define HASH_BEGIN(target_name) \
    HASH_PRAGMA(clang attribute push(__attribute__((target(target_name))), apply_to = function))
#else
#define HASH_BEGIN(target_name) HASH_PRAGMA(GCC push_options) HASH_PRAGMA(GCC target(target_name))
#endif
HASH_BEGIN(HASH_TARGET)
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "storage/hash.h"

void HASH_NAME(const void *data, size_t bytes, uint64_t seed, unsigned char out[16]) {
    XXH128_canonicalFromHash((XXH128_canonical_t *)out, XXH3_128bits_withSeed(data, bytes, seed));
}

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
