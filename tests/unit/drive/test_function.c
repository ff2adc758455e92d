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

static int made_up_run(struct shore__reach *reach, const struct shore__call *call, struct shore_diag *diag) {
    return 0;
}

static unsigned made_up_number;

static void sizes(void **state) {
    struct shore_tensor_spec tensor = {"a", 2 * SEGMENT + 100, 0};
    struct shore_block_spec block = {"block", &tensor, 1};
    struct shore_layout *layout;
    assert_int_equal(shore_layout_make(&block, 1, &layout), 0);
    struct shore__call spill = {.function = SHORE__SPILL, .segment = 1, .count = 2, .form = SHORE_GRADIENT_BF16};
    assert_int_equal(shore__call_units(&spill), 2);
    assert_int_equal(shore__call_in_bytes(&spill), 2 * SEGMENT * 2);
    assert_int_equal(shore__call_crossing(&spill, layout, shore__call_in_bytes(&spill)), (SEGMENT + 100) * 2);
    spill.form = SHORE_GRADIENT_SPARSE; /* has no size */
    assert_int_equal(shore__call_unit_bytes(&spill), 0);
    struct shore__call get = {.function = SHORE__SCRATCH_GET, .start = 4096, .bytes = 8192};
    assert_int_equal(shore__call_units(&get), 8192);
    assert_int_equal(shore__call_out_bytes(&get), 8192);
    assert_int_equal(shore__call_crossing(&get, layout, 8192), 8192);
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
    assert_int_equal(shore__call_check(&spill, &desc, NULL), 0);
    assert_int_equal(shore__call_check(&put, &desc, NULL), 0);
    bad.segment = 1;
    assert_int_equal(shore__call_check(&bad, &desc, NULL), -EINVAL);
    bad = spill;
    bad.form = SHORE_GRADIENT_SPARSE;
    assert_int_equal(shore__call_check(&bad, &desc, NULL), -EINVAL);
    bad.form = 77;
    assert_int_equal(shore__call_check(&bad, &desc, NULL), -EINVAL);
    desc.spill = false;
    assert_int_equal(shore__call_check(&spill, &desc, NULL), -EINVAL);
    for (int i = 0; i < 3; i++) {
        static const uint64_t start[] = {8192, 4096, UINT64_MAX}, bytes[] = {1, 4097, 2};
        put.start = start[i];
        put.bytes = bytes[i];
        assert_int_equal(shore__call_check(&put, &desc, NULL), -EINVAL);
    }
    put = (struct shore__call){.function = SHORE__SCRATCH_PUT};
    assert_int_equal(shore__call_check(&put, &desc, NULL), -EINVAL);
}

/* Of a range over scratch: it takes a byte for two, and gives four for one. */
static const struct shore__function made_up = {
    .name = "MADE_UP", .over = SHORE__OVER_SCRATCH, .cuttable = true, .repeats = true, .run = made_up_run};

static void parts_of_what_goes_both_ways(void **state) {
    static unsigned char in[4096], out[4 * 8192];
    struct shore__call call = {.function = made_up_number,
                               .start = 100,
                               .bytes = 8192,
                               .in = in,
                               .in_bytes = 4096,
                               .out = out,
                               .out_bytes = sizeof out};
    uint64_t takes = 0, gives = 0;
    for (uint64_t at = 0, units; at < 8192; at += units) {
        units = at + 3001 < 8192 ? 3001 : 8192 - at;
        struct shore__call part = shore__call_part(&call, at, units);
        assert_int_equal(part.start, 100 + at);
        assert_int_equal(part.bytes, units);
        assert_ptr_equal(part.in, in + takes);
        assert_ptr_equal(part.out, out + gives);
        takes += part.in_bytes;
        gives += part.out_bytes;
    }
    assert_int_equal(takes, 4096);
    assert_int_equal(gives, sizeof out);
    assert_int_equal(shore__call_in_bytes(&call), 4096);
    assert_int_equal(shore__call_crossing(&call, NULL, shore__call_out_bytes(&call)), sizeof out);
}

static void rows(void **state) {
    unsigned seen = 0;
    for (unsigned i = 0; i < SHORE__FUNCTIONS_ADDED + 100; i++) {
        const struct shore__function *f = shore__function(i);
        if (!f) continue;
        seen++;
        assert_true(f->name && (f->repeats || f->of_attempt));
        assert_true(f->link_in < SHORE__COUNTERS && f->link_out < SHORE__COUNTERS);
        assert_true(f->reads < SHORE__COUNTERS && f->writes < SHORE__COUNTERS);
        if (!f->run) assert_true(!f->link_in != !f->link_out && !f->reads != !f->writes);
    }
    assert_true(seen >= 4);
    assert_null(shore__function(SHORE__SCRATCH_GET + 1)); /* the numbers of caches */
    assert_null(shore__function(7));
    assert_null(shore__function(made_up_number + 1));
    assert_null(shore__function(UINT32_MAX));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes), cmocka_unit_test(parts),
                                       cmocka_unit_test(what_is_not_of_the_drive),
                                       cmocka_unit_test(parts_of_what_goes_both_ways), cmocka_unit_test(rows)};
    made_up_number = shore__function_add(&made_up);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
