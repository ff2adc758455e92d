/* Sets the floating-point control register for exact arithmetic, and restores it.
 *
 * compute/ flushes denormals in its threads, and a library built with -ffast-math does so unseen. The arithmetic
 * between begin and end must be in a function that the compiler cannot inline (one called through a pointer). Nothing
 * else keeps the compiler from moving operations across a change of this register. */
#ifndef SHORE_NUMBER_FPCONTROL_H
#define SHORE_NUMBER_FPCONTROL_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

#define SHORE__FP_EXACT 0x1F80u /* round to nearest even, denormals kept, no traps */
#define SHORE__FP_FLUSH 0x8040u /* flush to zero, denormals are zero */

static inline uint64_t shore__fp_get(void) {
    return _mm_getcsr();
}
static inline void shore__fp_set(uint64_t control) {
    _mm_setcsr((uint32_t)control);
}

#elif defined(__aarch64__)

#define SHORE__FP_EXACT 0u
#define SHORE__FP_FLUSH (1u << 24)

static inline uint64_t shore__fp_get(void) {
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
}
static inline void shore__fp_set(uint64_t control) {
    __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory");
}

#else

#define SHORE__FP_EXACT 0u
#define SHORE__FP_FLUSH 0u

static inline uint64_t shore__fp_get(void) {
    return 0;
}
static inline void shore__fp_set(uint64_t control) {
    (void)control;
}

#endif

/* Returns the previous setting. */
static inline uint64_t shore__fp_begin(void) {
    uint64_t before = shore__fp_get();
    shore__fp_set(SHORE__FP_EXACT);
    return before;
}
static inline void shore__fp_end(uint64_t before) {
    shore__fp_set(before);
}

#endif
