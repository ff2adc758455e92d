#include <math.h>

#include "near/update.h"

const char *shore__optimizer_name(enum shore_optimizer optimizer) {
    static const char *const names[SHORE_OPTIMIZER_COUNT] = {"adamw", "adam", "sgd", "adagrad"};
    return names[optimizer];
}

/* By repeated squaring: libm's pow may differ in the last bit from one version to the next. */
static double power(double base, uint64_t exponent) {
    double result = 1.0;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) result *= base;
        base *= base;
    }
    return result;
}

void shore_hyper_at_step(struct shore_hyper *h, enum shore_optimizer optimizer, uint64_t t) {
    bool adam = optimizer == SHORE_ADAMW || optimizer == SHORE_ADAM;
    h->step_size = adam ? (float)((double)h->lr / (1.0 - power(h->beta1, t))) : h->lr;
    h->inv_sqrt_bias2 = adam ? (float)(1.0 / sqrt(1.0 - power(h->beta2, t))) : 1.0f;
    h->first_step = t == 1;
}

unsigned shore_optimizer_planes(enum shore_optimizer optimizer, bool with_momentum) {
    unsigned master = 1u << SHORE_PLANE_HI | 1u << SHORE_PLANE_LO;
    switch (optimizer) {
    case SHORE_ADAMW:
    case SHORE_ADAM:
        return master | 1u << SHORE_PLANE_M | 1u << SHORE_PLANE_V;
    case SHORE_SGD:
        return with_momentum ? master | 1u << SHORE_PLANE_M : master;
    default:
        return master | 1u << SHORE_PLANE_V;
    }
}
