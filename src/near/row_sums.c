/* Adding rows: one loop in plain C, compiled for each kind of processor. Each element is one addition, rounded on its
 * own, so every version gives the same bits. */
#include "near/row_pages.h"

#include "near/rule.h"
#include "number/bf16.h"
#include "number/cpu_features.h"
#include "number/fpcontrol.h"

#define BODY static inline __attribute__((always_inline)) void

BODY add_f32(float *restrict to, const float *restrict from, size_t elems) {
    for (size_t i = 0; i < elems; i++) {
        float sum = to[i] + from[i];
        to[i] = sum == sum ? sum : shore__bits_f32(SHORE__CANONICAL_NAN);
    }
}

BODY add_bf16(uint16_t *restrict to, const float *restrict from, size_t elems) {
    for (size_t i = 0; i < elems; i++) {
        float sum = shore__bf16_to_f32(to[i]) + from[i];
        uint32_t u = shore__f32_bits(sum);
        to[i] = (uint16_t)(sum == sum ? (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16 : SHORE__CANONICAL_NAN >> 16);
    }
}

#define VERSION(isa, target)                                                       \
    target static void f32_##isa(float *to, const float *from, size_t elems) {     \
        add_f32(to, from, elems);                                                  \
    }                                                                              \
    target static void bf16_##isa(uint16_t *to, const float *from, size_t elems) { \
        add_bf16(to, from, elems);                                                 \
    }
VERSION(scalar, )
#if defined(__x86_64__)
VERSION(avx2, __attribute__((target("avx2"))))
VERSION(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))))
#elif defined(__aarch64__)
VERSION(neon, )
#endif

/* The best comes last. */
static const struct shore__rows_version versions[] = {
    {"scalar", shore__has_any, f32_scalar, bf16_scalar},
#if defined(__x86_64__)
    {"avx2", shore__has_avx2, f32_avx2, bf16_avx2},
    {"avx512", shore__has_avx512, f32_avx512, bf16_avx512},
#elif defined(__aarch64__)
    {"neon", shore__has_any, f32_neon, bf16_neon},
#endif
    {NULL, NULL, NULL, NULL},
};
SHORE__CHOOSE_BEST(struct shore__rows_version)

const struct shore__rows_version *shore__rows_versions(void) {
    return versions;
}

void shore__rows_add_f32(float *to, const float *from, size_t elems) {
    uint64_t control = shore__fp_begin();
    best()->add_f32(to, from, elems);
    shore__fp_end(control);
}

void shore__rows_add_bf16(uint16_t *to, const float *from, size_t elems) {
    uint64_t control = shore__fp_begin();
    best()->add_bf16(to, from, elems);
    shore__fp_end(control);
}
