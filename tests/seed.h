/* The seed of what is random in a test: SEED from outside, or the clock; printed, so that a failure can be repeated. */
#ifndef TESTS_SEED_H
#define TESTS_SEED_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline uint64_t test_seed(void) {
    const char *given = getenv("SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t chosen = given ? strtoull(given, NULL, 0) : (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    printf("SEED=%" PRIu64 "\n", chosen);
    fflush(stdout);
    return chosen;
}

#endif
