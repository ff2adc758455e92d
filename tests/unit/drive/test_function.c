/* What the rows of the table of functions say of a call: sizes, parts, what is refused, what is counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "drive/function.h"

enum { SEGMENT = SHORE_SEGMENT_ELEMS };

static void sizes(void **state) {
    struct shore_tensor_spec tensor = {"a", 2 * SEGMENT + 100, 0};
    struct shore_block_spec block = {"block", &tensor, 1};
    struct shore_layout *layout;
    assert_int_equal(shore_layout_make(&block, 1, &layout), 0);
    struct shore__call spill = {.function = SHORE__SPILL, .segment = 1, .count = 2, .form = SHORE_GRADIENT_BF16};
    assert_int_equal(shore__call_units(&spill), 2);
    assert_int_equal(shore__call_bytes(&spill), 2 * SEGMENT * 2);
    assert_int_equal(shore__call_crossing(&spill, layout), (SEGMENT + 100) * 2);
    spill.form = SHORE_GRADIENT_SPARSE; /* has no size */
    assert_int_equal(shore__call_unit_bytes(&spill), 0);
    struct shore__call get = {.function = SHORE__SCRATCH_GET, .start = 4096, .bytes = 8192};
    assert_int_equal(shore__call_units(&get), 8192);
    assert_int_equal(shore__call_bytes(&get), 8192);
    assert_int_equal(shore__call_crossing(&get, layout), 8192);
    shore_layout_free(layout);
}

static void parts(void **state) {
    static unsigned char buffer[4 * SEGMENT * 4];
    struct shore__call spill = {.function = SHORE__SPILL, .segment = 5, .count = 4, .in = buffer};
    struct shore__call part = shore__call_part(&spill, 1, 2);
    assert_int_equal(part.segment, 6);
    assert_int_equal(part.count, 2);
    assert_ptr_equal(part.in, buffer + (size_t)SEGMENT * 4);
    assert_null(part.out);
    struct shore__call get = {.function = SHORE__SCRATCH_GET, .start = 10, .bytes = 4, .out = buffer};
    part = shore__call_part(&get, 3, 1);
    assert_int_equal(part.start, 13);
    assert_int_equal(part.bytes, 1);
    assert_ptr_equal(part.out, buffer + 3);
}

static void what_is_not_of_the_drive(void **state) {
    struct shore__extent extent = {.block = 1, .first = 2, .count = 3};
    struct shore__volume_desc desc = {
        .extents = &extent, .nextents = 1, .segments = 3, .scratch_bytes = 8192, .spill = true};
    struct shore__call spill = {.function = SHORE__SPILL, .block = 1, .segment = 2, .count = 3};
    struct shore__call put = {.function = SHORE__SCRATCH_PUT, .start = 4096, .bytes = 4096}, bad = spill;
    assert_int_equal(shore__call_check(&spill, &desc), 0);
    assert_int_equal(shore__call_check(&put, &desc), 0);
    bad.segment = 1;
    assert_int_equal(shore__call_check(&bad, &desc), -EINVAL);
    bad = spill;
    bad.form = SHORE_GRADIENT_SPARSE;
    assert_int_equal(shore__call_check(&bad, &desc), -EINVAL);
    bad.form = 77;
    assert_int_equal(shore__call_check(&bad, &desc), -EINVAL);
    desc.spill = false;
    assert_int_equal(shore__call_check(&spill, &desc), -EINVAL);
    for (int i = 0; i < 3; i++) {
        static const uint64_t start[] = {8192, 4096, UINT64_MAX}, bytes[] = {1, 4097, 2};
        put.start = start[i];
        put.bytes = bytes[i];
        assert_int_equal(shore__call_check(&put, &desc), -EINVAL);
    }
    put = (struct shore__call){.function = SHORE__SCRATCH_PUT};
    assert_int_equal(shore__call_check(&put, &desc), -EINVAL);
}

/* A function that moves nothing that counts leaves the ledger as it is, its size too. */
static void only_what_has_a_counter_counts(void **state) {
    struct shore_ledger ledger = {.size = sizeof ledger};
    atomic_uint_fast64_t moved[SHORE__FUNCTIONS];
    uint64_t counted = 0;
    for (int i = 0; i < SHORE__FUNCTIONS; i++) {
        atomic_init(&moved[i], UINT64_C(1) << i);
        if (shore__function(i)->counter) counted += UINT64_C(1) << i;
    }
    shore__calls_count(moved, &ledger);
    assert_int_equal(ledger.size, sizeof ledger);
    assert_int_equal(ledger.drive_write_spill + ledger.drive_write_scratch + ledger.drive_read_scratch, counted);
    assert_true(counted && counted < (UINT64_C(1) << SHORE__FUNCTIONS) - 1);
}

static void over_keys(void **state) {
    struct shore__volume_desc desc = {0};
    struct shore__cache_key key = {1, 2, 3}, other = {1, 2, 4}, all = {1, SHORE__CACHE_ANY, SHORE__CACHE_ANY};
    struct shore__call get = {.function = SHORE__CACHE_GET, .key = key, .start = 4096, .bytes = 8192};
    struct shore__call open = {.function = SHORE__CACHE_OPEN, .start = 4096, .bytes = UINT64_C(1) << 40};
    assert_int_equal(shore__call_check(&get, &desc), 0);
    assert_int_equal(shore__call_bytes(&get), 8192);
    assert_int_equal(shore__call_part(&get, 4096, 4096).start, 8192);
    get.key = all;
    assert_int_equal(shore__call_check(&get, &desc), -EINVAL);
    assert_int_equal(shore__call_check(&open, &desc), 0);
    assert_int_equal(shore__call_bytes(&open), 0); /* nothing is moved */
    assert_int_equal(shore__call_part(&open, 0, 0).bytes, UINT64_C(1) << 40);
    static const uint64_t no_page[] = {0, 1, 2048, 4097, 12288, 2 << 20, UINT64_MAX};
    for (size_t i = 0; i < sizeof no_page / sizeof no_page[0]; i++) {
        open.start = no_page[i];
        assert_int_equal(shore__call_check(&open, &desc), -EINVAL);
    }
    assert_true(shore__cache_key_fits(&key, &key) && shore__cache_key_fits(&all, &other));
    assert_false(shore__cache_key_fits(&key, &other));
    assert_true(shore__cache_key_hash(&key) != shore__cache_key_hash(&other));
}

static void counted_where_the_row_says(void **state) {
    atomic_uint_fast64_t moved[SHORE__FUNCTIONS] = {
        [SHORE__SPILL] = 1, [SHORE__SCRATCH_PUT] = 20, [SHORE__SCRATCH_GET] = 300, [SHORE__CACHE_GET] = 50000};
    struct shore_ledger ledger = {.drive_read_scratch = 4000};
    shore__calls_count(moved, &ledger);
    assert_int_equal(ledger.drive_write_spill, 1);
    assert_int_equal(ledger.drive_write_scratch, 20);
    assert_int_equal(ledger.drive_read_scratch, 54300);
    for (int i = 0; i < SHORE__FUNCTIONS; i++)
        assert_true(shore__function(i)->counter < sizeof ledger && shore__function(i)->name);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes),
                                       cmocka_unit_test(parts),
                                       cmocka_unit_test(what_is_not_of_the_drive),
                                       cmocka_unit_test(only_what_has_a_counter_counts),
                                       cmocka_unit_test(over_keys),
                                       cmocka_unit_test(counted_where_the_row_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
