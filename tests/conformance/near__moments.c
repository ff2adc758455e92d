/* Every version of quantising gives the bits of the scalar one, and UPDATE with 8-bit moments is: dequantise, the
 * scalar update, quantise; whatever the values, the tiles, and the caller's floating-point control register. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "near/moments.h"
#include "number/bf16.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#define HOSTILE_CONTROL (0x1F80u | 0x8040u | 0x2000u) /* flush to zero, denormals are zero, round down */
static void set_control(unsigned control) {
    _mm_setcsr(control);
}
#else
#define HOSTILE_CONTROL 0u
static void set_control(unsigned control) {
    (void)control;
}
#endif

enum { BLOCK = SHORE__MOMENT_BLOCK_ELEMS, BLOCKS = 12, MOST = BLOCK * BLOCKS };
enum kind { NORMAL, SPREAD, DENORMAL, RANDOM_BITS, MIDDLES, ZEROS, KINDS };

static float value(enum kind kind, uint64_t stream, uint64_t i) {
    uint64_t bits = shore__random_u64(7, stream, i);
    switch (kind) {
    case NORMAL:
        return shore__random_normal(7, stream, i) * 0.05f;
    case SPREAD: /* over all the decades of the code and beyond */
        return shore__random_normal(7, stream, i) * powf(10.0f, -(float)(bits % 10));
    case DENORMAL:
        return shore__bits_f32((uint32_t)bits & 0x807FFFFFu);
    case RANDOM_BITS:
        return shore__bits_f32((uint32_t)bits);
    case MIDDLES: { /* 1 is in every block, so what is quantised is the value itself: near the bounds of the codes */
        const struct shore__dynamic_code *code = shore__dynamic_code(bits & 1);
        size_t n = bits >> 8 & 0xFF;
        float middle = n < 255 ? (code->value[n] + code->value[n + 1]) / 2 : 1.0f;
        return i % BLOCK == 0 ? 1.0f : shore__bits_f32(shore__f32_bits(middle) + (uint32_t)(bits >> 60) - 8);
    }
    default:
        return bits & 1 ? 0.0f : -0.0f;
    }
}

struct moments {
    unsigned char code[MOST];
    float absmax[BLOCKS];
};

static float in[MOST], out[MOST], expected_out[MOST];
static struct moments expected, got;

static void fill(enum kind kind, uint64_t stream) {
    for (size_t i = 0; i < MOST; i++)
        in[i] = value(kind, stream, i);
    if (kind == RANDOM_BITS) {
        for (size_t i = 0; i < MOST / 2; i++) /* some blocks of finite numbers */
            if (!isfinite(in[i])) in[i] = 1.0f;
    }
}

static void versions_agree(const struct shore__dynamic_code *code, size_t elems) {
    const struct shore__moments_version *versions = shore__moments_versions();
    assert_string_equal(versions[0].name, "scalar");
    struct shore__moment8 want = {expected.code, expected.absmax}, have = {got.code, got.absmax};
    memset(&expected, 0xA5, sizeof expected);
    int expected_rc = versions[0].quantise(code, &want, in, elems);
    memset(expected_out, 0xA5, sizeof expected_out);
    versions[0].dequantise(code, expected_out, &want, elems);
    for (const struct shore__moments_version *version = versions; version->name; version++) {
        if (!version->usable()) continue;
        memset(&got, 0xA5, sizeof got);
        assert_int_equal(version->quantise(code, &have, in, elems), expected_rc);
        if (memcmp(&got, &expected, sizeof got) != 0) fail_msg("%s quantises differently", version->name);
        memset(out, 0xA5, sizeof out);
        version->dequantise(code, out, &have, elems);
        if (memcmp(out, expected_out, sizeof out) != 0) fail_msg("%s dequantises differently", version->name);
    }
}

static void quantising_agrees(void **state) {
    for (int kind = 0; kind < KINDS; kind++)
        for (uint64_t stream = 0; stream < 8; stream++) {
            fill(kind, stream);
            versions_agree(shore__dynamic_code(true), MOST - stream % 3 * BLOCK);
            versions_agree(shore__dynamic_code(false), MOST - stream % 3 * BLOCK);
        }
}

static void error_is_bounded(void **state) {
    struct shore__moment8 moment = {got.code, got.absmax};
    for (int s = 0; s < 2; s++) {
        const struct shore__dynamic_code *code = shore__dynamic_code(s);
        fill(SPREAD, 1);
        for (size_t i = 0; i < MOST && !s; i++)
            in[i] = fabsf(in[i]);
        assert_int_equal(shore__moment8_quantise(code, &moment, in, MOST), 0);
        shore__moment8_dequantise(code, out, &moment, MOST);
        for (size_t i = 0; i < MOST; i++) {
            double absmax = got.absmax[i / BLOCK], x = fabs((double)in[i]) / absmax, off = fabs(out[i] - (double)in[i]);
            /* half a step of the decade, which has 2^d parts of 0.9; the steps between decades are the widest */
            double decade = x > 1e-7 ? ceil(log10(x) - 1e-9) : -6;
            if (decade < -6) decade = -6;
            double step = 0.9 * pow(10, decade) / pow(2, decade + (s ? 6 : 7));
            assert_true(off <= absmax * step * 0.5 * 1.7);
        }
    }
}

static void odd_blocks(void **state) {
    struct shore__moment8 moment = {got.code, got.absmax};
    static const uint32_t bad[] = {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFF812345u};
    for (size_t b = 0; b < 4; b++) {
        fill(NORMAL, b);
        in[BLOCK + 17 * b] = shore__bits_f32(bad[b]);
        memset(in + (size_t)3 * BLOCK, 0, BLOCK * sizeof *in);
        versions_agree(shore__dynamic_code(true), MOST);
        versions_agree(shore__dynamic_code(false), MOST);
        assert_int_equal(shore__moment8_quantise(shore__dynamic_code(true), &moment, in, MOST), SHORE_ENONFINITE);
        shore__moment8_dequantise(shore__dynamic_code(true), out, &moment, MOST);
        for (size_t i = 0; i < MOST; i++) {
            assert_int_equal(isnan(out[i]) != 0, i / BLOCK == 1);
            if (i / BLOCK == 3) assert_int_equal(shore__f32_bits(out[i]), 0);
        }
    }
}

/* ---- UPDATE ---- */

struct state {
    uint16_t hi[MOST], lo[MOST];
    struct moments m, v;
    float params[MOST];
};

static struct state before, after, wanted;
static float gradient[MOST];

static void by_the_definition(enum shore_optimizer optimizer, const struct shore_hyper *h, bool m, bool v,
                              bool fp32_params, size_t elems, int *rc) {
    static float fm[MOST], fv[MOST];
    const struct shore__moments_version *scalar = shore__moments_versions();
    struct shore__moment8 m8 = {wanted.m.code, wanted.m.absmax}, v8 = {wanted.v.code, wanted.v.absmax};
    if (m) scalar->dequantise(shore__dynamic_code(true), fm, &m8, elems);
    if (v) scalar->dequantise(shore__dynamic_code(false), fv, &v8, elems);
    struct shore__planes planes = {wanted.hi, wanted.lo, m ? fm : NULL, v ? fv : NULL};
    *rc = shore__near_update_with(shore__near_versions(), optimizer, h, 0.7f, &planes, &planes, gradient, wanted.params,
                                  fp32_params, elems);
    if (h->frozen) return;
    int m_rc = m ? scalar->quantise(shore__dynamic_code(true), &m8, fm, elems) : 0;
    int v_rc = v ? scalar->quantise(shore__dynamic_code(false), &v8, fv, elems) : 0;
    if (!*rc) *rc = m_rc ? m_rc : v_rc;
}

static void fill_state(enum kind kind) {
    memset(&before, 0xA5, sizeof before);
    struct shore__moment8 m8 = {before.m.code, before.m.absmax}, v8 = {before.v.code, before.v.absmax};
    const struct shore__moments_version *scalar = shore__moments_versions();
    fill(kind, 1);
    scalar->quantise(shore__dynamic_code(true), &m8, in, MOST);
    for (size_t i = 0; i < MOST; i++)
        in[i] *= in[i];
    scalar->quantise(shore__dynamic_code(false), &v8, in, MOST);
    for (size_t i = 0; i < MOST; i++) {
        shore__split_f32(value(kind, 2, i), &before.hi[i], &before.lo[i]);
        gradient[i] = value(kind, 3, i);
    }
}

static void compare(enum shore_optimizer optimizer, struct shore_hyper h, bool momentum, unsigned form, size_t elems) {
    unsigned planes = shore_optimizer_planes(optimizer, momentum);
    bool m = planes & 1u << SHORE_PLANE_M, v = planes & 1u << SHORE_PLANE_V, fp32_params = form & 1;
    static struct state source;
    shore_hyper_at_step(&h, optimizer, 1 + form);
    wanted = before;
    source = before;
    after = before;
    struct state *from = form & 2 ? &after : &source;
    struct shore__planes8 a = {
        from->hi, from->lo, {m ? from->m.code : NULL, from->m.absmax}, {v ? from->v.code : NULL, from->v.absmax}};
    struct shore__planes8 b = {
        after.hi, after.lo, {m ? after.m.code : NULL, after.m.absmax}, {v ? after.v.code : NULL, after.v.absmax}};
    int rc;
    by_the_definition(optimizer, &h, m, v, fp32_params, elems, &rc);
    set_control(HOSTILE_CONTROL);
    int got_rc = shore__near_update8(optimizer, &h, 0.7f, &a, &b, gradient, after.params, fp32_params, elems);
    set_control(0x1F80u);
    assert_int_equal(got_rc, rc);
    assert_memory_equal(&source, &before, sizeof source);
    if (memcmp(&after, &wanted, sizeof after) != 0)
        fail_msg("optimizer %d, form %u, %zu elements, frozen %u", (int)optimizer, form, elems, h.frozen);
}

static void update_is_dequantise_update_quantise(void **state) {
    static const size_t sizes[] = {0, BLOCK, 4 * BLOCK, 5 * BLOCK, MOST};
    static const enum kind kinds[] = {NORMAL, SPREAD, DENORMAL, RANDOM_BITS};
    struct shore_hyper h = {
        .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .momentum = 0.9f};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        fill_state(kinds[k]);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (unsigned form = 0; form < 8; form++)
                for (int o = 0; o <= SHORE_OPTIMIZER_COUNT; o++) {
                    h.frozen = form >> 2;
                    compare(o == SHORE_OPTIMIZER_COUNT ? SHORE_SGD : (enum shore_optimizer)o, h,
                            o != SHORE_OPTIMIZER_COUNT, form & 3, sizes[s]);
                }
    }
}

static void moment_that_overflows_is_reported(void **state) {
    fill_state(NORMAL);
    gradient[300] = 1e25f; /* its square is infinite, and the parameter would stay finite */
    struct shore_hyper h = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
    struct shore__planes8 p = {
        before.hi, before.lo, {before.m.code, before.m.absmax}, {before.v.code, before.v.absmax}};
    shore_hyper_at_step(&h, SHORE_ADAMW, 1);
    assert_int_equal(shore__near_update8(SHORE_ADAMW, &h, 1.0f, &p, &p, gradient, NULL, false, MOST), SHORE_ENONFINITE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantising_agrees),
        cmocka_unit_test(error_is_bounded),
        cmocka_unit_test(odd_blocks),
        cmocka_unit_test(update_is_dequantise_update_quantise),
        cmocka_unit_test(moment_that_overflows_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
