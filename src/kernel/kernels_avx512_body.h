/* AVX-512 macros for kernels_vector_body.h. The including file defines NARROW() if the processor has an instruction for
 * it. */
#define VL 16
#define FMA(a, b, c) ((vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define MIN(a, b) ((vf)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define MAX(a, b) ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define NEAREST(x) ((vf)_mm512_roundscale_ps((__m512)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#define SCALE(x, n) ((vf)_mm512_scalef_ps((__m512)(x), (__m512)(n)))
#define WIDEN(h) ((vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)(h)), 16))
#ifndef NARROW
#define NARROW(x) ((vh)_mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)rounded_bits(x), 16)))
#endif
#define SUM_LANES(x) _mm512_reduce_add_ps((__m512)(x))
#define MAX_LANES(x) _mm512_reduce_max_ps((__m512)(x))
#include "kernel/kernels_vector_body.h"
