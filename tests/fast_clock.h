/* A clock that is 20 times as fast: of what takes long, the test waits a part. */
#ifndef TESTS_FAST_CLOCK_H
#define TESTS_FAST_CLOCK_H

#include <time.h>

#include "base/units.h"

static uint64_t fast_clock_began;

static inline uint64_t fast_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
    return fast_clock_began + 20 * (now - fast_clock_began);
}

/* Until shore__set_clock(NULL). */
static inline void fast_clock_set(void) {
    fast_clock_began = shore__now_ns();
    shore__set_clock(fast_clock);
}

#endif
