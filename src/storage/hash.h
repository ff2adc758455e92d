/* XXH3-128 with a seed, in canonical form (high half first), in the widest version for this processor; all versions
 * give the same bits. */
#ifndef SHORE_STORAGE_HASH_H
#define SHORE_STORAGE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "storage/volume.h"

void shore__hash128(const void *data, size_t bytes, uint64_t seed, unsigned char out[16]);

#if defined(__x86_64__)
void shore__hash128_avx2(const void *data, size_t bytes, uint64_t seed, unsigned char out[16]);
void shore__hash128_avx512(const void *data, size_t bytes, uint64_t seed, unsigned char out[16]);
#endif

#endif
