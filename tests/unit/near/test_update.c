#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "near/update.h"
#include "number/bf16.h"

enum { ELEMS = 300 };

struct model {
    uint16_t hi[ELEMS], lo[ELEMS];
    float m[ELEMS], v[ELEMS];
};

static struct model model;
static double p[ELEMS], m[ELEMS], v[ELEMS];

static void start(void) {
    for (size_t i = 0; i < ELEMS; i++) {
        float x = shore__random_normal(1, 0, i);
        shore__split_f32(x, &model.hi[i], &model.lo[i]);
        p[i] = x;
        m[i] = v[i] = model.m[i] = model.v[i] = 0.0f;
    }
}

static struct shore__planes planes_of(struct model *s, enum shore_optimizer optimizer, bool momentum) {
    unsigned mask = shore_optimizer_planes(optimizer, momentum);
    return (struct shore__planes){s->hi, s->lo, mask & 1u << SHORE_PLANE_M ? s->m : NULL,
                                  mask & 1u << SHORE_PLANE_V ? s->v : NULL};
}

/* The textbook formulas in double. */
static void expect_step(enum shore_optimizer optimizer, const struct shore_hyper *h, int t, size_t i, double g,
                        bool momentum) {
    if (optimizer == SHORE_ADAMW) p[i] *= 1 - (double)h->lr * h->weight_decay;
    if (optimizer != SHORE_ADAMW) g += (double)h->weight_decay * p[i];
    if (optimizer == SHORE_SGD) {
        m[i] = t == 1 ? g : m[i] * h->momentum + g;
        p[i] -= h->lr * (momentum ? m[i] : g);
    } else if (optimizer == SHORE_ADAGRAD) {
        v[i] += g * g;
        p[i] -= h->lr * g / (sqrt(v[i]) + h->eps);
    } else {
        m[i] = m[i] * h->beta1 + (1 - (double)h->beta1) * g;
        v[i] = v[i] * h->beta2 + (1 - (double)h->beta2) * g * g;
        double mhat = m[i] / (1 - pow(h->beta1, t)), vhat = v[i] / (1 - pow(h->beta2, t));
        p[i] -= h->lr * mhat / (sqrt(vhat) + h->eps);
    }
}

static void follow(enum shore_optimizer optimizer, bool momentum, float beta1) {
    struct shore_hyper h = {.lr = 1e-2f, .beta1 = beta1, .beta2 = 0.95f, .eps = 1e-6f, .weight_decay = 0.1f};
    h.momentum = momentum ? 0.9f : 0.0f;
    start();
    for (int t = 1; t <= 30; t++) {
        float gradient[ELEMS], params[ELEMS];
        for (size_t i = 0; i < ELEMS; i++) {
            gradient[i] = shore__random_normal(2, (uint64_t)t, i);
            expect_step(optimizer, &h, t, i, 0.25 * gradient[i], momentum);
        }
        shore_hyper_at_step(&h, optimizer, (uint64_t)t);
        struct shore__planes planes = planes_of(&model, optimizer, momentum);
        assert_int_equal(shore__near_update(optimizer, &h, 0.25f, &planes, &planes, gradient, params, true, ELEMS), 0);
        for (size_t i = 0; i < ELEMS; i++) {
            if (fabs(params[i] - p[i]) > 2e-5) fail_msg("step %d element %zu: %g, not %g", t, i, params[i], p[i]);
            assert_int_equal(shore__f32_bits(params[i]), shore__f32_bits(shore__join_f32(model.hi[i], model.lo[i])));
        }
    }
}

static void adamw_follows_its_formula(void **state) {
    follow(SHORE_ADAMW, false, 0.9f);
    follow(SHORE_ADAMW, false, 0.2f);
    follow(SHORE_ADAMW, false, 0.0f);
}
static void adam_follows_its_formula(void **state) {
    follow(SHORE_ADAM, false, 0.9f);
}
static void sgd_follows_its_formula(void **state) {
    follow(SHORE_SGD, true, 0.0f);
    follow(SHORE_SGD, false, 0.0f);
}
/* torch/optim/sgd.py uses its buffer only where the group's momentum is not 0. */
static void sgd_without_momentum_leaves_its_buffer(void **state) {
    struct shore_hyper h = {.lr = 0.1f};
    float gradient[ELEMS], params[ELEMS];
    struct model after;
    start();
    for (size_t i = 0; i < ELEMS; i++) {
        model.m[i] = shore__random_normal(3, 0, i);
        gradient[i] = shore__random_normal(2, 1, i);
        expect_step(SHORE_SGD, &h, 2, i, gradient[i], false);
    }
    shore_hyper_at_step(&h, SHORE_SGD, 2);
    struct shore__planes in = planes_of(&model, SHORE_SGD, true), out = planes_of(&after, SHORE_SGD, true);
    assert_int_equal(shore__near_update(SHORE_SGD, &h, 1.0f, &in, &out, gradient, params, true, ELEMS), 0);
    assert_memory_equal(after.m, model.m, sizeof model.m);
    for (size_t i = 0; i < ELEMS; i++)
        if (fabs(params[i] - p[i]) > 2e-5) fail_msg("element %zu: %g, not %g", i, params[i], p[i]);
}
static void adagrad_follows_its_formula(void **state) {
    follow(SHORE_ADAGRAD, false, 0.0f);
}

static void nonfinite_masters_are_reported_and_written(void **state) {
    static const struct {
        uint32_t master;
        int rc;
    } cases[] = {{0x7F7F7FFFu, 0},
                 {0xFF7F7FFFu, 0},
                 {0x7F7F8000u, SHORE_ENONFINITE},
                 {0xFF7F8000u, SHORE_ENONFINITE},
                 {0x7F800000u, SHORE_ENONFINITE},
                 {0xFF800000u, SHORE_ENONFINITE},
                 {0x7FC00000u, SHORE_ENONFINITE}};
    struct shore_hyper h = {.lr = 0.0f};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (size_t at = 0; at < 37; at += 6) {
            float gradient[37] = {0};
            uint16_t params[37];
            start();
            shore__split_f32(shore__bits_f32(cases[c].master), &model.hi[at], &model.lo[at]);
            struct model after;
            struct shore__planes in = planes_of(&model, SHORE_SGD, false), out = planes_of(&after, SHORE_SGD, false);
            assert_int_equal(shore__near_update(SHORE_SGD, &h, 1.0f, &in, &out, gradient, params, false, 37),
                             cases[c].rc);
            assert_memory_equal(after.hi, model.hi, sizeof params);
            assert_memory_equal(after.lo, model.lo, sizeof params);
            assert_memory_equal(params, model.hi, sizeof params);
        }
}

static void frozen_elements_are_carried_over(void **state) {
    struct shore_hyper h = {.lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.9f, .eps = 1e-8f, .weight_decay = 0.1f, .frozen = 1};
    float gradient[ELEMS], params[ELEMS];
    start();
    for (size_t i = 0; i < ELEMS; i++) {
        gradient[i] = NAN;
        model.m[i] = shore__bits_f32(0x7F812345u);
    }
    struct model after;
    memset(&after, 0, sizeof after);
    struct shore__planes in = planes_of(&model, SHORE_ADAMW, false), out = planes_of(&after, SHORE_ADAMW, false);
    shore_hyper_at_step(&h, SHORE_ADAMW, 1);
    assert_int_equal(shore__near_update(SHORE_ADAMW, &h, NAN, &in, &out, gradient, params, true, ELEMS), 0);
    assert_memory_equal(&after, &model, sizeof model);
    for (size_t i = 0; i < ELEMS; i++)
        assert_int_equal(shore__f32_bits(params[i]), shore__f32_bits(shore__join_f32(model.hi[i], model.lo[i])));
}

static void padding_stays_zero(void **state) {
    for (int o = 0; o < SHORE_OPTIMIZER_COUNT; o++) {
        struct shore_hyper h = {.lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.9f, .eps = 1e-8f, .weight_decay = 0.1f};
        float gradient[ELEMS] = {0};
        struct model zero;
        memset(&zero, 0, sizeof zero);
        memset(&model, 0, sizeof model);
        struct shore__planes planes = planes_of(&model, (enum shore_optimizer)o, true);
        shore_hyper_at_step(&h, (enum shore_optimizer)o, 1);
        assert_int_equal(
            shore__near_update((enum shore_optimizer)o, &h, 1.0f, &planes, &planes, gradient, NULL, false, ELEMS), 0);
        assert_memory_equal(&model, &zero, sizeof zero);
    }
}

static void bias_corrections_follow_the_step(void **state) {
    struct shore_hyper h = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f};
    for (uint64_t t = 1; t < 5000; t = t * 3 / 2 + 1) {
        shore_hyper_at_step(&h, SHORE_ADAM, t);
        double step_size = (double)h.lr / (1 - pow(h.beta1, (double)t));
        double inverse = 1 / sqrt(1 - pow(h.beta2, (double)t));
        assert_true(fabs(h.step_size - step_size) <= 1e-7 * step_size);
        assert_true(fabs(h.inv_sqrt_bias2 - inverse) <= 1e-7 * inverse);
        assert_int_equal(h.first_step, t == 1);
    }
    shore_hyper_at_step(&h, SHORE_ADAMW, UINT64_C(1) << 40);
    assert_true(h.step_size == h.lr && h.inv_sqrt_bias2 == 1.0f);
}

static void planes_are_what_each_optimizer_stores(void **state) {
    unsigned hi_lo = 3, with_m = 4, with_v = 8;
    assert_int_equal(shore_optimizer_planes(SHORE_ADAMW, false), hi_lo | with_m | with_v);
    assert_int_equal(shore_optimizer_planes(SHORE_ADAM, true), hi_lo | with_m | with_v);
    assert_int_equal(shore_optimizer_planes(SHORE_SGD, false), hi_lo);
    assert_int_equal(shore_optimizer_planes(SHORE_SGD, true), hi_lo | with_m);
    assert_int_equal(shore_optimizer_planes(SHORE_ADAGRAD, false), hi_lo | with_v);
}

static void names_are_those_that_options_take(void **state) {
    (void)state;
    char all[256] = "";
    for (enum shore_optimizer o = SHORE_ADAMW; o < SHORE_OPTIMIZER_COUNT; o++) {
        strcat(all, o ? "|" : "");
        strcat(all, shore__optimizer(o)->name);
    }
    assert_string_equal(all, SHORE__OPTIMIZERS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_follows_its_formula),
        cmocka_unit_test(adam_follows_its_formula),
        cmocka_unit_test(sgd_follows_its_formula),
        cmocka_unit_test(sgd_without_momentum_leaves_its_buffer),
        cmocka_unit_test(adagrad_follows_its_formula),
        cmocka_unit_test(nonfinite_masters_are_reported_and_written),
        cmocka_unit_test(frozen_elements_are_carried_over),
        cmocka_unit_test(padding_stays_zero),
        cmocka_unit_test(bias_corrections_follow_the_step),
        cmocka_unit_test(names_are_those_that_options_take),
        cmocka_unit_test(planes_are_what_each_optimizer_stores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
