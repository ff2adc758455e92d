/* What kernels_vector_body.h asks for, in AVX-512. NARROW() comes from the file that includes it, if the processor has
 * it. */
#define VL 16
#define FMA(a, b, c) ((vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define MIN(a, b) ((vf)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define MAX(a, b) ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define NEAREST(x) ((vf)_mm512_roundscale_ps((__m512)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#define SCALE(x, n) ((vf)_mm512_scalef_ps((__m512)(x), (__m512)(n)))
#include "compute/kernels_vector_body.h"
