/* The kind of this processor, and the products it runs best. */
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>

#include "compute/cpu.h"

#ifdef __x86_64__
#define PROCESSOR "x86-64"

static bool is_amd(void) {
    __builtin_cpu_init();
    return __builtin_cpu_is("amd");
}

/* Whether oneDNN may use every instruction set in isa: the processor has it, and the user does not forbid it. */
static bool has(dnnl_cpu_isa_t isa) {
    unsigned effective = (unsigned)dnnl_get_effective_cpu_isa();
    return (effective & (unsigned)isa) == (unsigned)isa;
}

const struct shore__kernels *shore__kernels_for_this_processor(bool bf16) {
    __builtin_cpu_init();
    if (bf16 && has(dnnl_cpu_isa_avx512_core_amx)) return &shore__kernels_amx;
    if (bf16 && has(dnnl_cpu_isa_avx512_core_bf16)) return &shore__kernels_avx512_bf16;
    if (has(dnnl_cpu_isa_avx512_core)) return &shore__kernels_avx512;
    if (has(dnnl_cpu_isa_avx2) && __builtin_cpu_supports("fma")) return &shore__kernels_avx2;
    return &shore__kernels_plain;
}

static const char *isa_name(void) {
    if (has(dnnl_cpu_isa_avx512_core_amx)) return "amx";
    if (has(dnnl_cpu_isa_avx512_core_bf16)) return "avx512_bf16";
    if (has(dnnl_cpu_isa_avx512_core)) return "avx512";
    if (has(dnnl_cpu_isa_avx2)) return "avx2";
    if (has(dnnl_cpu_isa_avx)) return "avx";
    return "sse41";
}

enum shore__products shore__products_for_this_processor(void) {
    if (has(dnnl_cpu_isa_avx512_core_amx)) return SHORE__PRODUCTS_BF16;
    if (has(dnnl_cpu_isa_avx512_core_bf16) && is_amd()) return SHORE__PRODUCTS_BF16;
    return SHORE__PRODUCTS_F32; /* Intel's AVX512_BF16 runs at half the rate of fp32 */
}

bool shore__can_multiply_bf16(void) {
    return has(dnnl_cpu_isa_avx512_core);
}

#else
#ifdef __aarch64__
#define PROCESSOR "aarch64"
#else
#define PROCESSOR "other"
#endif

static bool is_amd(void) {
    return false;
}
const struct shore__kernels *shore__kernels_for_this_processor(bool bf16) {
    return &shore__kernels_plain;
}
static const char *isa_name(void) {
    return "plain";
}
enum shore__products shore__products_for_this_processor(void) {
    return SHORE__PRODUCTS_F32;
}
bool shore__can_multiply_bf16(void) {
    return false;
}
#endif

const char *shore__processor_kind(void) {
    static char kind[64];
    snprintf(kind, sizeof kind, PROCESSOR " %s%s", isa_name(), is_amd() ? " amd" : "");
    return kind;
}
