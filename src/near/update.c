#include "near/update.h"

#include <string.h>

#include "near/rule.h"
#include "number/bf16.h"
#include "number/cpu_features.h"
#include "number/fpcontrol.h"

static void carry(void *out, const void *in, size_t bytes) {
    if (in && out && in != out) memmove(out, in, bytes);
}

static void carry_over(const struct shore__planes *in, const struct shore__planes *out, void *params_out,
                       bool fp32_params, size_t elems) {
    carry(out->hi, in->hi, elems * sizeof *in->hi);
    carry(out->lo, in->lo, elems * sizeof *in->lo);
    carry(out->m, in->m, elems * sizeof *in->m);
    carry(out->v, in->v, elems * sizeof *in->v);
    if (params_out && fp32_params)
        shore__f32_join(params_out, out->hi, out->lo, elems);
    else
        carry(params_out, out->hi, elems * sizeof *out->hi);
}

int shore__near_update_with(const struct shore__near_version *version, enum shore_optimizer optimizer,
                            const struct shore_hyper *hyper, float coefficient, const struct shore__planes *in,
                            const struct shore__planes *out, const float *gradient, void *params_out, bool fp32_params,
                            size_t elems) {
    if (hyper->frozen) {
        carry_over(in, out, params_out, fp32_params, elems);
        return 0;
    }
    struct shore__planes from = *in, to = *out;
    if (shore__optimizer(optimizer)->takes_momentum && hyper->momentum == 0) { /* torch.optim leaves the buffer, too */
        carry(to.m, from.m, elems * sizeof *from.m);
        from.m = to.m = NULL;
    }
    uint64_t control = shore__fp_begin();
    int rc = version->update(optimizer, hyper, coefficient, &from, &to, gradient, params_out, fp32_params, elems);
    shore__fp_end(control);
    return rc;
}

/* The best comes last. */
static const struct shore__near_version versions[] = {
    {"scalar", shore__has_any, shore__update_scalar},
#if defined(__x86_64__)
    {"avx2", shore__has_avx2, shore__update_avx2},
    {"avx512", shore__has_avx512, shore__update_avx512},
#elif defined(__aarch64__)
    {"neon", shore__has_any, shore__update_neon},
#endif
    {NULL, NULL, NULL},
};
SHORE__CHOOSE_BEST(struct shore__near_version)

const struct shore__near_version *shore__near_versions(void) {
    return versions;
}

int shore__near_update(enum shore_optimizer optimizer, const struct shore_hyper *hyper, float coefficient,
                       const struct shore__planes *in, const struct shore__planes *out, const float *gradient,
                       void *params_out, bool fp32_params, size_t elems) {
    return shore__near_update_with(best(), optimizer, hyper, coefficient, in, out, gradient, params_out, fp32_params,
                                   elems);
}
