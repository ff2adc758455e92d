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

static void counted_where_the_row_says(void **state) {
    atomic_uint_fast64_t moved[SHORE__FUNCTIONS] = {
        [SHORE__SPILL] = 1, [SHORE__SCRATCH_PUT] = 20, [SHORE__SCRATCH_GET] = 300};
    struct shore_ledger ledger = {.drive_read_scratch = 4000};
    shore__calls_count(moved, &ledger);
    assert_int_equal(ledger.drive_write_spill, 1);
    assert_int_equal(ledger.drive_write_scratch, 20);
    assert_int_equal(ledger.drive_read_scratch, 4300);
    for (int i = 0; i < SHORE__FUNCTIONS; i++)
        assert_true(shore__function(i)->counter < sizeof ledger && shore__function(i)->name);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes), cmocka_unit_test(parts),
                                       cmocka_unit_test(what_is_not_of_the_drive),
                                       cmocka_unit_test(counted_where_the_row_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
