/* Constants of one call of UPDATE, which all its versions share, and the versions' private names. */
#ifndef SHORE_NEAR_RULE_H
#define SHORE_NEAR_RULE_H

#include "near/update.h"

#define SHORE__NONFINITE_MASTER 0x7F7F8000u /* magnitudes from here on have no finite bf16 */
#define SHORE__CANONICAL_NAN 0x7FC00000u    /* every NaN that is stored: processors differ in which NaN they make */

/* Constants of an optimizer, each computed in double and rounded to fp32 once, as in PyTorch. */
struct shore__rule {
    float coefficient;
    float lr, eps, weight_decay, momentum;
    float decay;                  /* AdamW: 1 - lr * weight_decay */
    float m_weight;               /* lerp's factor of (g - m), see shore__rule_make() */
    bool m_from_gradient;         /* lerp adds to g instead of m */
    float beta2, one_minus_beta2; /* second moment */
    float step_size, inv_sqrt_bias2;
    bool decays_gradient; /* weight decay is added to the gradient */
    bool first_step;
};

/* torch.lerp (ATen/native/Lerp.h): m + w (g - m) for |w| < 0.5, else g - (g - m) (1 - w), for precision. Both are base
 * + weight * (g - m), bit for bit. */
static inline struct shore__rule shore__rule_make(enum shore_optimizer optimizer, const struct shore_hyper *h,
                                                  float coefficient) {
    float w = (float)(1.0 - (double)h->beta1);
    bool from_gradient = !(w < 0.5f && w > -0.5f);
    return (struct shore__rule){
        .coefficient = coefficient,
        .lr = h->lr,
        .eps = h->eps,
        .weight_decay = h->weight_decay,
        .momentum = h->momentum,
        .decay = (float)(1.0 - (double)h->lr * (double)h->weight_decay),
        .m_weight = from_gradient ? -(1.0f - w) : w,
        .m_from_gradient = from_gradient,
        .beta2 = h->beta2,
        .one_minus_beta2 = (float)(1.0 - (double)h->beta2),
        .step_size = h->step_size,
        .inv_sqrt_bias2 = h->inv_sqrt_bias2,
        .decays_gradient = optimizer != SHORE_ADAMW && h->weight_decay != 0.0f,
        .first_step = h->first_step != 0,
    };
}

/* For elements that are not frozen; the caller sets the control register. */
shore__update_fn shore__update_scalar, shore__update_avx2, shore__update_avx512, shore__update_neon;

/* The planes from element on, for the tail behind a vector version. */
static inline struct shore__planes shore__planes_from(const struct shore__planes *p, size_t element) {
    return (struct shore__planes){p->hi + element, p->lo + element, p->m ? p->m + element : NULL,
                                  p->v ? p->v + element : NULL};
}

#endif
