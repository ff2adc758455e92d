/* The kernels for AVX2 with FMA. */
#ifdef __x86_64__
#include <immintrin.h>

#include "compute/kernels.h"

#pragma GCC target("avx2,fma")
#define VL 8
#define FMA(a, b, c) ((vf)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define KERNELS shore__kernels_avx2
#include "compute/kernels_vector_body.h"

#include "compute/kernels_attention_body.h"
#include "compute/kernels_element_body.h"
#include "compute/kernels_product_f32_body.h"
#include "compute/kernels_row_body.h"
#include "compute/kernels_table_body.h"
#endif
