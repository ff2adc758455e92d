/* Specification of UPDATE: every other version gives the same bits.
 *
 * The order of operations is PyTorch's: that of the single-tensor implementations in
 * torch/optim/{adamw,adam,sgd,adagrad}.py (v2.1) and of the ATen kernels they call: lerp (ATen/native/Lerp.h), addcmul
 * and addcdiv (ATen/native/cpu/PointwiseOpsKernel.cpp: self + alpha * a * b and self + alpha * a / b, from left to
 * right). One operation differs: PyTorch divides sqrt(v) by sqrt(1 - beta2^t), UPDATE multiplies by the inverse. */
#include <math.h>

#include "near/rule.h"
#include "number/bf16.h"

struct element {
    float p, m, v;
};

static inline float lerp(const struct shore__rule *r, float m, float g) {
    float difference = g - m;
    float base = r->m_from_gradient ? g : m;
    return base + r->m_weight * difference;
}

static inline void adam(const struct shore__rule *r, struct element *e, float g) {
    e->m = lerp(r, e->m, g);
    e->v = e->v * r->beta2 + r->one_minus_beta2 * g * g;
    float denominator = sqrtf(e->v) * r->inv_sqrt_bias2 + r->eps;
    e->p = e->p - r->step_size * e->m / denominator;
}

static inline void sgd(const struct shore__rule *r, struct element *e, float g, bool with_momentum) {
    if (!with_momentum) {
        e->p = e->p - r->lr * g;
        return;
    }
    e->m = r->first_step ? g : e->m * r->momentum + g;
    e->p = e->p - r->lr * e->m;
}

static inline void adagrad(const struct shore__rule *r, struct element *e, float g) {
    e->v = e->v + g * g;
    e->p = e->p - r->lr * g / (sqrtf(e->v) + r->eps);
}

static inline void step(enum shore_optimizer optimizer, const struct shore__rule *r, struct element *e, float gradient,
                        bool with_momentum) {
    float g = gradient * r->coefficient;
    if (r->decays_gradient) g = g + r->weight_decay * e->p;
    switch (optimizer) {
    case SHORE_ADAMW:
        e->p = e->p * r->decay;
        adam(r, e, g);
        break;
    case SHORE_ADAM:
        adam(r, e, g);
        break;
    case SHORE_SGD:
        sgd(r, e, g, with_momentum);
        break;
    default:
        adagrad(r, e, g);
        break;
    }
}

static inline float stored(float x) {
    return x != x ? shore__bits_f32(SHORE__CANONICAL_NAN) : x;
}

int shore__update_scalar(enum shore_optimizer optimizer, const struct shore_hyper *hyper, float coefficient,
                         const struct shore__planes *in, const struct shore__planes *out, const float *gradient,
                         void *params_out, bool fp32_params, size_t elems) {
    const struct shore__rule rule = shore__rule_make(optimizer, hyper, coefficient);
    bool with_m = in->m && out->m, with_v = in->v && out->v, nonfinite = false;
    for (size_t i = 0; i < elems; i++) {
        struct element e = {shore__join_f32(in->hi[i], in->lo[i]), with_m ? in->m[i] : 0.0f, with_v ? in->v[i] : 0.0f};
        step(optimizer, &rule, &e, gradient[i], with_m);
        float master = stored(e.p);
        nonfinite |= (shore__f32_bits(master) & 0x7FFFFFFFu) >= SHORE__NONFINITE_MASTER;
        shore__split_f32(master, &out->hi[i], &out->lo[i]);
        if (with_m) out->m[i] = stored(e.m);
        if (with_v) out->v[i] = stored(e.v);
        if (!params_out) continue;
        if (fp32_params)
            ((float *)params_out)[i] = master;
        else
            ((uint16_t *)params_out)[i] = out->hi[i];
    }
    return nonfinite ? SHORE_ENONFINITE : 0;
}
