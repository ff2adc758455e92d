/* Top-k against a sort, in every version and by both ways: ties, zeros, padding, NaN, infinity, denormals. */
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "number/bf16.h"
#include "number/topk.h"

enum { SEGMENTS = 5, ELEMS = SEGMENTS * SHORE__TOPK_SEGMENT };

static float *x;

struct entry {
    uint32_t magnitude, index;
};

/* Larger magnitude first, then lower index. */
static int by_rank(const void *a, const void *b) {
    const struct entry *p = a, *q = b;
    if (p->magnitude != q->magnitude) return p->magnitude > q->magnitude ? -1 : 1;
    return p->index < q->index ? -1 : p->index > q->index;
}

/* taken[i]: element i is one of the k. */
static uint64_t by_definition(uint32_t segments, uint64_t k, unsigned char *taken) {
    size_t n = (size_t)segments * SHORE__TOPK_SEGMENT;
    struct entry *e = malloc(n * sizeof *e);
    assert_non_null(e);
    for (size_t i = 0; i < n; i++)
        e[i] = (struct entry){shore__f32_bits(x[i]) & SHORE__TOPK_MAGNITUDE, (uint32_t)i};
    qsort(e, n, sizeof *e, by_rank);
    memset(taken, 0, n);
    uint64_t count = 0;
    for (size_t i = 0; i < n && count < k && e[i].magnitude; i++, count++)
        taken[e[i].index] = 1;
    free(e);
    return count;
}

static void check_way(uint32_t segments, uint64_t k, int threads, bool exact_only, const unsigned char *taken,
                      uint64_t count) {
    size_t bytes = shore__topk_bytes(k, segments, threads);
    unsigned char *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    struct shore__topk t;
    assert_non_null(memory);
    memset(memory, 0xA5, bytes + 64);
    shore__topk_lay_out(&t, memory, k, segments, threads);
    t.exact_only = exact_only;
    uint64_t got = shore__topk_select(&t, x, segments, k), seen = 0;
    assert_int_equal(got, count);
    for (uint32_t s = 0; s < segments; s++) {
        const float *from = x + (size_t)s * SHORE__TOPK_SEGMENT;
        for (uint32_t i = 0; i < t.list[s].count; i++, seen++) {
            uint32_t at = t.list[s].index[i];
            if (i) assert_true(at > t.list[s].index[i - 1]);
            assert_true(taken[(size_t)s * SHORE__TOPK_SEGMENT + at]);
            assert_int_equal(t.list[s].bits[i], shore__f32_bits(from[at]));
        }
    }
    assert_int_equal(seen, count);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(memory[bytes + i], 0xA5);
    free(memory);
}

static void check(uint32_t segments, uint64_t k) {
    static unsigned char taken[ELEMS];
    uint64_t count = by_definition(segments, k, taken);
    int most =
        omp_get_max_threads() == 1 ? 1 : 7; /* one where OpenMP is told so: the thread sanitizer does not know it */
    for (int threads = 1; threads <= most; threads += 3)
        for (int exact = 0; exact < 2; exact++)
            check_way(segments, k, threads, exact, taken, count);
}

static void check_some(void) {
    check(SEGMENTS, 1);
    check(SEGMENTS, ELEMS / 100 + 1);
    check(1, 656);
    check(2, SHORE__TOPK_SEGMENT / 3);
    check(SEGMENTS, ELEMS - 3);
    check(SEGMENTS, ELEMS);
}

static void normal_values(void **state) {
    for (size_t i = 0; i < ELEMS; i++)
        x[i] = shore__random_normal(1, 0, i);
    check_some();
}

static void equal_values_by_index(void **state) {
    for (size_t i = 0; i < ELEMS; i++)
        x[i] = i % 2 ? 0.5f : -0.5f;
    check_some();
    for (size_t i = 0; i < ELEMS; i++)
        x[i] = (float)(shore__random_u64(2, 0, i) >> 62); /* 0, 1, 2, 3 */
    check_some();
}

static void zeros_are_not_selected(void **state) {
    for (size_t i = 0; i < ELEMS; i++)
        x[i] = i % 2 ? 0.0f : -0.0f;
    check_some();
    x[70000] = -1e-45f;
    x[ELEMS - 1] = 3.0f;
    check_some();
    x[5] = 1e-44f;
    check(SEGMENTS, 4);
}

static void large_ones_in_one_place(void **state) {
    for (size_t i = 0; i < ELEMS; i++)
        x[i] = shore__random_normal(3, 0, i) * (i / 1000 == 77 ? 100.0f : 1e-6f);
    check_some();
    for (size_t i = 0; i < ELEMS; i++)
        x[i] = i / 2000 == 33 ? shore__random_normal(4, 0, i) : 0.0f;
    check_some();
}

static void any_bits(void **state) {
    for (size_t i = 0; i < ELEMS; i++)
        x[i] = shore__bits_f32((uint32_t)shore__random_u64(5, 0, i));
    check_some();
    for (size_t i = 0; i < ELEMS; i++)
        x[i] = shore__bits_f32((uint32_t)shore__random_u64(5, 1, i) & 0x807FFFFFu); /* denormals */
    check_some();
    x[3] = NAN;
    x[100000] = -INFINITY;
    check(SEGMENTS, 1);
    check(SEGMENTS, 2);
}

static void neighbours_in_one_bin(void **state) {
    for (size_t i = 0; i < ELEMS; i++)
        x[i] = shore__bits_f32(0x3F800000u | (uint32_t)(shore__random_u64(6, 0, i) & 0xFFFF));
    check_some();
}

static void versions_collect_the_same(void **state) {
    static uint16_t index[2][ELEMS];
    static uint32_t bits[2][ELEMS];
    static const uint32_t least[] = {0,           1,           0x00800000u, 0x3F800000u,
                                     0x3FC00000u, 0x40400000u, 0x7F800000u, 0x7FFFFFFFu};
    for (size_t i = 0; i < ELEMS; i++)
        x[i] = i % 3 ? shore__random_normal(8, 0, i) : shore__bits_f32((uint32_t)shore__random_u64(8, 1, i));
    const struct shore__topk_version *versions = shore__topk_versions();
    assert_string_equal(versions[0].name, "scalar");
    for (const struct shore__topk_version *v = versions; v->name; v++) {
        for (size_t l = 0; v->usable() && l < sizeof least / sizeof least[0]; l++)
            for (size_t elems = 0; elems <= SHORE__TOPK_SEGMENT; elems = elems ? elems * 4 : 16)
                for (size_t room = 0; room < 2; room++) {
                    size_t capacity = room ? SHORE__TOPK_SEGMENT : elems / 4;
                    size_t n = versions[0].collect(x + 1, elems, least[l], index[0], bits[0], capacity);
                    assert_int_equal(v->collect(x + 1, elems, least[l], index[1], bits[1], capacity), n);
                    if (n == SHORE__TOPK_FULL) continue;
                    assert_true(n <= capacity);
                    assert_memory_equal(index[0], index[1], n * sizeof index[0][0]);
                    assert_memory_equal(bits[0], bits[1], n * sizeof bits[0][0]);
                }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normal_values),
        cmocka_unit_test(equal_values_by_index),
        cmocka_unit_test(zeros_are_not_selected),
        cmocka_unit_test(large_ones_in_one_place),
        cmocka_unit_test(any_bits),
        cmocka_unit_test(neighbours_in_one_bin),
        cmocka_unit_test(versions_collect_the_same),
    };
    x = malloc((ELEMS + 16) * sizeof *x);
    if (!x) return 1;
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    free(x);
    return failures;
}
