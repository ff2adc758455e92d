#include <math.h>

#include "near/update.h"

const struct shore__optimizer *shore__optimizer(enum shore_optimizer optimizer) {
    static const struct shore__optimizer optimizers[SHORE_OPTIMIZER_COUNT] = {
        [SHORE_ADAMW] = {"adamw", "exp_avg", "exp_avg_sq", .has_betas = true, .corrects_bias = true, .divides = true,
                         .usual_lr = 3e-4},
        [SHORE_ADAM] = {"adam", "exp_avg", "exp_avg_sq", .has_betas = true, .corrects_bias = true, .divides = true,
                        .usual_lr = 3e-4},
        [SHORE_SGD] = {"sgd", "momentum_buffer", NULL, .takes_momentum = true, .usual_lr = 1e-2},
        [SHORE_ADAGRAD] = {"adagrad", NULL, "sum", .divides = true, .usual_lr = 1e-2},
    };
    return &optimizers[optimizer];
}

/* Power by repeated squaring. libm's pow may differ in the last bit between versions. */
static double power(double base, uint64_t exponent) {
    double result = 1.0;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) result *= base;
        base *= base;
    }
    return result;
}

void shore_hyper_at_step(struct shore_hyper *h, enum shore_optimizer optimizer, uint64_t t) {
    bool corrects = shore__optimizer(optimizer)->corrects_bias;
    h->step_size = corrects ? (float)((double)h->lr / (1.0 - power(h->beta1, t))) : h->lr;
    h->inv_sqrt_bias2 = corrects ? (float)(1.0 / sqrt(1.0 - power(h->beta2, t))) : 1.0f;
    h->first_step = t == 1;
}

unsigned shore_optimizer_planes(enum shore_optimizer optimizer, bool with_momentum) {
    const struct shore__optimizer *o = shore__optimizer(optimizer);
    unsigned planes = 1u << SHORE_PLANE_HI | 1u << SHORE_PLANE_LO;
    if (o->m && (!o->takes_momentum || with_momentum)) planes |= 1u << SHORE_PLANE_M;
    if (o->v) planes |= 1u << SHORE_PLANE_V;
    return planes;
}
