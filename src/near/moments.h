/* Moments in 8 bits: blocks of 256 elements, each with an fp32 absmax and one byte per element (see
 * number/dynamic_code.h). Pure: no I/O, no allocation.
 *
 * A block is quantised as x / absmax, correctly rounded, to the nearest code, and dequantised as value * absmax. A
 * block of zeros has absmax 0 and returns as +0. A block with a NaN or an infinity has absmax NaN and returns as NaN,
 * so that the loss shows. The entries set the floating-point control register and restore it. moments_scalar.c is the
 * specification; every version gives its bits. */
#ifndef SHORE_NEAR_MOMENTS_H
#define SHORE_NEAR_MOMENTS_H

#include "near/update.h"
#include "number/dynamic_code.h"

/* Whole blocks: one code per element, and one absmax per block. */
struct shore__moment8 {
    unsigned char *code; /* NULL: the optimizer does not have this moment */
    float *absmax;
};

struct shore__planes8 {
    uint16_t *hi, *lo;
    struct shore__moment8 m, v;
};

/* UPDATE with moments of 8 bits: dequantises them, runs shore__near_update(), and quantises them again. The new
 * parameters come from the moments before quantisation. elems: a multiple of 256. Everything else is as for
 * shore__near_update(), except that SHORE_ENONFINITE also tells of a new moment that is not finite, whose block would
 * be lost. */
int shore__near_update8(enum shore_optimizer optimizer, const struct shore_hyper *hyper, float coefficient,
                        const struct shore__planes8 *in, const struct shore__planes8 *out, const float *gradient,
                        void *params_out, bool fp32_params, size_t elems);

/* m uses the signed code, v the unsigned one. elems: a multiple of 256. Quantising returns 0, or SHORE_ENONFINITE if a
 * block is not finite. */
int shore__moment8_quantise(const struct shore__dynamic_code *code, const struct shore__moment8 *out, const float *in,
                            size_t elems);
void shore__moment8_dequantise(const struct shore__dynamic_code *code, float *out, const struct shore__moment8 *in,
                               size_t elems);

/* All versions, for tests. The last usable one is the best for this processor. name is NULL at the end. */
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
