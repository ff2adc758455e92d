#include "near/update.h"

#include <pthread.h>
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
static struct shore__near_version versions[] = {
    {"scalar", true, scalar},
#if defined(__x86_64__)
    {"avx2", false, avx2},
    {"avx512", false, avx512},
#elif defined(__aarch64__)
    {"neon", true, neon},
#endif
    {NULL, false, NULL},
};
static const struct shore__near_version *best;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_usable(void) {
#if defined(__x86_64__)
    versions[1].usable = shore__has_avx2();
    versions[2].usable = shore__has_avx512();
#endif
    for (struct shore__near_version *v = versions; v->name; v++)
        if (v->usable) best = v;
}

const struct shore__near_version *shore__near_versions(void) {
    pthread_once(&once, find_usable);
    return versions;
}

int shore__near_update(enum shore_optimizer optimizer, const struct shore_hyper *hyper, float coefficient,
                       const struct shore__planes *in, const struct shore__planes *out, const float *gradient,
                       void *params_out, bool fp32_params, size_t elems) {
    pthread_once(&once, find_usable);
    return best->update(optimizer, hyper, coefficient, in, out, gradient, params_out, fp32_params, elems);
}
