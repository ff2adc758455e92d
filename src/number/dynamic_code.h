/* The 8-bit dynamic code of block-wise quantised moments, as bitsandbytes defines it (create_dynamic_map() in
 * bitsandbytes/functional.py; Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022).
 *
 * The magnitudes are 0, seven decades of evenly spaced values, and 1. Within a decade, a product, a sum and a
 * truncation give the nearest code without a table search:
 *
 *     d = how many of bound[0..6] are below a        (a: magnitude, 0 to 1)
 *     n = min(trunc(a * scale[d] + shift[d]), cap[d]), at least 1 if d is not 0, and 1 more if a is above bound[7]
 *     code = zero + n, or zero - n for a negative one
 *
 * in fp32, rounded after every operation. This is the nearest code, with two exceptions: magnitudes within 5e-5 of a
 * step of the middle between two codes; and, in the unsigned code, a value that is not 0 never becomes 0. (bitsandbytes
 * takes the nearest code there too. But where v is 0 and m is not, the next step would be m over the root of that
 * step's gradient alone, which may be arbitrarily small. A parameter whose gradients are 1,000 times smaller than its
 * neighbours' would be thrown far.)
 *
 * At most one bound lies between two powers of two. So for a in [2^e, 2^(e+1)), with e = -31 for all a below 2^-30, d
 * is also below[e + 31], and 1 more if a is above inside[e + 31].
 */
#ifndef SHORE_NUMBER_DYNAMIC_CODE_H
#define SHORE_NUMBER_DYNAMIC_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHORE__MOMENT_BLOCK_ELEMS 256u /* one absmax each */

struct shore__dynamic_code {
    float value[256];                   /* ascending */
    float bound[8], scale[8], shift[8]; /* as above */
    int32_t cap[8];
    int32_t below[32];
    float inside[32]; /* INFINITY: none */
    int32_t zero;     /* the code of 0 */
};

/* The signed code, for m, has both signs, but only +1: n is at most 127 for negative values. In the unsigned code, for
 * v, negative values become 0. Threading: any. */
const struct shore__dynamic_code *shore__dynamic_code(bool is_signed);

#endif
