/* The layout of rows with lifetimes: never two of them in one place at one time. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "plan/regions.h"
#include "seed.h"
#include "unit/plan/lifetimes.h"

enum { CASES = 200, ROWS_MOST = 40, PAGES_MOST = 9, PAGE = SHORE__ARENA_ALIGN, A_ROW = 1, ANOTHER_ROW };

static uint64_t seed;

struct drawing {
    uint64_t stream, draw;
};
static uint32_t pick(struct drawing *d, uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, d->stream, d->draw++) % (last - first + 1));
}

/* A cell for each phase and page: each is marked once at most. */
static void check_by_cells(const struct shore__region_list *r, uint64_t stream) {
    size_t pages = (size_t)ROWS_MOST * PAGES_MOST;
    unsigned char *cells = calloc(SHORE_PLACES * r->phases * pages, 1);
    assert_non_null(cells);
    for (uint32_t i = 0; i < r->count; i++) {
        const struct shore__region *row = &r->item[i];
        assert_int_equal(row->offset % PAGE, 0);
        if (row->bytes) assert_true(row->offset + row->bytes <= r->bytes[row->place]);
        for (uint32_t phase = 0; phase < r->phases; phase++) {
            if (!live_in(row, r->phases, phase)) continue;
            for (uint64_t p = row->offset / PAGE; p < (row->offset + row->bytes) / PAGE; p++) {
                unsigned char *cell = &cells[(row->place * r->phases + phase) * pages + p];
                if ((*cell)++) fail_msg("SEED=%" PRIu64 " case %" PRIu64 ": row %u", seed, stream, i);
            }
        }
    }
    free(cells);
}

static void add_random_rows(struct shore__region_list *r, struct drawing *d) {
    shore__regions_open(r, pick(d, 1, 12), pick(d, 0, 1));
    for (uint32_t n = pick(d, 1, ROWS_MOST), i = 0; i < n; i++) {
        struct shore__lifetime live = {pick(d, 0, r->phases - 1), pick(d, 0, r->phases - 1)};
        shore__regions_add(r, A_ROW, i, "row", pick(d, 0, SHORE_PLACES - 1), pick(d, 0, PAGES_MOST * PAGE), live);
    }
}

/* The most that is in use at one time, and what everything side by side would take. */
static void bounds(const struct shore__region_list *r, uint64_t *least, uint64_t *most) {
    *least = *most = 0;
    for (uint32_t kind = 0; kind < SHORE_PLACES; kind++) {
        uint64_t peak = 0;
        for (uint32_t phase = 0; phase < r->phases; phase++) {
            uint64_t bytes = 0;
            for (uint32_t i = 0; i < r->count; i++)
                if (r->item[i].place == kind && live_in(&r->item[i], r->phases, phase)) bytes += r->item[i].bytes;
            if (bytes > peak) peak = bytes;
        }
        *least += peak;
    }
    for (uint32_t i = 0; i < r->count; i++)
        *most += r->item[i].bytes;
}

static void no_two_live_rows_share_a_place(void **state) {
    for (uint64_t stream = 0; stream < CASES; stream++) {
        struct drawing d = {stream, 0};
        struct shore__region_list r;
        uint64_t least, most;
        add_random_rows(&r, &d);
        uint64_t sum = shore__regions_lay_out(&r);
        bounds(&r, &least, &most);
        assert_in_range(sum, least, most);
        check_by_cells(&r, stream);
        shore__regions_close(&r);
    }
}

static void a_row_grows_into_what_is_free(void **state) {
    for (uint64_t stream = 0; stream < CASES; stream++) {
        struct drawing d = {stream, 0};
        struct shore__region_list r;
        add_random_rows(&r, &d);
        uint64_t sum = shore__regions_lay_out(&r);
        uint32_t grown = pick(&d, 0, r.count - 1);
        struct shore__region *row = &r.item[grown];
        uint64_t before = row->bytes;
        shore__regions_grow(&r, row);
        assert_true(row->bytes >= before);
        check_by_cells(&r, stream);
        assert_int_equal(r.bytes[0] + r.bytes[1] + r.bytes[2], sum);
        if (before && r.bytes[row->place] > row->offset + row->bytes) { /* what follows is taken */
            row->bytes += PAGE;
            bool taken = false;
            for (uint32_t i = 0; i < r.count; i++)
                for (uint32_t phase = 0; i != grown && phase < r.phases; phase++)
                    taken |= r.item[i].place == row->place && live_in(row, r.phases, phase) &&
                             live_in(&r.item[i], r.phases, phase) && r.item[i].offset < row->offset + row->bytes &&
                             row->offset < r.item[i].offset + r.item[i].bytes;
            assert_true(taken);
        }
        shore__regions_close(&r);
    }
}

static void rows_of_one_time_lie_side_by_side(void **state) {
    struct shore__region_list r;
    shore__regions_open(&r, 12, true);
    shore__regions_add(&r, A_ROW, 0, "row", SHORE_PLACE_DEVICE, 1, (struct shore__lifetime){0, 11});
    shore__regions_add(&r, A_ROW, 1, "row", SHORE_PLACE_PLAIN, PAGE + 1, (struct shore__lifetime){0, 11});
    shore__regions_add(&r, ANOTHER_ROW, 0, "row", SHORE_PLACE_PLAIN, 0, (struct shore__lifetime){0, 11});
    assert_int_equal(shore__regions_lay_out(&r), 3 * PAGE);
    assert_int_equal(shore__regions_find(&r, A_ROW, 1)->offset, PAGE);
    struct shore__memory memory = {&r, {{.device = {PAGE}}}};
    assert_int_equal(shore__memory_at(&memory, A_ROW, 1).handle, 2 * PAGE);
    assert_true(shore__buf_is_none(shore__memory_at(&memory, ANOTHER_ROW, 0)));
    assert_true(shore__buf_is_none(shore__memory_at(&memory, ANOTHER_ROW + 1, 0)));
    shore__regions_close(&r);
}

struct stairs {
    size_t field, most;
};
static uint64_t stairs_bytes(void *ctx) {
    const struct stairs *s = ctx;
    return s->field == s->most ? 5 * s->most : 7 * s->field + 10;
}

static void raising_finds_the_largest_that_fits(void **state) {
    for (uint64_t room = 0; room < 200; room++) {
        struct stairs s = {1, 20};
        shore__raise(&s.field, s.most, room, stairs_bytes, &s);
        size_t expected = 1;
        for (struct stairs x = {1, 20}; x.field <= x.most; x.field++)
            if (stairs_bytes(&x) <= room) expected = x.field;
        assert_int_equal(s.field, expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_two_live_rows_share_a_place),
        cmocka_unit_test(a_row_grows_into_what_is_free),
        cmocka_unit_test(rows_of_one_time_lie_side_by_side),
        cmocka_unit_test(raising_finds_the_largest_that_fits),
    };
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
