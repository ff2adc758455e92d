/* Random numbers that depend on (seed, position) alone, so that any part can be made by itself. */
#ifndef SHORE_BASE_PRNG_H
#define SHORE_BASE_PRNG_H

#include <stdint.h>

/* 64 random bits of (seed, stream, index). SplitMix64 finaliser (Steele, Lea, Flood, OOPSLA 2014), applied thrice. */
uint64_t shore__random_u64(uint64_t seed, uint64_t stream, uint64_t index);

/* Uniform in [0, 1), 53 bits. */
double shore__random_unit(uint64_t seed, uint64_t stream, uint64_t index);

/* Standard normal of (seed, stream, index), as fp32, by Box-Muller in double. Bits may differ between libm versions, so
 * anything that must be reproducible is stored. */
float shore__random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* A permutation of [0, count), keyed by (seed, stream): the place of index. Feistel network with cycle walking. */
uint64_t shore__permute(uint64_t seed, uint64_t stream, uint64_t count, uint64_t index);

#endif
