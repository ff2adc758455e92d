/* Moments in 8 bits: blocks of 256 elements, each with an fp32 absmax and one byte an element (see
 * number/dynamic_code.h). Pure; no I/O, no allocation.
 *
 * A block is quantised as x / absmax, correctly rounded, and the nearest code; it comes back as value * absmax. A block
 * of zeros has absmax 0 and comes back as +0. A block that holds a NaN or an infinity has absmax NaN and comes back as
 * NaN: what was lost shows. The entries set the floating-point control register and restore it; moments_scalar.c is
 * the specification, and every version gives its bits.
 */
#ifndef SHORE_NEAR_MOMENTS_H
#define SHORE_NEAR_MOMENTS_H

#include "near/update.h"
#include "number/dynamic_code.h"

/* Whole blocks: a code for each element and an absmax for each block. */
struct shore__moment8 {
    unsigned char *code; /* NULL: the optimizer has no such moment */
    float *absmax;
};

struct shore__planes8 {
    uint16_t *hi, *lo;
    struct shore__moment8 m, v;
};

/* UPDATE with moments of 8 bits: dequantised, shore__near_update() on them, quantised again; the new parameters come
 * from the moments before they are rounded to 8 bits. elems is a multiple of 256; all else, and the result, as for
 * shore__near_update(). SHORE_ENONFINITE also if a new moment is not finite: its block would be lost. */
int shore__near_update8(enum shore_optimizer optimizer, const struct shore_hyper *hyper, float coefficient,
                        const struct shore__planes8 *in, const struct shore__planes8 *out, const float *gradient,
                        void *params_out, bool fp32_params, size_t elems);

/* m is in the signed code, v in the unsigned one. elems is a multiple of 256. Quantising returns 0, or
 * SHORE_ENONFINITE if a block is not finite. */
int shore__moment8_quantise(const struct shore__dynamic_code *code, const struct shore__moment8 *out, const float *in,
                            size_t elems);
void shore__moment8_dequantise(const struct shore__dynamic_code *code, float *out, const struct shore__moment8 *in,
                               size_t elems);

/* The versions, for tests: the best that this processor has is the last usable one. name NULL at the end. */
struct shore__moments_version {
    const char *name;
    bool (*usable)(void);
    int (*quantise)(const struct shore__dynamic_code *code, const struct shore__moment8 *out, const float *in,
                    size_t elems);
    void (*dequantise)(const struct shore__dynamic_code *code, float *out, const struct shore__moment8 *in,
                       size_t elems);
};
const struct shore__moments_version *shore__moments_versions(void);

#endif
