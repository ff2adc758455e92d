/* The floating-point control register, set to what exact arithmetic needs and put back.
 *
 * compute/ flushes denormals in its threads, and a library built with -ffast-math does so behind everybody's back.
 * The arithmetic between begin and end must be in a function that the compiler cannot inline there (called through a
 * pointer): nothing else keeps it from moving operations across a change of this register.
 */
#ifndef SHORE_NUMBER_FPCONTROL_H
#define SHORE_NUMBER_FPCONTROL_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

/* Round to nearest even, denormals kept, no traps. Returns what was set before. */
static inline uint64_t shore__fp_begin(void) {
    uint32_t before = _mm_getcsr();
    _mm_setcsr(0x1F80);
    return before;
}
static inline void shore__fp_end(uint64_t before) {
    _mm_setcsr((uint32_t)before);
}

#elif defined(__aarch64__)

static inline uint64_t shore__fp_begin(void) {
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)) : "memory");
    return before;
}
static inline void shore__fp_end(uint64_t before) {
    __asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory");
}

#else

static inline uint64_t shore__fp_begin(void) {
    return 0;
}
static inline void shore__fp_end(uint64_t before) {
    (void)before;
}

#endif
#endif
