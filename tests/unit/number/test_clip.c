/* Clipping by the global norm: the order of adding does not show, the limit is PyTorch's, and nothing passes unseen. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "longshore/clip.h"
#include "seed.h"

enum { BLOCKS = 3, SEGMENTS = 9 };
static const uint32_t in_block[BLOCKS] = {4, 2, 3};

static uint64_t seed;
static struct shore_layout layout;
static struct shore_layout_block blocks[BLOCKS];
static float *gradient; /* SEGMENTS segments */
static double sums[SEGMENTS];

static int open_layout(void **state) {
    seed = test_seed();
    for (uint32_t b = 0; b < BLOCKS; b++)
        blocks[b].segments = in_block[b];
    layout = (struct shore_layout){.blocks = blocks, .nblocks = BLOCKS, .segments = SEGMENTS};
    gradient = malloc((size_t)SEGMENTS * SHORE_SEGMENT_ELEMS * sizeof *gradient);
    for (size_t i = 0; gradient && i < (size_t)SEGMENTS * SHORE_SEGMENT_ELEMS; i++)
        gradient[i] = shore__random_normal(seed, 0, i) * 1e-3f;
    return gradient ? 0 : -1;
}

static int close_layout(void **state) {
    free(gradient);
    return 0;
}

static uint32_t first_of(uint32_t block) {
    uint32_t first = 0;
    for (uint32_t b = 0; b < block; b++)
        first += in_block[b];
    return first;
}

static bool add(struct shore_clip *clip, uint32_t block, uint32_t segment, uint32_t count) {
    return shore_clip_add(clip, block, segment, count,
                          gradient + (size_t)(first_of(block) + segment) * SHORE_SEGMENT_ELEMS);
}

static struct shore_clipping in_order(double limit) {
    struct shore_clip clip;
    shore_clip_begin(&clip, &layout, limit, sums);
    for (uint32_t b = 0; b < BLOCKS; b++)
        add(&clip, b, 0, in_block[b]);
    return shore_clip_decide(&clip);
}

static void any_order_gives_the_same_bits(void **state) {
    struct shore_clipping want = in_order(0.5);
    for (uint64_t round = 1; round < 20; round++) {
        struct shore_clip clip;
        shore_clip_begin(&clip, &layout, 0.5, sums);
        for (uint64_t i = 0; i < SEGMENTS; i++) {
            uint32_t at = (uint32_t)shore__permute(seed, round, SEGMENTS, i), block = 0;
            while (at >= first_of(block) + in_block[block])
                block++;
            add(&clip, block, at - first_of(block), 1);
        }
        struct shore_clipping got = shore_clip_decide(&clip);
        assert_memory_equal(&got.norm, &want.norm, sizeof got.norm);
        assert_memory_equal(&got.coefficient, &want.coefficient, sizeof got.coefficient);
        assert_true(got.finite);
    }
}

static void the_coefficient_is_pytorchs(void **state) {
    double sum = 0;
    for (size_t i = 0; i < (size_t)SEGMENTS * SHORE_SEGMENT_ELEMS; i++)
        sum += (double)gradient[i] * gradient[i];
    double norm = sqrt(sum);
    struct shore_clipping c = in_order(norm / 3);
    assert_true(fabs(c.norm / norm - 1) < 1e-12);
    assert_true(c.coefficient == (float)(norm / 3) / ((float)c.norm + 1e-6f));
    assert_true(in_order(norm * 2).coefficient == 1);
    assert_true(in_order(0).coefficient == 1);
}

static void what_was_never_added_is_zero(void **state) {
    struct shore_clip clip;
    memset(sums, 0xFF, sizeof sums);
    shore_clip_begin(&clip, &layout, 1, sums);
    assert_true(shore_clip_decide(&clip).norm == 0);
    add(&clip, 1, 1, 1);
    double one = shore_clip_sum(gradient + (size_t)(first_of(1) + 1) * SHORE_SEGMENT_ELEMS);
    assert_true(shore_clip_decide(&clip).norm == sqrt(one));
}

static void the_running_sum_says_when_to_stop(void **state) {
    double norm = in_order(0).norm;
    struct shore_clip clip;
    shore_clip_begin(&clip, &layout, norm * 0.6, sums);
    bool below = true;
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t s = 0; s < in_block[b]; s++) {
            bool now = add(&clip, b, s, 1);
            assert_false(!below && now); /* never again */
            below = now;
        }
    assert_false(below);
    assert_true(shore_clip_decide(&clip).coefficient < 1);
}

static void what_is_not_finite_is_seen_at_once(void **state) {
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct shore_clip clip;
        float *at = gradient + (size_t)5 * SHORE_SEGMENT_ELEMS + SHORE_SEGMENT_ELEMS - 1, was = *at;
        shore_clip_begin(&clip, &layout, 0, sums);
        assert_true(add(&clip, 0, 0, 4));
        *at = bad[i];
        assert_false(add(&clip, 1, 0, 2));
        *at = was;
        assert_false(add(&clip, 2, 0, 3));
        assert_false(shore_clip_decide(&clip).finite);
    }
}

/* fp32 has no such norm, and what a coefficient of 0 leaves of gradients is no step. */
static void a_norm_beyond_fp32_is_not_finite(void **state) {
    struct shore_clip clip;
    const double huge[] = {1e80, 1e76}, limits[] = {1.0, 1e-10};
    for (int i = 0; i < 2; i++) {
        shore_clip_begin(&clip, &layout, limits[i], sums);
        sums[0] = huge[i];
        struct shore_clipping c = shore_clip_decide(&clip);
        assert_true(isfinite(c.norm) && !c.finite);
    }
    shore_clip_begin(&clip, &layout, 0, sums);
    sums[0] = huge[0];
    assert_true(shore_clip_decide(&clip).finite && shore_clip_decide(&clip).coefficient == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_norm_beyond_fp32_is_not_finite),  cmocka_unit_test(any_order_gives_the_same_bits),
        cmocka_unit_test(the_coefficient_is_pytorchs),       cmocka_unit_test(what_was_never_added_is_zero),
        cmocka_unit_test(the_running_sum_says_when_to_stop), cmocka_unit_test(what_is_not_finite_is_seen_at_once),
    };
    return cmocka_run_group_tests(tests, open_layout, close_layout);
}
