#include "number/residual.h"

#include "number/bf16.h"
#include "number/fpcontrol.h"

/* Not inlined: nothing may move across a change of the control register. */
#define BODY static inline __attribute__((always_inline)) void

BODY add(float *x, uint16_t *next, const uint16_t *base, size_t elems) {
#pragma GCC ivdep
    for (size_t i = 0; i < elems; i++) {
        float sum = x[i] + shore__bits_f32((uint32_t)base[i] << 16);
        uint32_t u = shore__f32_bits(sum);
        uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
        uint32_t quiet = (u >> 16) | 0x40u;
        x[i] = sum;
        next[i] = (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
    }
}

#if defined(__x86_64__)
__attribute__((noinline, target("avx2"))) static void add_avx2(float *x, uint16_t *next, const uint16_t *base,
                                                               size_t elems) {
    add(x, next, base, elems);
}
__attribute__((noinline, target("avx512f,avx512bw,avx512vl,avx512dq"))) static void
add_avx512(float *x, uint16_t *next, const uint16_t *base, size_t elems) {
    add(x, next, base, elems);
}
#endif

__attribute__((noinline)) static void add_plain(float *x, uint16_t *next, const uint16_t *base, size_t elems) {
    add(x, next, base, elems);
}

void shore__residual_add(float *x, uint16_t *next, const uint16_t *base, size_t elems) {
    uint64_t control = shore__fp_begin();
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        add_avx512(x, next, base, elems);
    else if (__builtin_cpu_supports("avx2"))
        add_avx2(x, next, base, elems);
    else
#endif
        add_plain(x, next, base, elems);
    shore__fp_end(control);
}

__attribute__((noinline)) static void take_out(uint16_t *next, const struct shore__topk_list *sent,
                                               enum shore_sparse_values values) {
    for (uint32_t i = 0; i < sent->count; i++) {
        float value = shore__bits_f32(shore__sparse_value(values, sent->bits[i]));
        next[sent->index[i]] = shore__f32_to_bf16(shore__bits_f32(sent->bits[i]) - value);
    }
}

void shore__residual_sent(uint16_t *next, const struct shore__topk_list *sent, enum shore_sparse_values values) {
    uint64_t control = shore__fp_begin();
    take_out(next, sent, values);
    shore__fp_end(control);
}
