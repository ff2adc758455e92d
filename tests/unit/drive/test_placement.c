/* Layouts, and which drive owns what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "drive/layout.h"
#include "drive/placement.h"

static void layout_is_canonical(void **state) {
    struct shore_tensor_spec tensors[] = {{"a", 1, 0}, {"b", 257, 1}, {"c", 65536, 0}};
    struct shore_block_spec block = {"block", tensors, 3};
    struct shore_layout *layout, *copy;
    assert_int_equal(shore_layout_make(&block, 1, &layout), 0);
    const struct shore_layout_block *b = &layout->blocks[0];
    assert_int_equal(b->tensors[0].offset_elems, 0);
    assert_int_equal(b->tensors[1].offset_elems, 256);
    assert_int_equal(b->tensors[2].offset_elems, 768);
    assert_int_equal(b->elems, 768 + 65536);
    assert_int_equal(b->segments, 2);
    assert_int_equal(b->padded_elems, 2 * 65536);
    assert_int_equal(layout->elems, 1 + 257 + 65536);
    assert_int_equal(shore__layout_copy(layout, &copy), 0);
    assert_string_equal(copy->blocks[0].tensors[1].name, "b");
    assert_int_equal(copy->blocks[0].tensors[1].group, 1);
    assert_int_equal(copy->segments, layout->segments);
    shore_layout_free(layout);
    shore_layout_free(copy);
    shore_layout_free(NULL);
}

static void nonsense_is_refused(void **state) {
    struct shore_tensor_spec none = {"a", 0, 0}, huge = {"a", UINT64_MAX, 0};
    struct shore_tensor_spec many[2] = {{"a", UINT64_C(1) << 45, 0}, {"b", UINT64_C(1) << 46, 0}};
    struct shore_layout *layout;
    assert_int_equal(shore_layout_make(&(struct shore_block_spec){"x", &none, 1}, 1, &layout), SHORE_EINPUT);
    assert_int_equal(shore_layout_make(&(struct shore_block_spec){"x", &huge, 1}, 1, &layout), SHORE_EINPUT);
    assert_int_equal(shore_layout_make(&(struct shore_block_spec){"x", many, 2}, 1, &layout), SHORE_EINPUT);
    assert_int_equal(shore_layout_make(&(struct shore_block_spec){"x", many, 0}, 1, &layout), SHORE_EINPUT);
    assert_int_equal(shore_layout_make(NULL, 0, &layout), SHORE_EINPUT);
}

/* Blocks of the given numbers of segments. */
static struct shore_layout *layout_of(const uint32_t *segments, uint32_t nblocks) {
    struct shore_tensor_spec *tensors = calloc(nblocks, sizeof *tensors);
    struct shore_block_spec *blocks = calloc(nblocks, sizeof *blocks);
    struct shore_layout *layout;
    for (uint32_t b = 0; b < nblocks; b++) {
        tensors[b] = (struct shore_tensor_spec){"t", (uint64_t)segments[b] * SHORE_SEGMENT_ELEMS, 0};
        blocks[b] = (struct shore_block_spec){"b", &tensors[b], 1};
    }
    assert_int_equal(shore_layout_make(blocks, nblocks, &layout), 0);
    free(tensors);
    free(blocks);
    return layout;
}

static void check_shares(const uint32_t *segments, uint32_t nblocks, const uint64_t *weights, uint32_t ndrives) {
    struct shore_layout *layout = layout_of(segments, nblocks);
    struct shore__range *ranges = calloc((size_t)nblocks * ndrives, sizeof *ranges);
    struct shore__range *again = calloc((size_t)nblocks * ndrives, sizeof *again);
    struct shore__volume_desc *descs = calloc(ndrives, sizeof *descs);
    const struct shore__volume_desc **list = calloc(ndrives, sizeof *list);
    uint64_t total = 0;
    for (uint32_t d = 0; d < ndrives; d++) {
        total += weights[d];
    }
    shore__placement_make(layout, weights, ndrives, ranges);
    for (uint32_t d = 0; d < ndrives; d++) {
        struct shore__extent *extents;
        assert_int_equal(
            shore__placement_extents(layout, ranges, ndrives, d, &extents, &descs[d].nextents, &descs[d].segments), 0);
        descs[d].extents = extents;
        list[d] = &descs[d];
        double share = total ? (double)weights[d] / (double)total : 1.0 / ndrives;
        double off = descs[d].segments - share * (double)layout->segments;
        if (off < -1.5 || off > 1.5) fail_msg("drive %u is %f segments off its share", d, off);
        if (total && weights[d] == 0) assert_int_equal(descs[d].segments, 0);
    }
    assert_int_equal(shore__placement_read(layout, list, ndrives, again, NULL), 0);
    for (uint32_t i = 0; i < nblocks * ndrives; i++) {
        assert_int_equal(again[i].count, ranges[i].count);
        if (ranges[i].count) assert_int_equal(again[i].first, ranges[i].first);
    }
    /* one segment fewer somewhere is another model's state */
    for (uint32_t d = 0; d < ndrives; d++) {
        if (descs[d].nextents == 0) continue;
        struct shore__extent *extent = (struct shore__extent *)(uintptr_t)&descs[d].extents[0];
        extent->count++;
        assert_int_equal(shore__placement_read(layout, list, ndrives, again, NULL), SHORE_EMISMATCH);
        extent->count--;
    }
    for (uint32_t d = 0; d < ndrives; d++) {
        free((void *)(uintptr_t)descs[d].extents);
    }
    shore_layout_free(layout);
    free(ranges);
    free(again);
    free(descs);
    free(list);
}

static void shares_follow_the_weights(void **state) {
    const uint32_t large[] = {590, 109, 109, 109, 1}, small[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint32_t mixed[] = {1, 7, 1, 3, 12, 1, 1, 2};
    const uint64_t none[5] = {0}, unequal[] = {100, 1, 33, 7, 60}, two[] = {3, 1}, idle[] = {0, 5, 0};
    const uint64_t enormous[] = {UINT64_C(1) << 44, UINT64_C(1) << 43};
    check_shares(large, 5, none, 5);
    check_shares(small, 13, none, 5);
    check_shares(mixed, 8, none, 3);
    check_shares(large, 5, unequal, 5);
    check_shares(small, 13, unequal, 5);
    check_shares(mixed, 8, unequal, 5);
    check_shares(small, 13, two, 2);
    check_shares(mixed, 8, two, 1);
    check_shares(mixed, 8, idle, 3);
    check_shares(large, 5, enormous, 2);
}

/* Small blocks that rest between others, as the layers of adapters have them: each drive has its share of both. */
static void what_rests_is_shared_by_itself(void **state) {
    enum { BLOCKS = 40, DRIVES = 2 };
    struct shore_tensor_spec tensors[BLOCKS];
    struct shore_block_spec blocks[BLOCKS];
    struct shore__range ranges[BLOCKS * DRIVES];
    struct shore_layout *layout;
    uint32_t updated[DRIVES] = {0};
    for (uint32_t b = 0; b < BLOCKS; b++) {
        tensors[b] = (struct shore_tensor_spec){"t", SHORE_SEGMENT_ELEMS, b % 2 ? SHORE_GROUP_RESTS : 0};
        blocks[b] = (struct shore_block_spec){"b", &tensors[b], 1};
    }
    assert_int_equal(shore_layout_make(blocks, BLOCKS, &layout), 0);
    shore__placement_make(layout, (uint64_t[DRIVES]){0}, DRIVES, ranges);
    for (uint32_t b = 0; b < BLOCKS; b += 2)
        for (uint32_t d = 0; d < DRIVES; d++)
            updated[d] += ranges[b * DRIVES + d].count;
    assert_int_equal(updated[0], BLOCKS / 4);
    assert_int_equal(updated[1], BLOCKS / 4);
    shore_layout_free(layout);
}

static void what_has_no_file_has_no_size(void **state) {
    assert_true(shore__drive_capacity_bytes(".") > 0);
    assert_true(shore__drive_capacity_bytes("not-there-yet") > 0);
}

static void shares_follow_speed_and_room(void **state) {
    const uint64_t none[3] = {0, 0, 0}, equal[3] = {1, 1, 1}, unequal[3] = {100, 200, 100}, still[2] = {0, 0};
    uint64_t w[3];
    shore__placement_weights(equal, none, 3, 300, w);
    assert_true(w[0] == 100 && w[1] == 100 && w[2] == 100);
    shore__placement_weights(unequal, none, 3, 400, w);
    assert_true(w[0] == 100 && w[1] == 200 && w[2] == 100);
    /* what does not fit on one goes to the others, by their speeds */
    shore__placement_weights(unequal, (uint64_t[3]){0, 100, 0}, 3, 400, w);
    assert_true(w[0] == 150 && w[1] == 100 && w[2] == 150);
    /* and again, where that fills another */
    shore__placement_weights(unequal, (uint64_t[3]){0, 100, 120}, 3, 400, w);
    assert_true(w[0] == 180 && w[1] == 100 && w[2] == 120);
    /* too little room everywhere: creating says so */
    shore__placement_weights(unequal, (uint64_t[3]){10, 20, 30}, 3, 400, w);
    assert_true(w[0] == 10 && w[1] == 20 && w[2] == 30);
    shore__placement_weights(still, none, 2, 400, w);
    assert_true(w[0] == 0 && w[1] == 0); /* equal parts, says shore__placement_make */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_follow_speed_and_room),
        cmocka_unit_test(layout_is_canonical),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(shares_follow_the_weights),
        cmocka_unit_test(what_rests_is_shared_by_itself),
        cmocka_unit_test(what_has_no_file_has_no_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
