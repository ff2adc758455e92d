#if defined(__x86_64__)
#define HASH_TARGET "avx512f"
#define HASH_NAME shore__hash128_avx512
#define XXH_VECTOR 3 /* XXH_AVX512 */
#include "storage/hash_body.h"
#endif
typedef int shore__hash_avx512_is_not_empty;
