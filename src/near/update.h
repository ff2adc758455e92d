/* UPDATE: the optimizer's arithmetic, a chunk in and a chunk out. Pure; no I/O, no allocation.
 *
 * All arithmetic is fp32, round to nearest even, no fused multiply-add, correctly rounded sqrt and division, with the
 * order of operations of update_scalar.c, which is the specification. Every entry sets the floating-point control
 * register (no flush to zero) and restores it. A NaN is stored as 0x7FC00000, whichever the processor made.
 */
#ifndef SHORE_NEAR_UPDATE_H
#define SHORE_NEAR_UPDATE_H

#include "longshore/state.h"

/* As --optimizer takes them, in the order of enum shore_optimizer. */
#define SHORE__OPTIMIZERS "adamw|adam|sgd|adagrad"

/* What the program has to know of an optimizer beside its arithmetic. */
struct shore__optimizer {
    const char *name;    /* of those above; files record it */
    const char *m, *v;   /* what torch.optim calls its state in these planes; NULL: it has none there */
    bool corrects_bias;  /* it has betas, and counts updates */
    bool takes_momentum; /* plane M is there only with a momentum */
    bool divides;        /* by what eps is added to */
    double usual_lr;     /* of a model that begins anew */
};
const struct shore__optimizer *shore__optimizer(enum shore_optimizer optimizer);

/* The planes of a chunk. in and out may be the same arrays. m or v is NULL where the optimizer has none. */
struct shore__planes {
    uint16_t *hi, *lo;
    float *m, *v;
};

/* Updates elems elements of one parameter group. gradient: fp32, multiplied by coefficient first. params_out: NULL, or
 * where the new parameters are written as bf16 (= new hi) or, if fp32_params, as fp32 masters.
 * Returns 0, or SHORE_ENONFINITE if a new master has no finite bf16 (everything is written all the same). */
typedef int shore__update_fn(enum shore_optimizer optimizer, const struct shore_hyper *hyper, float coefficient,
                             const struct shore__planes *in, const struct shore__planes *out, const float *gradient,
                             void *params_out, bool fp32_params, size_t elems);

/* With the best version that this processor has. Frozen elements are carried over bit by bit, and always give 0. */
shore__update_fn shore__near_update;

/* The versions, for tests and `longshore --version`: scalar, avx2, avx512, neon. name NULL at the end. */
struct shore__near_version {
    const char *name;
    bool (*usable)(void);     /* on this processor */
    shore__update_fn *update; /* of what is not frozen; the control register is set */
};
const struct shore__near_version *shore__near_versions(void);
/* shore__near_update() with one of them. */
int shore__near_update_with(const struct shore__near_version *version, enum shore_optimizer optimizer,
                            const struct shore_hyper *hyper, float coefficient, const struct shore__planes *in,
                            const struct shore__planes *out, const float *gradient, void *params_out, bool fp32_params,
                            size_t elems);

#endif
