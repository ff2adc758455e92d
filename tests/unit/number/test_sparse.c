/* Codes of sparse gradients: what is written is read, in tiles of any size; what is damaged is refused. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "longshore/error.h"
#include "number/bf16.h"
#include "number/sparse.h"

enum { ALL = SHORE__SPARSE_SEGMENT };

static uint16_t list[ALL];
static uint32_t bits[ALL];
static unsigned char code[8 + 8192 + 4 * ALL + 64];
static float expected[ALL], got[ALL];

/* Each element with probability share / 2^16. */
static uint32_t make(uint64_t stream, uint32_t share) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < ALL; i++) {
        if ((shore__random_u64(1, stream, i) & 0xFFFF) >= share) continue;
        list[n] = (uint16_t)i;
        bits[n++] = (uint32_t)shore__random_u64(2, stream, i);
    }
    return n;
}

static void read_in_tiles(struct shore__sparse_reader r, uint32_t tile) {
    memset(got, 0, sizeof got);
    for (uint32_t at = 0; at < ALL; at += tile) {
        uint32_t end = at + tile < ALL ? at + tile : ALL;
        shore__sparse_scatter(&r, at, end, got + at);
    }
    assert_int_equal(r.left, 0);
    assert_memory_equal(got, expected, sizeof got);
}

static size_t round_trip(enum shore_sparse_values values, uint32_t n) {
    struct shore__sparse_reader r;
    memset(code, 0xA5, sizeof code);
    size_t bytes = shore__sparse_encode(values, list, bits, n, code);
    assert_int_equal(bytes, shore__sparse_bytes(values, list, n));
    assert_true(bytes <= shore_sparse_bound(values, n, 1));
    assert_int_equal(code[bytes], 0xA5);
    assert_int_equal(shore__sparse_open(code, bytes, &r), 0);
    memset(expected, 0, sizeof expected);
    for (uint32_t i = 0; i < n; i++)
        expected[list[i]] = shore__bits_f32(shore__sparse_value(values, bits[i]));
    static const uint32_t tiles[] = {ALL, 1024, 256, 1000, 7};
    for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; i++)
        read_in_tiles(r, tiles[i]);
    return bytes;
}

static void what_is_written_is_read(void **state) {
    static const uint32_t shares[] = {0, 1, 30, 200, 655, 3000, 6554, 8192, 20000, 65535, 65536};
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        round_trip(SHORE_SPARSE_BF16, make(i, shares[i]));
        round_trip(SHORE_SPARSE_FP32, make(i, shares[i]));
    }
}

static void the_ends_and_long_gaps(void **state) {
    static const uint16_t at[] = {0, 255, 256, 511, 512, 767, 1023, 1024, 1279, 40000, 65535};
    for (size_t n = 0; n <= sizeof at / sizeof at[0]; n++)
        for (int form = 0; form < 2; form++) {
            memcpy(list, at, sizeof at);
            make(3, 0);
            uint32_t count = (uint32_t)n;
            for (uint32_t i = 0; i < count; i++)
                bits[i] = 0x3F800000u + i;
            round_trip(form ? SHORE_SPARSE_FP32 : SHORE_SPARSE_BF16, count);
        }
    /* enough entries for gaps, with some of every length around 255 in between */
    uint32_t position = 0, n = 0;
    for (uint32_t i = 0; position < ALL; i++) {
        list[n] = (uint16_t)position;
        bits[n++] = i;
        position += i % 3 ? 1 : 250 + i % 11;
    }
    size_t bytes = round_trip(SHORE_SPARSE_BF16, n);
    assert_int_equal(code[0] & 15, SHORE__SPARSE_GAPS);
    assert_true(bytes < 4u * n);
}

static void one_percent_takes_three_bytes_an_entry(void **state) {
    uint32_t n = make(9, 655);
    size_t bytes = round_trip(SHORE_SPARSE_BF16, n);
    assert_true(bytes <= 3.15 * n);
}

static void sizes_and_forms_are_checked(void **state) {
    struct shore__sparse_reader r;
    for (uint32_t share = 30; share <= 30000; share *= 10) {
        size_t bytes = shore__sparse_encode(SHORE_SPARSE_BF16, list, bits, make(11, share), code);
        assert_int_equal(shore__sparse_open(code, bytes, &r), 0);
        for (size_t cut = 0; cut < 40 && cut < bytes; cut++)
            assert_int_equal(shore__sparse_open(code, cut, &r), SHORE_ECORRUPT);
        assert_int_equal(shore__sparse_open(code, bytes - 1, &r), SHORE_ECORRUPT);
        assert_int_equal(shore__sparse_open(code, bytes + 1, &r), SHORE_ECORRUPT);
        for (size_t i = 0; i < 8; i++) {
            code[i] ^= 0x40;
            assert_int_equal(shore__sparse_open(code, bytes, &r), SHORE_ECORRUPT);
            code[i] ^= 0x40;
        }
    }
}

static void indices_are_checked(void **state) {
    struct shore__sparse_reader r;
    /* words: out of order, twice the same */
    static const unsigned char words[] = {SHORE__SPARSE_WORDS, 0, 4, 0, 2, 0, 0, 0, 9, 0, 8, 0, 1, 1, 1, 1};
    static const unsigned char twice[] = {SHORE__SPARSE_WORDS, 0, 4, 0, 2, 0, 0, 0, 9, 0, 9, 0, 1, 1, 1, 1};
    /* gaps: fewer than count, and "go on" at the end */
    static const unsigned char few[] = {SHORE__SPARSE_GAPS, 0, 1, 0, 2, 0, 0, 0, 9, 1, 1, 1, 1};
    static const unsigned char open[] = {SHORE__SPARSE_GAPS, 0, 2, 0, 1, 0, 0, 0, 9, 255, 1, 1};
    assert_int_equal(shore__sparse_open(words, sizeof words, &r), SHORE_ECORRUPT);
    assert_int_equal(shore__sparse_open(twice, sizeof twice, &r), SHORE_ECORRUPT);
    assert_int_equal(shore__sparse_open(few, sizeof few, &r), SHORE_ECORRUPT);
    assert_int_equal(shore__sparse_open(open, sizeof open, &r), SHORE_ECORRUPT);
    /* gaps that leave the segment by one */
    memset(code, 255, 8 + 258);
    memcpy(code, (unsigned char[]){SHORE__SPARSE_GAPS, 0, 2, 1, 1, 0, 0, 0}, 8);
    code[8 + 257] = 1; /* 257 * 255 = 65,535 passed over, then one more */
    assert_int_equal(shore__sparse_open(code, 8 + 258 + 2, &r), SHORE_ECORRUPT);
    code[8 + 257] = 0;
    assert_int_equal(shore__sparse_open(code, 8 + 258 + 2, &r), 0);
    /* a bitmap with one bit more than count */
    size_t bytes = shore__sparse_encode(SHORE_SPARSE_BF16, list, bits, make(12, 30000), code);
    for (size_t i = 8; i < 8 + 8192; i++)
        if (code[i] != 255) {
            code[i] = (unsigned char)(code[i] | (code[i] + 1));
            break;
        }
    assert_int_equal(shore__sparse_open(code, bytes, &r), SHORE_ECORRUPT);
}

static void the_bound_holds_however_entries_are_spread(void **state) {
    /* the worst of gaps: as few entries as gaps still beat words, far apart */
    for (uint32_t every = 1; every < 300; every += every < 16 ? 1 : 13) {
        uint32_t n = 0;
        for (uint32_t i = every - 1; i < ALL; i += every, n++) {
            list[n] = (uint16_t)i;
            bits[n] = i;
        }
        assert_true(shore__sparse_bytes(SHORE_SPARSE_FP32, list, n) <= shore_sparse_bound(SHORE_SPARSE_FP32, n, 1));
        uint64_t two = 2 * (uint64_t)shore__sparse_bytes(SHORE_SPARSE_FP32, list, n);
        assert_true(two <= shore_sparse_bound(SHORE_SPARSE_FP32, 2 * (uint64_t)n, 2));
    }
    /* all in one segment of many */
    uint32_t n = make(13, 4000);
    assert_true(shore__sparse_bytes(SHORE_SPARSE_BF16, list, n) + 99 * 8 <=
                shore_sparse_bound(SHORE_SPARSE_BF16, n, 100));
}

/* ---- runs of segments, as other programs encode them ---- */

enum { RUN = 3, RUN_ELEMS = RUN * SHORE__SPARSE_SEGMENT };

static float run_dense[RUN_ELEMS], run_got[RUN_ELEMS], run_values[RUN_ELEMS];
static uint64_t run_index[RUN_ELEMS];
static unsigned char run_codes[RUN * (8 + 8192) + 4 * RUN_ELEMS];

/* The middle segment has nothing, the last one almost everything. */
static uint64_t make_run(enum shore_sparse_values values) {
    uint64_t n = 0;
    memset(run_dense, 0, sizeof run_dense);
    for (uint64_t i = 0; i < RUN_ELEMS; i++) {
        double share = i < ALL ? 0.01 : i < 2 * ALL ? 0 : 0.9;
        if (shore__random_unit(3, 0, i) >= share) continue;
        run_index[n] = i;
        run_values[n] = shore__random_normal(4, 0, i);
        run_dense[i] =
            values == SHORE_SPARSE_FP32 ? run_values[n] : shore__bf16_to_f32(shore__f32_to_bf16(run_values[n]));
        n++;
    }
    return n;
}

static void runs_are_decoded_as_they_were_encoded(void **state) {
    for (int form = 0; form < 2; form++) {
        enum shore_sparse_values values = (enum shore_sparse_values)form;
        uint64_t n = make_run(values), bytes = 0, needed;
        uint32_t offsets[RUN + 1];
        assert_int_equal(shore_sparse_encode(values, RUN, run_index, run_values, n, NULL, &bytes, offsets), -ENOSPC);
        needed = bytes;
        assert_true(needed <= shore_sparse_bound(values, n, RUN) && needed <= sizeof run_codes);
        memset(run_codes, 0xA5, sizeof run_codes);
        bytes = needed - 1;
        assert_int_equal(shore_sparse_encode(values, RUN, run_index, run_values, n, run_codes, &bytes, offsets),
                         -ENOSPC);
        assert_int_equal(run_codes[needed - 1], 0xA5);
        assert_int_equal(shore_sparse_encode(values, RUN, run_index, run_values, n, run_codes, &bytes, offsets), 0);
        assert_int_equal(bytes, needed);
        assert_int_equal(offsets[0], 0);
        assert_int_equal(offsets[2] - offsets[1], SHORE__SPARSE_HEADER_BYTES);
        assert_int_equal(offsets[RUN], needed);
        assert_int_equal(shore_sparse_decode(run_codes, offsets, RUN, run_got), 0);
        assert_memory_equal(run_got, run_dense, sizeof run_got);
        offsets[1] -= 1;
        assert_int_equal(shore_sparse_decode(run_codes, offsets, RUN, run_got), SHORE_ECORRUPT);
        offsets[1] = offsets[RUN] + 1;
        assert_int_equal(shore_sparse_decode(run_codes, offsets, RUN, run_got), SHORE_ECORRUPT);
    }
}

static void entries_out_of_order_are_refused(void **state) {
    const float value[] = {1, 2};
    const uint64_t same[] = {5, 5}, back[] = {6, 5}, far[] = {5, RUN_ELEMS};
    const uint64_t *const wrong[] = {same, back, far};
    uint32_t offsets[RUN + 1];
    for (int i = 0; i < 3; i++) {
        uint64_t bytes = sizeof run_codes;
        assert_int_equal(shore_sparse_encode(SHORE_SPARSE_FP32, RUN, wrong[i], value, 2, run_codes, &bytes, offsets),
                         -EINVAL);
    }
}

/* Nothing that stays is smaller than what goes. */
static void the_largest_are_encoded(void **state) {
    static const uint64_t ks[] = {0, 1, 7, 300, RUN_ELEMS + 5};
    uint64_t entries = make_run(SHORE_SPARSE_FP32);
    for (size_t c = 0; c < sizeof ks / sizeof ks[0]; c++) {
        uint32_t offsets[RUN + 1];
        uint64_t bytes = sizeof run_codes, kept = 0;
        float least = INFINITY, most = 0;
        assert_int_equal(
            shore_sparse_encode_largest(SHORE_SPARSE_FP32, RUN, run_dense, ks[c], run_codes, &bytes, offsets), 0);
        assert_int_equal(shore_sparse_decode(run_codes, offsets, RUN, run_got), 0);
        for (uint64_t i = 0; i < RUN_ELEMS; i++) {
            if (run_got[i] != 0) assert_true(run_got[i] == run_dense[i]);
            kept += run_got[i] != 0;
            if (run_got[i] != 0)
                least = fminf(least, fabsf(run_got[i]));
            else
                most = fmaxf(most, fabsf(run_dense[i]));
        }
        assert_int_equal(kept, ks[c] < entries ? ks[c] : entries);
        assert_true(least >= most);
    }
}

/* Encodes in memory of the size that one thread needs, whatever the number of threads. */
static int feedback(enum shore_sparse_values values, const float *sums, uint64_t k, uint64_t *bytes, uint32_t *offsets,
                    uint16_t *residual, double *energy, double *energy_sent) {
    const struct shore_layout_tensor tensor = {.elems = RUN_ELEMS};
    const struct shore_layout_block block = {
        .tensors = (struct shore_layout_tensor *)(uintptr_t)&tensor, .ntensors = 1, .segments = RUN};
    struct shore_sparse_size size;
    assert_int_equal(shore_sparse_size_of(values, (double)k / RUN_ELEMS, &block, 1, &size, NULL), 0);
    assert_in_range(size.count, k, k + 1);
    assert_int_equal(size.code_bytes, shore_sparse_bound(values, size.count, RUN));
    void *work = aligned_alloc(64, size.work_bytes);
    uint64_t room = *bytes;
    assert_int_equal(shore_sparse_encode_feedback(values, RUN, sums, k, run_codes, &room, offsets, residual, work,
                                                  size.work_bytes / 2, energy, energy_sent),
                     -EINVAL);
    int rc = shore_sparse_encode_feedback(values, RUN, sums, k, run_codes, bytes, offsets, residual, work,
                                          size.work_bytes, energy, energy_sent);
    free(work);
    return rc;
}

/* Two items, of which one reaches over the end of a segment and one is bf16; between and behind them nothing is
 * covered. */
static void what_is_left_out_waits_in_the_residual(void **state) {
    static uint16_t residual[RUN_ELEMS], before[RUN_ELEMS], half[3000];
    static float sums[RUN_ELEMS];
    enum { FIRST = 256, LONG = ALL + 1000, SECOND = 2 * ALL + 512, K = 700 };
    const struct shore_gather items[] = {{run_dense, FIRST, LONG, SHORE_DTYPE_FP32},
                                         {half, SECOND, sizeof half / sizeof *half, SHORE_DTYPE_BF16}};
    make_run(SHORE_SPARSE_FP32);
    for (size_t i = 0; i < sizeof half / sizeof *half; i++)
        half[i] = shore__f32_to_bf16(shore__random_normal(5, 0, i));
    for (size_t i = 0; i < RUN_ELEMS; i++)
        before[i] = residual[i] = shore__f32_to_bf16(shore__random_normal(6, 0, i));
    shore_sparse_add_residual(RUN, items, 2, sums, residual);
    for (uint64_t i = 0; i < RUN_ELEMS; i++) {
        bool one = i >= FIRST && i < FIRST + LONG, other = i >= SECOND && i < SECOND + sizeof half / sizeof *half;
        float gradient = one ? run_dense[i - FIRST] : other ? shore__bf16_to_f32(half[i - SECOND]) : 0;
        float sum = one || other ? gradient + shore__bf16_to_f32(before[i]) : 0;
        assert_true(sums[i] == sum);
        assert_int_equal(residual[i], one || other ? shore__f32_to_bf16(sum) : before[i]);
    }
    for (int form = 0; form < 2; form++) {
        enum shore_sparse_values values = (enum shore_sparse_values)form;
        static uint16_t left[RUN_ELEMS];
        static unsigned char largest[sizeof run_codes];
        uint32_t offsets[RUN + 1], same[RUN + 1];
        uint64_t bytes = 9, needed;
        double energy[RUN], energy_sent[RUN], all = 0, of_sent = 0;
        memcpy(left, residual, sizeof left);
        assert_int_equal(feedback(values, sums, K, &bytes, offsets, left, NULL, NULL), -ENOSPC);
        assert_memory_equal(left, residual, sizeof left);
        needed = bytes;
        assert_int_equal(feedback(values, sums, K, &bytes, offsets, left, energy, energy_sent), 0);
        assert_int_equal(bytes, needed);
        assert_int_equal(shore_sparse_encode_largest(values, RUN, sums, K, largest, &bytes, same), 0);
        assert_memory_equal(same, offsets, sizeof same);
        assert_memory_equal(largest, run_codes, bytes);
        assert_int_equal(shore_sparse_decode(run_codes, offsets, RUN, run_got), 0);
        uint64_t sent = 0;
        for (uint64_t i = 0; i < RUN_ELEMS; i++) {
            sent += run_got[i] != 0;
            all += (double)sums[i] * sums[i];
            of_sent += run_got[i] != 0 ? (double)sums[i] * sums[i] : 0;
            assert_int_equal(left[i], run_got[i] != 0 ? shore__f32_to_bf16(sums[i] - run_got[i]) : residual[i]);
        }
        assert_int_equal(sent, K);
        for (uint32_t s = 0; s < RUN; s++) {
            all -= energy[s];
            of_sent -= energy_sent[s];
        }
        assert_true(fabs(all) < 1e-6 && fabs(of_sent) < 1e-6);
    }
}

static void shares_are_read_and_counted(void **state) {
    double share;
    (void)state;
    assert_int_equal(shore_sparse_share("top1%", &share), 0);
    assert_true(share == 0.01);
    assert_int_equal(shore_sparse_count(share, 100), 1);
    assert_int_equal(shore_sparse_count(share, 101), 2);
    assert_int_equal(shore_sparse_count(share, 1), 1);
    assert_int_equal(shore_sparse_count(0.07, 100), 7);
    assert_int_equal(shore_sparse_count(0.29, 100), 29);
    assert_int_equal(shore_sparse_count(1, 12345), 12345);
    assert_int_equal(shore_sparse_count(0.5, UINT64_C(1) << 40), UINT64_C(1) << 39);
    assert_int_equal(shore_sparse_share("0.25", &share), 0);
    assert_int_equal(shore_sparse_count(share, 10), 3);
    assert_int_equal(shore_sparse_share("none", &share), 0);
    assert_true(share == 0);
    assert_int_equal(shore_sparse_count(share, 100), 0);
    const char *wrong[] = {"", "top", "top0.5", "0", "-1", "101%", "1.5", "inf", "nan", "0x1p-3", "1%%", " 1%", "one"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(shore_sparse_share(wrong[i], &share), -EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_read_and_counted),
        cmocka_unit_test(runs_are_decoded_as_they_were_encoded),
        cmocka_unit_test(entries_out_of_order_are_refused),
        cmocka_unit_test(the_largest_are_encoded),
        cmocka_unit_test(what_is_left_out_waits_in_the_residual),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(the_ends_and_long_gaps),
        cmocka_unit_test(one_percent_takes_three_bytes_an_entry),
        cmocka_unit_test(sizes_and_forms_are_checked),
        cmocka_unit_test(indices_are_checked),
        cmocka_unit_test(the_bound_holds_however_entries_are_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
