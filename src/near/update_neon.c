#if defined(__aarch64__)
#include <arm_neon.h>

#include "near/rule.h"

#define LANES 4u
#define LANES_NAME shore__update_neon
#define LANES_TARGET
#define LANES_INLINE static inline __attribute__((always_inline))

typedef float32x4_t vec;
#define lanes_set vdupq_n_f32
#define lanes_load vld1q_f32
#define lanes_store vst1q_f32
#define lanes_add vaddq_f32
#define lanes_sub vsubq_f32
#define lanes_mul vmulq_f32
#define lanes_div vdivq_f32
#define lanes_sqrt vsqrtq_f32

LANES_INLINE vec lanes_stored(vec x) {
    return vbslq_f32(vceqq_f32(x, x), x, vreinterpretq_f32_u32(vdupq_n_u32(SHORE__CANONICAL_NAN)));
}

LANES_INLINE vec lanes_join(const uint16_t *hi, const uint16_t *lo) {
    uint32x4_t high = vmovl_u16(vld1_u16(hi)), low = vmovl_u16(vld1_u16(lo));
    high = vshlq_n_u32(vsubq_u32(high, vshrq_n_u32(low, 15)), 16);
    return vreinterpretq_f32_u32(vorrq_u32(high, low));
}

LANES_INLINE void lanes_split(vec p, uint16_t *hi, uint16_t *lo, uint16_t *hi_again) {
    uint32x4_t u = vreinterpretq_u32_f32(p);
    uint16x4_t high = vshrn_n_u32(vaddq_u32(u, vdupq_n_u32(0x8000)), 16);
    vst1_u16(hi, high);
    vst1_u16(lo, vmovn_u32(u));
    if (hi_again) vst1_u16(hi_again, high);
}

LANES_INLINE int lanes_nonfinite(vec p, int flag) {
    uint32x4_t magnitude = vandq_u32(vreinterpretq_u32_f32(p), vdupq_n_u32(0x7FFFFFFF));
    return flag | (vmaxvq_u32(magnitude) >= SHORE__NONFINITE_MASTER);
}

#include "near/update_lanes.h"
#endif
