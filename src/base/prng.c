#include "base/prng.h"

#include <math.h>

/* The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014). */
static uint64_t mix(uint64_t z) {
    z += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

uint64_t shore__random_u64(uint64_t seed, uint64_t stream, uint64_t index) {
    return mix(mix(mix(seed) + stream) + index);
}

double shore__random_unit(uint64_t seed, uint64_t stream, uint64_t index) {
    return (double)(shore__random_u64(seed, stream, index) >> 11) * 0x1p-53;
}

float shore__random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    uint64_t bits = shore__random_u64(seed, stream, index);
    /* 1 - u lies in (0, 1], so the logarithm is finite; the second draw depends on the first, not on index + 1 */
    double u = (double)(bits >> 11) * 0x1p-53;
    double angle = (double)(mix(bits) >> 11) * 0x1p-53;
    return (float)(sqrt(-2.0 * log(1.0 - u)) * cos(6.283185307179586 * angle));
}

uint64_t shore__permute(uint64_t seed, uint64_t stream, uint64_t count, uint64_t index) {
    enum { ROUNDS = 6 };
    unsigned half = 1;
    while (half < 32 && (count - 1) >> (2 * half) != 0)
        half++;
    uint64_t mask = (UINT64_C(1) << half) - 1;
    uint64_t key = mix(mix(seed) + stream);
    if (count < 2) return 0;
    /* the network permutes [0, 4^half), less than four times count: walk its cycle until it returns inside */
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (mix(mix(key + round) + right) & mask);
            left = right;
            right = next;
        }
        index = left << half | right;
    } while (index >= count);
    return index;
}
