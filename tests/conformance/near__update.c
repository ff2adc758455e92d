/* Every version of UPDATE gives the bits of the scalar one: all optimizers, odd sizes, odd alignment, in place or not,
 * any bit pattern, and whatever the caller has set in the floating-point control register. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "near/update.h"
#include "number/bf16.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#define HOSTILE_CONTROL (0x1F80u | 0x8040u | 0x2000u) /* flush to zero, denormals are zero, round down */
static void set_control(unsigned control) {
    _mm_setcsr(control);
}
static unsigned get_control(void) {
    return _mm_getcsr() & ~0x3Fu;
}
#else
#define HOSTILE_CONTROL 0u
static void set_control(unsigned control) {
    (void)control;
}
static unsigned get_control(void) {
    return 0;
}
#endif

enum { MOST = 1100, SLACK = 24 };

struct state {
    uint16_t hi[MOST + SLACK], lo[MOST + SLACK];
    float m[MOST + SLACK], v[MOST + SLACK];
    float params[MOST + SLACK]; /* bf16 or fp32 */
};

enum kind { NORMAL, DENORMAL, RANDOM_BITS, SPECIAL, HUGE_VALUES, KINDS };

static float value(enum kind kind, uint64_t stream, uint64_t i) {
    static const uint32_t special[] = {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFC12345u, 0x7F812345u, 0x00000000u,
                                       0x80000000u, 0x00000001u, 0x807FFFFFu, 0x7F7FFFFFu, 0x7F7F8000u, 0x7F7F7FFFu,
                                       0x3F800000u, 0x00800000u, 0x5F800000u, 0x1F800000u};
    uint64_t bits = shore__random_u64(7, stream, i);
    switch (kind) {
    case NORMAL:
        return shore__random_normal(7, stream, i) * 0.05f;
    case DENORMAL:
        return shore__bits_f32((uint32_t)bits & 0x807FFFFFu);
    case RANDOM_BITS:
        return shore__bits_f32((uint32_t)bits);
    case SPECIAL:
        return shore__bits_f32(special[bits >> 60]);
    default:
        return shore__random_normal(7, stream, i) * 1e19f;
    }
}

static void fill(struct state *s, float *gradient, enum kind kind) {
    memset(s, 0xA5, sizeof *s);
    for (size_t i = 0; i < MOST + SLACK; i++) {
        shore__split_f32(value(kind, 1, i), &s->hi[i], &s->lo[i]);
        s->m[i] = value(kind, 2, i);
        s->v[i] = kind == NORMAL || kind == HUGE_VALUES ? value(kind, 3, i) * value(kind, 3, i) : value(kind, 3, i);
        gradient[i] = value(kind, 4, i);
    }
}

struct request {
    enum shore_optimizer optimizer;
    struct shore_hyper hyper;
    float coefficient;
    size_t elems, offset;
    bool momentum, in_place, fp32_params, with_params;
};

static int run(const struct shore__near_version *version, const struct request *q, const struct state *before,
               const float *gradient, struct state *after) {
    struct state *in = malloc(sizeof *in);
    assert_non_null(in);
    *in = *before;
    *after = *before;
    struct state *from = q->in_place ? after : in;
    unsigned planes = shore_optimizer_planes(q->optimizer, q->momentum);
    bool m = planes & 1u << SHORE_PLANE_M, v = planes & 1u << SHORE_PLANE_V;
    size_t o = q->offset;
    struct shore__planes a = {from->hi + o, from->lo + o, m ? from->m + o : NULL, v ? from->v + o : NULL};
    struct shore__planes b = {after->hi + o, after->lo + o, m ? after->m + o : NULL, v ? after->v + o : NULL};
    int rc = shore__near_update_with(version, q->optimizer, &q->hyper, q->coefficient, &a, &b, gradient + o,
                                     q->with_params ? after->params : NULL, q->fp32_params, q->elems);
    if (!q->in_place) assert_memory_equal(in, before, sizeof *in);
    free(in);
    return rc;
}

static struct state before, expected, got;
static float gradient[MOST + SLACK];

static void compare_versions(const struct request *q) {
    const struct shore__near_version *versions = shore__near_versions();
    assert_string_equal(versions[0].name, "scalar");
    int expected_rc = run(&versions[0], q, &before, gradient, &expected);
    assert_true(expected_rc == 0 || expected_rc == SHORE_ENONFINITE);
    for (const struct shore__near_version *version = versions; version->name; version++) {
        if (!version->usable()) continue;
        unsigned saved = get_control();
        set_control(HOSTILE_CONTROL);
        int rc = run(version, q, &before, gradient, &got);
        unsigned left = get_control();
        set_control(saved | 0x1F80u);
        assert_int_equal(left, HOSTILE_CONTROL);
        assert_int_equal(rc, expected_rc);
        if (memcmp(&got, &expected, sizeof got) != 0)
            fail_msg("%s differs: optimizer %d, %zu elements, offset %zu, in place %d, frozen %u", version->name,
                     (int)q->optimizer, q->elems, q->offset, q->in_place, q->hyper.frozen);
    }
}

static const struct shore_hyper hypers[] = {
    {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .momentum = 0.9f},
    {.lr = 0.5f, .beta1 = 0.0f, .beta2 = 0.999f, .eps = 1e-6f, .weight_decay = 0.0f, .momentum = 0.5f},
    {.lr = 1e-3f, .beta1 = 0.3f, .beta2 = 0.0f, .eps = 0.0f, .weight_decay = 0.01f, .momentum = 0.9f},
    {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .momentum = 0.9f, .frozen = 1},
};

static void each_optimizer(struct request *q, uint64_t t) {
    struct shore_hyper h = q->hyper;
    for (int o = 0; o <= SHORE_OPTIMIZER_COUNT; o++) {
        q->optimizer = o == SHORE_OPTIMIZER_COUNT ? SHORE_SGD : (enum shore_optimizer)o;
        q->momentum = o != SHORE_OPTIMIZER_COUNT;
        q->hyper = h;
        shore_hyper_at_step(&q->hyper, q->optimizer, t);
        for (int form = 0; form < 8; form++) {
            q->in_place = form & 1;
            q->with_params = form & 2;
            q->fp32_params = form & 4;
            compare_versions(q);
        }
    }
    q->hyper = h;
}

static void versions_agree(enum kind kind) {
    static const size_t sizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 64, 257, 1001, 1024};
    fill(&before, gradient, kind);
    for (size_t h = 0; h < sizeof hypers / sizeof hypers[0]; h++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            struct request q = {.hyper = hypers[h], .elems = sizes[s], .offset = s % 5};
            q.coefficient = s % 2 ? 0.37f : 1.0f;
            each_optimizer(&q, s % 3 + 1);
        }
}

static void normal_values(void **state) {
    versions_agree(NORMAL);
}
static void denormals(void **state) {
    versions_agree(DENORMAL);
}
static void random_bits(void **state) {
    versions_agree(RANDOM_BITS);
}
static void infinities_and_nans(void **state) {
    versions_agree(SPECIAL);
}
static void overflowing_squares(void **state) {
    versions_agree(HUGE_VALUES);
}

static void steps_in_a_row_agree(void **state) {
    fill(&before, gradient, NORMAL);
    memset(before.m, 0, sizeof before.m);
    memset(before.v, 0, sizeof before.v);
    for (uint64_t t = 1; t <= 20; t++) {
        struct request q = {.optimizer = SHORE_ADAMW, .hyper = hypers[0], .coefficient = 0.9f, .elems = 1001};
        q.in_place = true;
        shore_hyper_at_step(&q.hyper, SHORE_ADAMW, t);
        compare_versions(&q);
        before = expected;
    }
}

static void a_version_of_vectors_is_usable(void **state) {
    const struct shore__near_version *version = shore__near_versions() + 1;
    while (version->name && !version->usable())
        version++;
    if (version->name) return;
    print_message("nothing was compared: this processor can use the scalar version alone\n");
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normal_values),
        cmocka_unit_test(denormals),
        cmocka_unit_test(random_bits),
        cmocka_unit_test(infinities_and_nans),
        cmocka_unit_test(overflowing_squares),
        cmocka_unit_test(steps_in_a_row_agree),
        cmocka_unit_test(a_version_of_vectors_is_usable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
