/* UPDATE: the optimizer's arithmetic, one chunk in and one chunk out. Pure: no I/O, no allocation.
 *
 * All arithmetic is fp32, round to nearest even, without fused multiply-add, with correctly rounded square root and
 * division. update_scalar.c specifies the order of operations. Every entry sets the floating-point control register (no
 * flush to zero) and restores it. Every NaN is stored as 0x7FC00000. */
#ifndef SHORE_NEAR_UPDATE_H
#define SHORE_NEAR_UPDATE_H

#include "longshore/state.h"

/* Names of optimizers, as --optimizer takes them, in the order of enum shore_optimizer. */
#define SHORE__OPTIMIZERS "adamw|adam|sgd|adagrad"

/* Facts about an optimizer beside its arithmetic. */
struct shore__optimizer {
    const char *name;    /* as --optimizer takes it; files record it */
    const char *m, *v;   /* names of torch.optim's state in these planes; NULL: it has none */
    bool has_betas;      /* beta1 and beta2 are its numbers */
    bool corrects_bias;  /* its moments begin at 0, and are divided by 1 - beta^t */
    bool takes_momentum; /* plane M exists only with a momentum, and changes only with one */
    bool divides;        /* it divides by a term that eps is added to */
    double usual_lr;     /* for a new model */
};
const struct shore__optimizer *shore__optimizer(enum shore_optimizer optimizer);

/* The planes of a chunk. in and out may be the same arrays. m or v: NULL if the optimizer has none. */
struct shore__planes {
    uint16_t *hi, *lo;
    float *m, *v;
};

/* Updates elems elements of one parameter group. gradient: fp32, first multiplied by coefficient. params_out: NULL, or
 * where to write the new parameters as bf16 (equal to the new hi) or, if fp32_params, as fp32 masters. Returns 0, or
 * SHORE_ENONFINITE if a new master has no finite bf16; everything is written in either case. */
typedef int shore__update_fn(enum shore_optimizer optimizer, const struct shore_hyper *hyper, float coefficient,
                             const struct shore__planes *in, const struct shore__planes *out, const float *gradient,
                             void *params_out, bool fp32_params, size_t elems);

/* Uses the best version for this processor. Copies frozen elements bit by bit, which always returns 0. */
shore__update_fn shore__near_update;

/* All versions, for tests and `longshore --version`: scalar, avx2, avx512, neon. name is NULL at the end. */
struct shore__near_version {
    const char *name;
    bool (*usable)(void);     /* on this processor */
    shore__update_fn *update; /* for elements that are not frozen; the caller sets the control register */
};
const struct shore__near_version *shore__near_versions(void);
/* Runs shore__near_update() with a given version. */
int shore__near_update_with(const struct shore__near_version *version, enum shore_optimizer optimizer,
                            const struct shore_hyper *hyper, float coefficient, const struct shore__planes *in,
                            const struct shore__planes *out, const float *gradient, void *params_out, bool fp32_params,
                            size_t elems);

#endif
