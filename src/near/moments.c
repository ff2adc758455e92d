#include "near/moments.h"

#include <string.h>

#include "near/moments_impl.h"
#include "number/cpu_features.h"
#include "number/fpcontrol.h"

#define TILE_ELEMS 1024u /* a tile's moments, gradient and planes stay in the first-level cache */

/* The best comes last. */
static const struct shore__moments_version versions[] = {
    {"scalar", shore__has_any, shore__quantise_scalar, shore__dequantise_scalar},
#if defined(__x86_64__)
    {"avx2", shore__has_avx2, shore__quantise_avx2, shore__dequantise_avx2},
    {"avx512", shore__has_avx512, shore__quantise_avx512, shore__dequantise_avx512},
    {"avx512_vbmi", shore__has_avx512_vbmi, shore__quantise_avx512, shore__dequantise_avx512_vbmi},
#endif
    {NULL, NULL, NULL, NULL},
};
SHORE__CHOOSE_BEST(struct shore__moments_version)

const struct shore__moments_version *shore__moments_versions(void) {
    return versions;
}

int shore__moment8_quantise(const struct shore__dynamic_code *code, const struct shore__moment8 *out, const float *in,
                            size_t elems) {
    uint64_t control = shore__fp_begin();
    int rc = best()->quantise(code, out, in, elems);
    shore__fp_end(control);
    return rc;
}

void shore__moment8_dequantise(const struct shore__dynamic_code *code, float *out, const struct shore__moment8 *in,
                               size_t elems) {
    uint64_t control = shore__fp_begin();
    best()->dequantise(code, out, in, elems);
    shore__fp_end(control);
}

static void carry(const struct shore__moment8 *in, const struct shore__moment8 *out, size_t elems) {
    if (!in->code || in->code == out->code) return;
    memmove(out->code, in->code, elems);
    memmove(out->absmax, in->absmax, elems / SHORE__MOMENT_BLOCK_ELEMS * sizeof *in->absmax);
}

static struct shore__moment8 moment_from(const struct shore__moment8 *moment, size_t at) {
    if (!moment->code) return *moment;
    return (struct shore__moment8){moment->code + at, moment->absmax + at / SHORE__MOMENT_BLOCK_ELEMS};
}

/* Updates one tile, from element `at` on. */
static int update_tile(enum shore_optimizer optimizer, const struct shore_hyper *hyper, float coefficient,
                       const struct shore__planes8 *in, const struct shore__planes8 *out, const float *gradient,
                       void *params_out, bool fp32_params, size_t at, size_t elems) {
    _Alignas(64) float m[TILE_ELEMS], v[TILE_ELEMS];
    struct shore__moment8 from_m = moment_from(&in->m, at), to_m = moment_from(&out->m, at);
    struct shore__moment8 from_v = moment_from(&in->v, at), to_v = moment_from(&out->v, at);
    struct shore__planes from = {in->hi + at, in->lo + at, from_m.code ? m : NULL, from_v.code ? v : NULL};
    struct shore__planes to = {out->hi + at, out->lo + at, from.m, from.v};
    unsigned char *params = params_out;
    if (params) params += at * (fp32_params ? sizeof(float) : sizeof(uint16_t));
    if (from.m) shore__moment8_dequantise(shore__dynamic_code(true), m, &from_m, elems);
    if (from.v) shore__moment8_dequantise(shore__dynamic_code(false), v, &from_v, elems);
    int rc = shore__near_update(optimizer, hyper, coefficient, &from, &to, gradient + at, params, fp32_params, elems);
    int m_rc = from.m ? shore__moment8_quantise(shore__dynamic_code(true), &to_m, m, elems) : 0;
    int v_rc = from.v ? shore__moment8_quantise(shore__dynamic_code(false), &to_v, v, elems) : 0;
    return rc ? rc : m_rc ? m_rc : v_rc;
}

int shore__near_update8(enum shore_optimizer optimizer, const struct shore_hyper *hyper, float coefficient,
                        const struct shore__planes8 *in, const struct shore__planes8 *out, const float *gradient,
                        void *params_out, bool fp32_params, size_t elems) {
    if (hyper->frozen) {
        struct shore__planes from = {in->hi, in->lo, NULL, NULL}, to = {out->hi, out->lo, NULL, NULL};
        carry(&in->m, &out->m, elems);
        carry(&in->v, &out->v, elems);
        return shore__near_update(optimizer, hyper, coefficient, &from, &to, gradient, params_out, fp32_params, elems);
    }
    int worst = 0;
    for (size_t at = 0; at < elems; at += TILE_ELEMS) {
        size_t count = elems - at < TILE_ELEMS ? elems - at : TILE_ELEMS;
        int rc = update_tile(optimizer, hyper, coefficient, in, out, gradient, params_out, fp32_params, at, count);
        if (rc && !worst) worst = rc;
    }
    return worst;
}
