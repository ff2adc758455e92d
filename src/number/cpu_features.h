/* Features of the processor, which choose among versions of a kernel. */
#ifndef SHORE_NUMBER_CPU_FEATURES_H
#define SHORE_NUMBER_CPU_FEATURES_H

#include <pthread.h>
#include <stdbool.h>

static inline bool shore__has_any(void) {
    return true;
}

static inline bool shore__has_avx2(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

/* Includes the byte, word and 256-bit forms, which every AVX-512 version uses. */
static inline bool shore__has_avx512(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
    return false;
#endif
}

static inline bool shore__has_avx512_vbmi(void) {
#if defined(__x86_64__)
    return shore__has_avx512() && __builtin_cpu_supports("avx512vbmi");
#else
    return false;
#endif
}

/* Returns the last of `versions` that this processor supports. A version without a name ends the list. */
#define SHORE__CHOOSE_BEST(type)                     \
    static const type *chosen;                       \
    static pthread_once_t once = PTHREAD_ONCE_INIT;  \
    static void choose(void) {                       \
        for (const type *v = versions; v->name; v++) \
            if (v->usable()) chosen = v;             \
    }                                                \
    static const type *best(void) {                  \
        pthread_once(&once, choose);                 \
        return chosen;                               \
    }

#endif
