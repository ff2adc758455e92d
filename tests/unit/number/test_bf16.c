#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "number/bf16.h"

enum { ALL16 = 65536 };

/* Low halves around every decision of the rounding, and some at random. */
static const uint16_t low_parts[] = {0x0000, 0x0001, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF, 0x1234, 0xC0DE};

struct arrays {
    float wide[ALL16], back[ALL16];
    uint16_t hi[ALL16], lo[ALL16];
};

static int make(void **state) {
    *state = malloc(sizeof(struct arrays));
    return *state ? 0 : -1;
}
static int drop(void **state) {
    free(*state);
    return 0;
}

/* Round to nearest even, said in another way: compare the distances in double. */
static uint16_t nearest_even(uint32_t bits) {
    uint32_t magnitude = bits & 0x7FFFFFFFu, sign = bits >> 31 << 15;
    if (magnitude > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u);
    uint32_t below = magnitude >> 16, rest = magnitude & 0xFFFFu;
    uint32_t up = rest > 0x8000u || (rest == 0x8000u && below % 2 == 1);
    return (uint16_t)(sign | (below + up));
}

static void split_then_join_is_identity_on_every_pattern(void **state) {
    struct arrays *a = *state;
    for (size_t k = 0; k < sizeof low_parts / sizeof low_parts[0] + 3; k++) {
        for (uint32_t high = 0; high < ALL16; high++) {
            uint32_t low = k < 10 ? low_parts[k] : (uint16_t)shore__random_u64(k, 0, high);
            a->wide[high] = shore__bits_f32(high << 16 | low);
        }
        shore__f32_split(a->hi, a->lo, a->wide, ALL16);
        shore__f32_join(a->back, a->hi, a->lo, ALL16);
        assert_memory_equal(a->back, a->wide, sizeof a->wide);
        for (uint32_t i = 0; i < ALL16; i++) {
            uint16_t hi, lo;
            shore__split_f32(a->wide[i], &hi, &lo);
            if (hi != a->hi[i] || lo != a->lo[i]) fail_msg("split of pattern %u, low part %zu", i, k);
            float joined = shore__join_f32(hi, lo);
            assert_memory_equal(&joined, &a->wide[i], sizeof joined);
        }
    }
}

static void split_rounds_to_nearest_with_ties_away(void **state) {
    for (uint32_t high = 0; high < 0x7F7F; high += 7)
        for (size_t k = 0; k < sizeof low_parts / sizeof low_parts[0]; k++) {
            uint16_t hi, lo;
            shore__split_f32(shore__bits_f32(high << 16 | low_parts[k]), &hi, &lo);
            assert_int_equal(hi, high + (low_parts[k] >= 0x8000));
        }
}

static void conversion_rounds_to_nearest_even(void **state) {
    struct arrays *a = *state;
    for (size_t k = 0; k < sizeof low_parts / sizeof low_parts[0]; k++) {
        for (uint32_t high = 0; high < ALL16; high++)
            a->wide[high] = shore__bits_f32(high << 16 | low_parts[k]);
        shore__bf16_from_f32(a->hi, a->wide, ALL16);
        for (uint32_t i = 0; i < ALL16; i++) {
            uint16_t expected = nearest_even(i << 16 | low_parts[k]);
            if (a->hi[i] != expected || shore__f32_to_bf16(a->wide[i]) != expected)
                fail_msg("0x%04x%04x became 0x%04x, not 0x%04x", i, low_parts[k], a->hi[i], expected);
        }
    }
}

static void widening_is_exact_and_comes_back(void **state) {
    struct arrays *a = *state;
    for (uint32_t i = 0; i < ALL16; i++)
        a->lo[i] = (uint16_t)i;
    shore__f32_from_bf16(a->wide, a->lo, ALL16);
    shore__bf16_from_f32(a->hi, a->wide, ALL16);
    for (uint32_t i = 0; i < ALL16; i++) {
        assert_int_equal(shore__f32_bits(a->wide[i]), i << 16);
        bool nan = (i & 0x7FFFu) > 0x7F80u;
        assert_int_equal(a->hi[i], nan ? i | 0x40u : i);
    }
}

/* The arrays have versions by processor with tails of their own. */
static void odd_sizes_and_alignments(void **state) {
    struct arrays *a = *state;
    for (size_t i = 0; i < 300; i++)
        a->wide[i] = shore__bits_f32((uint32_t)shore__random_u64(9, 9, i));
    for (size_t elems = 0; elems < 140; elems++)
        for (size_t offset = 0; offset < 3; offset++) {
            memset(a->hi, 0x5A, 1024);
            memset(a->lo, 0x5A, 1024);
            memset(a->back, 0x5A, 1024);
            shore__f32_split(a->hi + offset, a->lo + offset, a->wide + offset, elems);
            shore__f32_join(a->back + offset, a->hi + offset, a->lo + offset, elems);
            assert_memory_equal(a->back + offset, a->wide + offset, elems * sizeof(float));
            assert_int_equal(a->hi[offset + elems], 0x5A5A);
            assert_int_equal(a->lo[offset + elems], 0x5A5A);
            assert_int_equal(shore__f32_bits(a->back[offset + elems]), 0x5A5A5A5A);
            shore__bf16_from_f32(a->hi + offset, a->wide + offset, elems);
            for (size_t i = 0; i < elems; i++)
                assert_int_equal(a->hi[offset + i], shore__f32_to_bf16(a->wide[offset + i]));
            assert_int_equal(a->hi[offset + elems], 0x5A5A);
            shore__f32_from_bf16(a->back + offset, a->hi + offset, elems);
            for (size_t i = 0; i < elems; i++)
                assert_int_equal(shore__f32_bits(a->back[offset + i]), (uint32_t)a->hi[offset + i] << 16);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_then_join_is_identity_on_every_pattern),
        cmocka_unit_test(split_rounds_to_nearest_with_ties_away),
        cmocka_unit_test(conversion_rounds_to_nearest_even),
        cmocka_unit_test(widening_is_exact_and_comes_back),
        cmocka_unit_test(odd_sizes_and_alignments),
    };
    return cmocka_run_group_tests(tests, make, drop);
}
