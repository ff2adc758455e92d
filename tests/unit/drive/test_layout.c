/* Layouts: where tensors lie, and what no layout is made of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "drive/layout.h"

static void tensors_lie_at_multiples_of_256(void **state) {
    const struct shore_tensor_spec first[] = {{"a", 100, 0}, {"b", 70000, 1}, {"c", 200000, 0}};
    const struct shore_tensor_spec second[] = {{"d", 65536, 0}, {NULL, 1, 0}};
    const struct shore_block_spec blocks[] = {{"first", first, 3}, {"second", second, 2}};
    struct shore_layout *layout, *copy;
    assert_int_equal(shore_layout_make(blocks, 2, &layout), 0);
    assert_int_equal(shore__layout_copy(layout, &copy), 0);
    shore_layout_free(layout);
    const struct shore_layout_tensor *t = copy->blocks[0].tensors;
    assert_string_equal(t[1].name, "b");
    assert_int_equal(t[1].group, 1);
    assert_int_equal(t[0].offset_elems, 0);
    assert_int_equal(t[1].offset_elems, 256); /* up to 70,256 */
    assert_int_equal(t[2].offset_elems, 70400);
    assert_int_equal(copy->blocks[0].elems, 270400);
    assert_int_equal(copy->blocks[0].segments, 5);
    assert_int_equal(copy->blocks[1].tensors[1].offset_elems, 65536);
    assert_int_equal(copy->blocks[1].segments, 2);
    assert_int_equal(copy->segments, 7);
    assert_int_equal(copy->elems, 100 + 70000 + 200000 + 65536 + 1);
    shore_layout_free(copy);
}

static void what_is_empty_is_refused(void **state) {
    const struct shore_tensor_spec none = {"a", 0, 0}, rests[] = {{"a", 1, SHORE_GROUP_RESTS}, {"b", 1, 0}};
    const struct shore_block_spec empty = {"first", NULL, 0}, zero = {"first", &none, 1}, half = {"first", rests, 2};
    struct shore_layout *layout;
    assert_int_equal(shore_layout_make(&empty, 0, &layout), SHORE_EINPUT);
    assert_int_equal(shore_layout_make(&empty, 1, &layout), SHORE_EINPUT);
    assert_int_equal(shore_layout_make(&zero, 1, &layout), SHORE_EINPUT);
    assert_int_equal(shore_layout_make(&half, 1, &layout), SHORE_EINPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_lie_at_multiples_of_256),
        cmocka_unit_test(what_is_empty_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
