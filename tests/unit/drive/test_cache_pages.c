/* Pages of a cache, beside a plain list of what was taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "drive/local/cache_pages.h"

enum { PAGES = 61, STEPS = 20000, SEQUENCES = 3, LAYERS = 2, HEADS = 2, PARTS = 9 };
#define SEED 36u

static uint32_t plain[SEQUENCES][LAYERS][HEADS][PARTS]; /* 1 + the page; 0: none */

static uint32_t drawn(uint64_t step, uint64_t what, uint32_t n) {
    return (uint32_t)(shore__random_unit(SEED, what, step) * n);
}

static uint32_t held(void) {
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof plain / sizeof(uint32_t); i++)
        n += ((const uint32_t *)plain)[i] != 0;
    return n;
}

static uint32_t drop(const struct shore__cache_key *key) {
    uint32_t before = held();
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t h = 0; h < HEADS; h++)
            if ((key->layer == l || key->layer == SHORE__CACHE_ANY) &&
                (key->head == h || key->head == SHORE__CACHE_ANY))
                memset(plain[key->sequence][l][h], 0, sizeof plain[0][0][0]);
    return before - held();
}

static void beside_a_plain_list(void **state) {
    void *memory = malloc(shore__cache_pages_bytes(PAGES));
    struct shore__cache_pages p;
    bool owned[PAGES];
    print_message("seed %u\n", SEED);
    shore__cache_pages_init(&p, memory, PAGES);
    for (uint64_t step = 0; step < STEPS; step++) {
        struct shore__cache_key key = {drawn(step, 1, SEQUENCES), drawn(step, 2, LAYERS), drawn(step, 3, HEADS)};
        uint32_t part = drawn(step, 4, PARTS), what = drawn(step, 5, 40);
        uint32_t *want = &plain[key.sequence][key.layer][key.head][part];
        if (what == 0) {
            key.layer = SHORE__CACHE_ANY;
            if (drawn(step, 6, 2)) key.head = SHORE__CACHE_ANY;
            assert_int_equal(shore__cache_pages_free(&p, &key), drop(&key));
        } else if (what == 1) {
            assert_int_equal(shore__cache_pages_free(&p, &key), drop(&key));
        } else if (what < 20) {
            assert_int_equal(shore__cache_pages_find(&p, &key, part), *want ? *want - 1 : SHORE__NO_PAGE);
        } else {
            uint32_t page = shore__cache_pages_take(&p, &key, part);
            bool full = held() == PAGES;
            if (*want) assert_int_equal(page, *want - 1);
            if (!*want && full) assert_int_equal(page, SHORE__NO_PAGE);
            if (!*want && !full) {
                assert_true(page < PAGES);
                *want = page + 1;
            }
        }
        assert_int_equal(p.used, held());
        memset(owned, 0, sizeof owned);
        for (size_t i = 0; i < sizeof plain / sizeof(uint32_t); i++) { /* no page is two keys' */
            uint32_t page = ((const uint32_t *)plain)[i];
            if (page) assert_false(owned[page - 1]);
            if (page) owned[page - 1] = true;
        }
    }
    free(memory);
}

static void full_of_one(void **state) {
    void *memory = malloc(shore__cache_pages_bytes(3));
    struct shore__cache_pages p;
    struct shore__cache_key key = {1, 2, 3}, other = {1, 2, 4};
    shore__cache_pages_init(&p, memory, 3);
    for (uint32_t part = 0; part < 3; part++)
        assert_true(shore__cache_pages_take(&p, &key, part) < 3);
    assert_int_equal(shore__cache_pages_take(&p, &other, 0), SHORE__NO_PAGE);
    assert_int_equal(shore__cache_pages_free(&p, &other), 0);
    assert_int_equal(shore__cache_pages_free(&p, &key), 3);
    assert_true(shore__cache_pages_take(&p, &other, 0) < 3);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(beside_a_plain_list), cmocka_unit_test(full_of_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
