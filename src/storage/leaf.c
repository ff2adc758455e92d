#define XXH_INLINE_ALL
#include <xxhash.h>

#include "storage/hash.h"

#include <pthread.h>

static void hash128_base(const void *data, size_t bytes, uint64_t seed, unsigned char out[16]) {
    XXH128_canonicalFromHash((XXH128_canonical_t *)out, XXH3_128bits_withSeed(data, bytes, seed));
}

typedef void (*hash_fn)(const void *, size_t, uint64_t, unsigned char[16]);

static hash_fn fastest = hash128_base;

#if defined(__x86_64__)
static pthread_once_t chosen = PTHREAD_ONCE_INIT;
static void choose(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        fastest = shore__hash128_avx512;
    else if (__builtin_cpu_supports("avx2"))
        fastest = shore__hash128_avx2;
}
#endif

void shore__hash128(const void *data, size_t bytes, uint64_t seed, unsigned char out[16]) {
#if defined(__x86_64__)
    pthread_once(&chosen, choose);
#endif
    fastest(data, bytes, seed, out);
}

uint64_t shore__leaf_seed(uint32_t block, uint32_t segment, enum shore_plane plane) {
    /* the fifth plane came later: its third bit lies above the others */
    return (uint64_t)((unsigned)plane >> 2) << 63 | (uint64_t)block << 34 | (uint64_t)segment << 2 |
           ((unsigned)plane & 3);
}

void shore__leaf_make(const void *data, size_t bytes, uint64_t seed, struct shore__leaf *out) {
    shore__hash128(data, bytes, seed, out->hash);
}
