/* What moments of 8 bits cost in precision, against fp32 moments and against AdamW in double: the figures that
 * bench/results/amx.md states. Gradients of one tensor are drawn with scales that differ by decades inside a block, and
 * drift, as those of a network do. */
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

enum { BLOCK = SHORE__MOMENT_BLOCK_ELEMS, ELEMS = 64 * BLOCK, STEPS = 300 };

static const struct shore_hyper settings = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};

static float gradient_of(uint64_t i, uint64_t step) {
    float scale = expf(1.5f * shore__random_normal(1, 0, i)); /* 0.01 to 100 within a block */
    float mean = 0.3f * shore__random_normal(1, 1, i);
    return 1e-3f * scale * (mean + shore__random_normal(2, step, i));
}

static double wanted[ELEMS], wanted_m[ELEMS], wanted_v[ELEMS];
static uint16_t hi[ELEMS], lo[ELEMS];
static float m[ELEMS], v[ELEMS], gradient[ELEMS];
static unsigned char m_code[ELEMS], v_code[ELEMS];
static float m_absmax[ELEMS / BLOCK], v_absmax[ELEMS / BLOCK];

static void in_double(uint64_t step) {
    for (size_t i = 0; i < ELEMS; i++) {
        double g = gradient[i];
        wanted_m[i] = 0.9 * wanted_m[i] + 0.1 * g;
        wanted_v[i] = 0.95 * wanted_v[i] + 0.05 * g * g;
        double root = sqrt(wanted_v[i] / (1 - pow(0.95, (double)step))) + 1e-8;
        wanted[i] -= 1e-3 * wanted_m[i] / (1 - pow(0.9, (double)step)) / root;
    }
}

/* Root mean square of (parameters - those in double) / of how far these have come. */
static double error_after_training(bool in_8bit) {
    struct shore__moment8 m8 = {m_code, m_absmax}, v8 = {v_code, v_absmax};
    memset(wanted, 0, sizeof wanted);
    memset(wanted_m, 0, sizeof wanted_m);
    memset(wanted_v, 0, sizeof wanted_v);
    memset(hi, 0, sizeof hi);
    memset(lo, 0, sizeof lo);
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    shore__moment8_quantise(shore__dynamic_code(true), &m8, m, ELEMS);
    shore__moment8_quantise(shore__dynamic_code(false), &v8, v, ELEMS);
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct shore_hyper h = settings;
        shore_hyper_at_step(&h, SHORE_ADAMW, step);
        for (size_t i = 0; i < ELEMS; i++)
            gradient[i] = gradient_of(i, step);
        in_double(step);
        int rc;
        if (in_8bit) {
            struct shore__planes8 p = {hi, lo, m8, v8};
            rc = shore__near_update8(SHORE_ADAMW, &h, 1, &p, &p, gradient, NULL, false, ELEMS);
        } else {
            struct shore__planes p = {hi, lo, m, v};
            rc = shore__near_update(SHORE_ADAMW, &h, 1, &p, &p, gradient, NULL, false, ELEMS);
        }
        assert_int_equal(rc, 0);
    }
    double off = 0, way = 0;
    for (size_t i = 0; i < ELEMS; i++) {
        double p = shore__join_f32(hi[i], lo[i]);
        off += (p - wanted[i]) * (p - wanted[i]);
        way += wanted[i] * wanted[i];
    }
    return sqrt(off / way);
}

static void training_stays_close(void **state) {
    double fp32 = error_after_training(false), coded = error_after_training(true);
    print_message("after %d steps: off by %.2g of the way with fp32 moments, by %.2g with 8-bit ones\n", STEPS, fp32,
                  coded);
    assert_true(fp32 < 1e-5);
    assert_true(coded < 0.2);
    assert_true(coded > 1e-4); /* or nothing was quantised */
}

/* Of one quantisation: half a step of the highest decade, as a share of the block's largest value, and the mean. */
static void one_quantisation(void **state) {
    struct shore__moment8 m8 = {m_code, m_absmax};
    for (int s = 0; s < 2; s++) {
        const struct shore__dynamic_code *code = shore__dynamic_code(s);
        double worst = 0, sum = 0, values = 0;
        for (size_t i = 0; i < ELEMS; i++) {
            float x = shore__random_normal(3, 0, i);
            gradient[i] = s ? x : x * x;
        }
        assert_int_equal(shore__moment8_quantise(code, &m8, gradient, ELEMS), 0);
        shore__moment8_dequantise(code, m, &m8, ELEMS);
        for (size_t i = 0; i < ELEMS; i++) {
            double off = fabs((double)m[i] - gradient[i]);
            if (off / m_absmax[i / BLOCK] > worst) worst = off / m_absmax[i / BLOCK];
            sum += off;
            values += fabs((double)gradient[i]);
        }
        print_message("%s: at most %.3g of the largest in the block, %.3g of the values on average\n", s ? "m" : "v",
                      worst, sum / values);
        assert_true(worst <= (s ? 0.00704 : 0.00352));
        assert_true(sum / values < (s ? 0.02 : 0.015));
    }
}

/* A v that does not change stays to the bit: frozen variance (beta2 = 1) must not drift. */
static void coded_v_is_stable(void **state) {
    struct shore__moment8 v8 = {v_code, v_absmax};
    static unsigned char before[ELEMS];
    for (size_t i = 0; i < ELEMS; i++) {
        float x = gradient_of(i, 1);
        v[i] = x * x;
    }
    assert_int_equal(shore__moment8_quantise(shore__dynamic_code(false), &v8, v, ELEMS), 0);
    memcpy(before, v_code, sizeof before);
    for (int round = 0; round < 3; round++) {
        shore__moment8_dequantise(shore__dynamic_code(false), v, &v8, ELEMS);
        assert_int_equal(shore__moment8_quantise(shore__dynamic_code(false), &v8, v, ELEMS), 0);
        assert_memory_equal(v_code, before, sizeof before);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_stays_close),
        cmocka_unit_test(one_quantisation),
        cmocka_unit_test(coded_v_is_stable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
