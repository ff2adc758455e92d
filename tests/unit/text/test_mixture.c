/* Data mixed by weight: how many sequences of each part come, in which order, and that each is read around by itself.
 */
#include "seed.h"
#include "text/dataset.h"
#include "unit/text/scratch.h"

/* Three files of a, b and c, of these lengths. */
static struct shore__dataset *build(const size_t lengths[3], uint64_t ends[3]) {
    struct shore__tokenizer *t;
    struct shore__dataset *d;
    struct shore_diag diag;
    static const char *const files[] = {"a.txt", "b.txt", "c.txt"};
    const char *names[3];
    char text[1000];
    for (int i = 0; i < 3; i++) {
        assert_true(lengths[i] <= sizeof text);
        memset(text, 'a' + i, lengths[i]);
        names[i] = put_file(files[i], text, lengths[i]);
    }
    const struct shore__reading how = {.ends = ends};
    assert_int_equal(shore__tokenizer_bytes(&t), 0);
    if (shore__dataset_build(names, 3, &how, t, 257, in_directory("tokens"), NULL, &diag)) fail_msg("%s", diag.text);
    shore__tokenizer_close(t);
    assert_int_equal(shore__dataset_open(in_directory("tokens"), 0, 0, &d, &diag), 0);
    return d;
}

static void sequences_come_by_weight(void **state) {
    enum { T = 10 };
    const size_t lengths[3] = {1000, 45, 7};
    const uint32_t shares[3] = {700, 297, 3};
    uint64_t ends[3], seed = test_seed();
    struct shore_diag diag;
    struct shore__dataset *d = build(lengths, ends);
    assert_int_equal(ends[0], 1000);
    assert_int_equal(ends[1], 1045);
    assert_int_equal(ends[2], 1052);
    assert_int_equal(shore__dataset_mix(d, ends, shares, 3, &diag), 0);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        uint64_t seen[3] = {0}, sums[2] = {0};
        for (uint64_t i = 0; i < 2 * SHORE__MIX_SHARES; i++) {
            uint64_t at = shore__dataset_position(d, i, T, shuffle, seed);
            int32_t ids[T], targets[T];
            assert_int_equal(shore__dataset_read(d, at, T, ids, &diag), 0);
            assert_int_equal(shore__dataset_targets(d, at, T, targets, &diag), 0);
            for (int k = 0; k < T; k++) /* around in its part */
                assert_true(ids[k] == ids[0] && targets[k] == ids[0]);
            int part = ids[0] - 'a';
            uint64_t first = part ? ends[part - 1] : 0;
            if (!shuffle) assert_int_equal(at, first + seen[part] * T % lengths[part]);
            if (part == 0) sums[seen[0] / 700] += at;
            seen[part]++;
            assert_int_equal(at, shore__dataset_position(d, i, T, shuffle, seed));
        }
        for (int p = 0; p < 3; p++)
            assert_int_equal(seen[p], 2 * shares[p]);
        assert_int_equal(sums[0], sums[1]); /* seven epochs each */
    }
    shore__dataset_close(d);
}

static void parts_that_do_not_fit_are_refused(void **state) {
    const size_t lengths[3] = {20, 30, 40};
    const uint32_t shares[3] = {500, 400, 100};
    uint64_t ends[3], beyond[3] = {20, 50, 91}, empty[3] = {20, 20, 90};
    struct shore_diag diag;
    struct shore__dataset *d = build(lengths, ends);
    assert_int_equal(shore__dataset_mix(d, beyond, shares, 3, &diag), SHORE_EMISMATCH);
    shore__dataset_close(d);
    assert_int_equal(shore__dataset_open(in_directory("tokens"), 0, 0, &d, &diag), 0);
    assert_int_equal(shore__dataset_mix(d, empty, shares, 3, &diag), SHORE_EMISMATCH);
    shore__dataset_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_come_by_weight),
        cmocka_unit_test(parts_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
