/* Gather lists against blocks that are filled element by element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "number/fp16.h"
#include "number/gather.h"
#include "seed.h"

enum { ELEMS = 5000 };

static uint64_t seed, drawn;
static float want[ELEMS];
static union {
    float wide[ELEMS];
    uint16_t half[ELEMS];
} memory[3]; /* by dtype, element by element */

static uint64_t draw(uint64_t below) {
    return (uint64_t)(shore__random_unit(seed, 0, drawn++) * (double)below);
}

/* Items of all dtypes, some next to each other. */
static uint32_t make_list(struct shore_gather *item) {
    uint32_t n = 0;
    memset(want, 0, sizeof want);
    for (uint64_t at = draw(300); at < ELEMS; n++) {
        uint64_t elems = 1 + draw(draw(2) ? 40 : 1500);
        enum shore_dtype dtype = (enum shore_dtype)draw(3);
        if (elems > ELEMS - at) elems = ELEMS - at;
        const void *from = dtype == SHORE_DTYPE_FP32 ? (const void *)&memory[0].wide[at] : &memory[dtype].half[at];
        item[n] = (struct shore_gather){from, at, elems, dtype};
        for (uint64_t i = at; i < at + elems; i++)
            want[i] = dtype == SHORE_DTYPE_FP32   ? memory[0].wide[i]
                      : dtype == SHORE_DTYPE_BF16 ? shore__bf16_to_f32(memory[1].half[i])
                                                  : shore__f16_to_f32(memory[2].half[i]);
        at += elems + (draw(2) ? 0 : draw(900));
    }
    return n;
}

static void any_part_is_as_it_lies(void **state) {
    static struct shore_gather item[ELEMS];
    static float wide[ELEMS];
    static uint16_t narrow[ELEMS];
    for (int round = 0; round < 300; round++) {
        const struct shore__gather_list list = {item, make_list(item)};
        for (int part = 0; part < 10; part++) {
            uint64_t first = draw(ELEMS), elems = draw(ELEMS - first) + 1, there = elems;
            memset(wide, 0xFF, sizeof wide);
            shore__gather_fill(&list, first, elems, wide);
            assert_memory_equal(wide, want + first, elems * sizeof *wide);
            shore__gather_fill_bf16(&list, first, elems, narrow);
            for (uint64_t i = 0; i < elems; i++)
                assert_int_equal(narrow[i], shore__f32_to_bf16(want[first + i]));
            const float *view = shore__gather_view(&list, first, &there);
            assert_true(there > 0 && there <= elems);
            if (view) assert_memory_equal(view, want + first, there * sizeof *view);
        }
    }
}

static void one_item_of_fp32_is_not_copied(void **state) {
    const struct shore_gather item = {memory[0].wide, 256, 1000, SHORE_DTYPE_FP32};
    const struct shore__gather_list list = {&item, 1};
    uint64_t there = 2000;
    assert_ptr_equal(shore__gather_view(&list, 300, &there), memory[0].wide + 44);
    assert_int_equal(there, 956);
    there = 10;
    assert_null(shore__gather_view(&list, 255, &there));
    assert_null(shore__gather_view(&list, 1256, &there));
}

/* Any part packs into as many bytes as it says, and reads as it lay. */
static void parts_travel(void **state) {
    static struct shore_gather item[ELEMS], arrived[ELEMS];
    static float wide[ELEMS];
    for (int round = 0; round < 300; round++) {
        const struct shore__gather_list list = {item, make_list(item)};
        uint64_t first = draw(ELEMS), elems = draw(ELEMS - first) + 1;
        uint64_t bytes = shore__gather_packed_bytes(&list, first, elems);
        unsigned char *packed = malloc(bytes + 1);
        assert_non_null(packed);
        packed[bytes] = 0xA5;
        shore__gather_pack(&list, first, elems, packed);
        assert_int_equal(packed[bytes], 0xA5);
        const struct shore__gather_list there = {arrived, shore__gather_packed_count(packed, bytes)};
        assert_true(shore__gather_unpack(packed, bytes, arrived));
        memset(wide, 0xFF, sizeof wide);
        shore__gather_fill(&there, 0, ELEMS, wide);
        for (uint64_t i = 0; i < ELEMS; i++)
            if (i < first || i >= first + elems) assert_true(wide[i] == 0);
        assert_memory_equal(wide + first, want + first, elems * sizeof *wide);
        assert_false(shore__gather_unpack(packed, bytes - 1, arrived));
        assert_false(shore__gather_unpack(packed, bytes + 1, arrived));
        free(packed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_part_is_as_it_lies),
        cmocka_unit_test(parts_travel),
        cmocka_unit_test(one_item_of_fp32_is_not_copied),
    };
    seed = test_seed();
    for (uint32_t i = 0; i < ELEMS; i++) {
        float x = shore__random_normal(seed, 1, i);
        memory[0].wide[i] = x;
        memory[1].half[i] = shore__f32_to_bf16(x);
        memory[2].half[i] = shore__f32_to_f16(x);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
