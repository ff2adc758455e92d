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

static int guarded(shore__update_fn *update, enum shore_optimizer optimizer, const struct shore_hyper *hyper,
                   float coefficient, const struct shore__planes *in, const struct shore__planes *out,
                   const float *gradient, void *params_out, bool fp32_params, size_t elems) {
    if (hyper->frozen) {
        carry_over(in, out, params_out, fp32_params, elems);
        return 0;
    }
    uint64_t control = shore__fp_begin();
    int rc = update(optimizer, hyper, coefficient, in, out, gradient, params_out, fp32_params, elems);
    shore__fp_end(control);
    return rc;
}

#define VERSION(name)                                                                                       \
    static int name(enum shore_optimizer optimizer, const struct shore_hyper *hyper, float coefficient,     \
                    const struct shore__planes *in, const struct shore__planes *out, const float *gradient, \
                    void *params_out, bool fp32_params, size_t elems) {                                     \
        return guarded(shore__update_##name, optimizer, hyper, coefficient, in, out, gradient, params_out,  \
                       fp32_params, elems);                                                                 \
    }

VERSION(scalar)
#if defined(__x86_64__)
VERSION(avx2)
VERSION(avx512)
#elif defined(__aarch64__)
VERSION(neon)
#endif

/* The best comes last. */
static const struct shore__near_version versions[] = {
    {"scalar", shore__has_any, scalar},
#if defined(__x86_64__)
    {"avx2", shore__has_avx2, avx2},
    {"avx512", shore__has_avx512, avx512},
#elif defined(__aarch64__)
    {"neon", shore__has_any, neon},
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
    return best()->update(optimizer, hyper, coefficient, in, out, gradient, params_out, fp32_params, elems);
}
