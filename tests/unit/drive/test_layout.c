/* Layouts: where tensors lie, and how they are found by name. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "drive/layout.h"

static int find(const struct shore_layout *layout, const char *name, struct shore_tensor_view *out) {
    *out = (struct shore_tensor_view){.size = sizeof *out};
    return shore_layout_find(layout, name, out);
}

static void a_view_says_where_a_tensor_lies(void **state) {
    const struct shore_tensor_spec first[] = {{"a", 100, 0}, {"b", 70000, 1}, {"c", 200000, 0}};
    const struct shore_tensor_spec second[] = {{"d", 65536, 0}, {"e", 1, 0}};
    const struct shore_block_spec blocks[] = {{"first", first, 3}, {"second", second, 2}};
    struct shore_layout *layout;
    struct shore_tensor_view v;
    assert_int_equal(shore_layout_make(blocks, 2, &layout), 0);

    assert_int_equal(find(layout, "a", &v), 0);
    assert_int_equal(v.block, 0);
    assert_int_equal(v.tensor, 0);
    assert_int_equal(v.offset_elems, 0);
    assert_int_equal(v.elems, 100);
    assert_int_equal(v.segment, 0);
    assert_int_equal(v.segments, 1);

    assert_int_equal(find(layout, "b", &v), 0); /* 256 up to 70,256 */
    assert_int_equal(v.offset_elems, 256);
    assert_int_equal(v.segment, 0);
    assert_int_equal(v.segments, 2);
    assert_int_equal(v.view_elems, 256);

    assert_int_equal(find(layout, "c", &v), 0); /* 70,400 up to 270,400 */
    assert_int_equal(v.tensor, 2);
    assert_int_equal(v.offset_elems, 70400);
    assert_int_equal(v.segment, 1);
    assert_int_equal(v.segments, 4);
    assert_int_equal(v.view_elems, 70400 - 65536);

    assert_int_equal(find(layout, "d", &v), 0); /* a whole segment, and no more */
    assert_int_equal(v.block, 1);
    assert_int_equal(v.segments, 1);
    assert_int_equal(find(layout, "e", &v), 0);
    assert_int_equal(v.segment, 1);
    assert_int_equal(v.view_elems, 0);
    shore_layout_free(layout);
}

static void names_that_mean_no_tensor_are_errors(void **state) {
    const struct shore_tensor_spec tensors[] = {{"weight", 10, 0}, {"bias", 10, 0}, {NULL, 10, 0}},
                                   other = {"weight", 5, 0};
    const struct shore_block_spec blocks[] = {{"x", tensors, 3}, {"y", &other, 1}};
    struct shore_layout *layout, *copy;
    struct shore_tensor_view v;
    assert_int_equal(shore_layout_make(blocks, 2, &layout), 0);
    assert_int_equal(find(layout, "weight", &v), SHORE_EINPUT);
    assert_int_equal(find(layout, "Weight", &v), SHORE_EMISSING);
    assert_int_equal(find(layout, "x", &v), SHORE_EMISSING);
    assert_int_equal(find(layout, "", &v), 0);
    assert_int_equal(v.tensor, 2);
    v.size = 0;
    assert_int_equal(shore_layout_find(layout, "bias", &v), -EINVAL);
    assert_int_equal(shore__layout_copy(layout, &copy), 0);
    shore_layout_free(layout);
    assert_int_equal(find(copy, "bias", &v), 0);
    assert_int_equal(v.tensor, 1);
    shore_layout_free(copy);
}

static void each_of_many_is_found(void **state) {
    enum { BLOCKS = 40, TENSORS = 250 };
    static char names[BLOCKS][TENSORS][32];
    static struct shore_tensor_spec tensors[BLOCKS][TENSORS];
    struct shore_block_spec blocks[BLOCKS];
    struct shore_layout *layout;
    struct shore_tensor_view v;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (uint32_t t = 0; t < TENSORS; t++) {
            snprintf(names[b][t], sizeof names[b][t], "layers.%u.experts.%u.weight", b, t);
            tensors[b][t] = (struct shore_tensor_spec){names[b][t], 1 + b + t, 0};
        }
        blocks[b] = (struct shore_block_spec){"block", tensors[b], TENSORS};
    }
    assert_int_equal(shore_layout_make(blocks, BLOCKS, &layout), 0);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (uint32_t t = 0; t < TENSORS; t++) {
            assert_int_equal(find(layout, names[b][t], &v), 0);
            assert_int_equal(v.block, b);
            assert_int_equal(v.tensor, t);
            assert_int_equal(v.elems, 1 + b + t);
        }
    }
    shore_layout_free(layout);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_view_says_where_a_tensor_lies),
        cmocka_unit_test(names_that_mean_no_tensor_are_errors),
        cmocka_unit_test(each_of_many_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
