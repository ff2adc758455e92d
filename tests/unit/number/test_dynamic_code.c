/* The tables of the dynamic code are bitsandbytes', and the rule that finds a code finds the nearest one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "number/dynamic_code.h"

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* create_dynamic_map(signed, max_exponent_bits=7, total_bits=8) of bitsandbytes/functional.py, line by line, in
 * double. */
static void dynamic_map(bool is_signed, double map[256]) {
    int used = 0;
    for (int i = 0; i < 7; i++) {
        int fraction_items = (is_signed ? 1 << i : 1 << (i + 1)) + 1;
        for (int k = 0; k + 1 < fraction_items; k++) {
            double low = 0.1 + 0.9 * k / (fraction_items - 1), high = 0.1 + 0.9 * (k + 1) / (fraction_items - 1);
            double mean = pow(10, -6 + i) * (low + high) / 2;
            map[used++] = mean;
            if (is_signed) map[used++] = -mean;
        }
    }
    map[used++] = 0;
    map[used++] = 1;
    assert_int_equal(used, 256);
    qsort(map, 256, sizeof *map, ascending);
}

static void tables_are_the_published_ones(void **state) {
    for (int s = 0; s < 2; s++) {
        const struct shore__dynamic_code *code = shore__dynamic_code(s);
        double map[256];
        dynamic_map(s, map);
        for (int i = 0; i < 256; i++) {
            /* up to the last bit: in double, the map is rounded on the way */
            assert_true(fabs(code->value[i] - map[i]) <= fabs(map[i]) * 0x1p-24 * 1.000001);
        }
        assert_true(code->value[code->zero] == 0.0f);
        assert_true(code->value[255] == 1.0f);
    }
    assert_true(fabsf(shore__dynamic_code(true)->value[0] + 0.99296875f) < 1e-7f);
    assert_true(fabsf(shore__dynamic_code(false)->value[1] - 3.25e-7f) < 1e-13f);
}

/* The rule of the header. */
static int magnitude_code(const struct shore__dynamic_code *code, float a) {
    int d = 0;
    for (int i = 0; i < 7; i++)
        d += a > code->bound[i];
    int n = (int)(a * code->scale[d] + code->shift[d]);
    if (n > code->cap[d]) n = code->cap[d];
    if (n < (d > 0)) n = 1;
    return n + (a > code->bound[7]);
}

static void check(const struct shore__dynamic_code *code, float a) {
    int at = code->zero + magnitude_code(code, a);
    assert_in_range(at, code->zero, 255);
    if (!code->zero && a < code->value[1]) { /* nearest or not: 0 stays 0, and nothing else becomes it */
        assert_int_equal(at, a > 0);
        return;
    }
    double off = fabs(code->value[at] - (double)a);
    if (at > 0 && at > code->zero) {
        double step = (double)code->value[at] - code->value[at - 1];
        assert_true(off <= fabs(code->value[at - 1] - (double)a) + 5e-5 * step);
    }
    if (at < 255) {
        double step = (double)code->value[at + 1] - code->value[at];
        assert_true(off <= fabs(code->value[at + 1] - (double)a) + 5e-5 * step);
    }
}

static void rule_finds_the_nearest(void **state) {
    for (int s = 0; s < 2; s++) {
        const struct shore__dynamic_code *code = shore__dynamic_code(s);
        for (int i = code->zero; i < 256; i++) {
            assert_int_equal(magnitude_code(code, code->value[i]), i - code->zero);
            if (i == 255) break;
            if (i == 0) continue; /* the unsigned 0 takes nothing in */
            double middle = ((double)code->value[i] + code->value[i + 1]) / 2;
            double step = (double)code->value[i + 1] - code->value[i];
            assert_int_equal(magnitude_code(code, (float)(middle - 5e-5 * step)), i - code->zero);
            assert_int_equal(magnitude_code(code, (float)(middle + 5e-5 * step)), i + 1 - code->zero);
        }
        for (double a = 1e-9; a < 1; a *= 1.00001)
            check(code, (float)a);
        check(code, 0.0f);
        check(code, 0x1p-149f);
        check(code, 1.0f);
    }
}

static void codes_do_not_fall(void **state) {
    for (int s = 0; s < 2; s++) {
        const struct shore__dynamic_code *code = shore__dynamic_code(s);
        int before = 0;
        /* every 97th number, so that no neighbourhood of a bound is left out */
        for (uint32_t bits = 0; bits <= 0x3F800000u; bits += 97) {
            union {
                uint32_t u;
                float f;
            } a = {bits};
            int n = magnitude_code(code, a.f);
            if (n < before) fail_msg("code falls at 0x%08x", bits);
            before = n;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_the_published_ones),
        cmocka_unit_test(rule_finds_the_nearest),
        cmocka_unit_test(codes_do_not_fall),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
