/* When a segment of a held table is complete: the table, and that it is so exactly once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/gradients.h"

#define END ALL_LOOKED_UP
#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static void a_segment_is_new_as_the_table_says(void **state) {
    static const struct {
        uint32_t due;
        bool early;
        uint32_t looked_up;
        bool is_new;
    } table[] = {
        {0, false, 0, true}, /* no token looks it up: after the head */
        {0, false, 1, false},  {2, false, 0, false},  {2, false, 1, false},
        {2, false, 2, true},   {4, false, END, true}, /* the last unit's, and all where nothing went before */
        {0, false, END, true},                        /* a step that does not speculate */
        {0, true, END, false}, {2, true, END, false},
    };
    for (size_t i = 0; i < COUNT(table); i++)
        if (shore__segment_is_new(table[i].due, table[i].early, table[i].looked_up) != table[i].is_new)
            fail_msg("row %zu", i);
}

/* In a step of some units, of which the first `moments` are handed over early. */
static int times_new(uint32_t due, uint32_t units, uint32_t moments) {
    int times = 0;
    bool early = false;
    for (uint32_t moment = 0; moment < moments && moment < units; moment++) {
        times += shore__segment_is_new(due, early, moment);
        early |= due == moment;
    }
    return times + shore__segment_is_new(due, early, END);
}

static void every_segment_is_new_once(void **state) {
    for (uint32_t units = 1; units <= 5; units++)
        for (uint32_t due = 0; due <= units; due++)
            for (uint32_t moments = 0; moments <= units; moments++) /* 0: the step waits for its norm */
                assert_int_equal(times_new(due, units, moments), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_segment_is_new_as_the_table_says),
        cmocka_unit_test(every_segment_is_new_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
