/* Random numbers that are a function of (seed, position) alone, so that any part can be made by itself. */
#ifndef SHORE_BASE_PRNG_H
#define SHORE_BASE_PRNG_H

#include <stdint.h>

/* 64 random bits of (seed, stream, index). SplitMix64 finaliser (Steele, Lea, Flood, OOPSLA 2014), applied thrice. */
uint64_t shore__random_u64(uint64_t seed, uint64_t stream, uint64_t index);

/* Uniform in [0, 1), 53 bits. */
double shore__random_unit(uint64_t seed, uint64_t stream, uint64_t index);

/* Standard normal of (seed, stream, index), as fp32; Box-Muller in double; the same bits on every machine is not
 * promised across libm versions, so what must be reproducible is stored, not remade. */
float shore__random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* A permutation of [0, count): where index goes, keyed by (seed, stream). Feistel network with cycle walking. */
uint64_t shore__permute(uint64_t seed, uint64_t stream, uint64_t count, uint64_t index);

#endif
