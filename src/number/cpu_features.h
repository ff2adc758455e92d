/* What the processor has, for choosing among versions of a kernel. */
#ifndef SHORE_NUMBER_CPU_FEATURES_H
#define SHORE_NUMBER_CPU_FEATURES_H

#include <stdbool.h>

static inline bool shore__has_avx2(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

/* With the byte, word and 256-bit forms that every AVX-512 version here uses. */
static inline bool shore__has_avx512(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
    return false;
#endif
}

#endif
