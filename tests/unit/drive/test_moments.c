#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/prng.h"
#include "drive/layout.h"
#include "drive/moment_tiles.h"

#define TENSORS 400u

static struct shore_layout *make(const uint64_t *elems, uint32_t count) {
    struct shore_tensor_spec tensors[TENSORS];
    struct shore_layout *layout;
    for (uint32_t i = 0; i < count; i++)
        tensors[i] = (struct shore_tensor_spec){"t", elems[i], 0};
    assert_int_equal(shore_layout_make(&(struct shore_block_spec){"b", tensors, count}, 1, &layout), 0);
    return layout;
}

static void room_is_that_of_the_segment_that_needs_most(void **state) {
    uint64_t elems[TENSORS];
    for (uint64_t round = 0; round < 300; round++) {
        uint32_t count = 1 + (uint32_t)(shore__random_u64(1, 0, round) % TENSORS);
        uint64_t small = round % 4;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t r = shore__random_u64(2, round, i), most = r % 4 < small ? SHORE_MOMENTS_8BIT_LEAST + 1 : 300000;
            elems[i] = 1 + (r >> 8) % most;
        }
        struct shore_layout *layout = make(elems, count);
        size_t most = 0;
        for (uint32_t s = 0; s < layout->blocks[0].segments; s++) {
            size_t bytes = shore__moments_stored_bytes(&layout->blocks[0], s);
            if (bytes > most) most = bytes;
        }
        assert_int_equal(shore__moments_segment_bytes(layout, SHORE_MOMENTS_8BIT), most);
        shore_layout_free(layout);
    }
}

/* A request may describe a model that no drive could hold. */
static void a_huge_layout_costs_no_time(void **state) {
    const uint64_t elems[] = {UINT64_C(1) << 45, 5, UINT64_C(1) << 44, 4095};
    struct shore_layout *layout = make(elems, 4);
    size_t alone = 0, room = 0;
    for (int i = 0; i < 1000; i++)
        room = shore__moments_segment_bytes(layout, SHORE_MOMENTS_8BIT);
    alone = shore__moments_stored_bytes(&layout->blocks[0], 0);
    assert_true(room > alone);
    shore_layout_free(layout);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(room_is_that_of_the_segment_that_needs_most),
        cmocka_unit_test(a_huge_layout_costs_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
