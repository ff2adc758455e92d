/* Rows in pages against rows that are picked byte by byte, and their sums against the plain ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "near/row_pages.h"
#include "number/bf16.h"
#include "seed.h"

enum { SPACE_PAGES = 200, ROWS_MOST = 5000, ELEMS = 1037 };
#define SPACE (SPACE_PAGES * (uint64_t)SHORE__ROWS_PAGE)

static uint64_t seed, drawn;
static unsigned char space[SPACE];

static uint64_t draw(uint64_t below) {
    return (uint64_t)(shore__random_unit(seed, 0, drawn++) * (double)below);
}

/* A table of any shape in the space, and some of its rows. */
static void make(struct shore__rows *r, uint32_t *row) {
    uint64_t rows;
    *r = (struct shore__rows){.first = draw(9000), .bytes = 1 + (uint32_t)draw(draw(2) ? 600 : 30000), .row = row};
    if (draw(2)) {
        r->stripe = 1u << 16;
        r->per_stripe = (uint32_t)(r->stripe / r->bytes);
        r->first = 0;
        rows = SPACE / r->stripe * r->per_stripe;
    } else {
        rows = (SPACE - r->first) / r->bytes;
    }
    r->from = draw(3) ? 0 : draw(SPACE_PAGES / 2) * SHORE__ROWS_PAGE;
    r->to = draw(3) ? SPACE : r->from + draw(SPACE_PAGES / 2) * SHORE__ROWS_PAGE;
    for (uint64_t i = draw(rows), every = 1 + draw(draw(2) ? 4 : 300); i < rows && r->count < ROWS_MOST;
         i += 1 + draw(every))
        row[r->count++] = (uint32_t)i;
}

/* The bytes of all rows one by one; their pages in used[]. */
static uint64_t pick_plainly(const struct shore__rows *r, unsigned char *out, unsigned char *used) {
    uint64_t n = 0;
    memset(used, 0, SPACE_PAGES);
    for (uint32_t i = 0; i < r->count; i++) {
        uint64_t at = r->per_stripe
                          ? r->row[i] / r->per_stripe * r->stripe + r->row[i] % r->per_stripe * (uint64_t)r->bytes
                          : r->first + r->row[i] * (uint64_t)r->bytes;
        for (uint64_t b = at; b < at + r->bytes; b++) {
            if (b < r->from || b >= r->to) continue;
            out[n++] = space[b];
            used[b / SHORE__ROWS_PAGE] = 1;
        }
    }
    return n;
}

static void each_page_is_read_once(void **state) {
    static uint32_t row[ROWS_MOST];
    static struct shore__rows_page page[64];
    static unsigned char memory[64 * SHORE__ROWS_PAGE], used[SPACE_PAGES], read[SPACE_PAGES];
    unsigned char *want = malloc(ROWS_MOST * 30000), *got = malloc(ROWS_MOST * 30000);
    assert_true(want && got);
    for (int round = 0; round < 400; round++) {
        struct shore__rows r;
        struct shore__rows_cursor cursor = {0}, ahead = {0};
        struct shore__rows_part part;
        uint32_t n, most = 1 + (uint32_t)draw(64);
        uint64_t wanted = 0, done = 0;
        make(&r, row);
        assert_true(shore__rows_valid(row, r.count, UINT32_MAX));
        uint64_t bytes = pick_plainly(&r, want, used);
        assert_int_equal(shore__rows_bytes(&r), bytes);
        memset(read, 0, sizeof read);
        while ((n = shore__rows_collect(&r, &ahead, page, most))) {
            uint32_t run = shore__rows_run(page, n);
            assert_true(run >= 1 && run <= n && page[run - 1].number == page[0].number + run - 1);
            assert_true(run == n || page[run].number > page[0].number + run);
            for (uint32_t k = 0; k < n; k++) {
                read[page[k].number]++;
                wanted += page[k].wanted;
                assert_true(page[k].wanted && page[k].wanted <= SHORE__ROWS_PAGE);
                memcpy(memory + k * SHORE__ROWS_PAGE, space + page[k].number * SHORE__ROWS_PAGE, SHORE__ROWS_PAGE);
            }
            while (shore__rows_part(&r, &cursor, page, n, &part)) {
                assert_int_equal(part.offset, done);
                assert_true(part.bytes && part.at + part.bytes <= n * SHORE__ROWS_PAGE);
                memcpy(got + done, memory + part.at, part.bytes);
                done += part.bytes;
            }
        }
        assert_int_equal(done, bytes);
        assert_int_equal(wanted, bytes);
        assert_memory_equal(got, want, bytes);
        assert_memory_equal(read, used, SPACE_PAGES);
    }
    free(want);
    free(got);
}

static void rows_in_no_order_are_not_valid(void **state) {
    const uint32_t twice[] = {1, 4, 4}, back[] = {1, 4, 3}, good[] = {1, 4, 5};
    assert_false(shore__rows_valid(twice, 3, 100));
    assert_false(shore__rows_valid(back, 3, 100));
    assert_true(shore__rows_valid(good, 3, 6));
    assert_false(shore__rows_valid(good, 3, 5));
    assert_true(shore__rows_valid(NULL, 0, 0));
}

static float value(void) {
    uint64_t kind = draw(8);
    if (kind == 0) return shore__bits_f32((uint32_t)draw(UINT32_MAX)); /* also NaN, infinities, denormals */
    return shore__random_normal(seed, 1, drawn++) * (kind == 1 ? 1e38f : kind == 2 ? 1e-40f : 1);
}

static void every_version_adds_the_same(void **state) {
    static float from[ELEMS + 3], to[ELEMS], wide[ELEMS];
    static uint16_t half[ELEMS], narrow[ELEMS];
    for (int round = 0; round < 50; round++) {
        size_t elems = 1 + draw(ELEMS);
        const float *values = from + draw(3);
        for (size_t i = 0; i < ELEMS + 3; i++)
            from[i] = value();
        for (size_t i = 0; i < ELEMS; i++) {
            to[i] = value();
            half[i] = (uint16_t)draw(65536);
        }
        for (const struct shore__rows_version *v = shore__rows_versions(); v->name; v++) {
            if (!v->usable()) continue;
            memcpy(wide, to, sizeof wide);
            memcpy(narrow, half, sizeof narrow);
            v->add_f32(wide, values, elems);
            v->add_bf16(narrow, values, elems);
            for (size_t i = 0; i < ELEMS; i++) {
                float sum = to[i] + values[i < elems ? i : 0],
                      small = shore__bf16_to_f32(half[i]) + values[i < elems ? i : 0];
                uint32_t want = sum == sum ? shore__f32_bits(sum) : 0x7FC00000;
                uint16_t bf16 = small == small ? shore__f32_to_bf16(small) : 0x7FC0;
                if (i >= elems) want = shore__f32_bits(to[i]);
                if (i >= elems) bf16 = half[i];
                if (shore__f32_bits(wide[i]) != want || narrow[i] != bf16) fail_msg("%s, element %zu", v->name, i);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_page_is_read_once),
        cmocka_unit_test(rows_in_no_order_are_not_valid),
        cmocka_unit_test(every_version_adds_the_same),
    };
    seed = test_seed();
    for (uint64_t i = 0; i < SPACE; i++)
        space[i] = (unsigned char)(shore__random_unit(seed, 5, i) * 256);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
