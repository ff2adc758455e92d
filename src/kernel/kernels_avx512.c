/* The kernels for AVX-512. Only kernels ask for fused multiply-adds, by name. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernel/kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define KERNELS shore__kernels_avx512
#include "kernel/kernels_avx512_body.h"

#include "kernel/kernels_pairs_body.h"

#include "kernel/kernels_attention_body.h"
#include "kernel/kernels_element_body.h"
#include "kernel/kernels_product_avx512_body.h"
#include "kernel/kernels_row_body.h"
#include "kernel/kernels_table_body.h"
#endif
