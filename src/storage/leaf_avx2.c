#if defined(__x86_64__)
#define HASH_TARGET "avx2"
#define HASH_NAME shore__hash128_avx2
#define XXH_VECTOR 2 /* XXH_AVX2 */
#include "storage/hash_body.h"
#endif
typedef int shore__hash_avx2_is_not_empty;
