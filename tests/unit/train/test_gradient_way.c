/* Which gradient goes where: the table, and that every segment goes exactly once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/gradient_way.h"

#define END ALL_LOOKED_UP
#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static void a_segment_goes_as_the_table_says(void **state) {
    static const struct {
        struct segment_facts facts;
        uint32_t looked_up;
        enum segment_way way;
    } table[] = {
        /* by_segment, due, early, ahead: at this moment */
        {{false, 0, false, false}, END, SEGMENT_TO_DRIVE}, /* a layer, an untied table, a slice that is not held */
        {{true, 0, false, false}, 0, SEGMENT_TO_DRIVE},    /* no token looks it up: after the head */
        {{true, 0, false, false}, 1, SEGMENT_IS_GONE},
        {{true, 2, false, false}, 0, SEGMENT_WAITS},
        {{true, 2, false, false}, 1, SEGMENT_WAITS},
        {{true, 2, false, false}, 2, SEGMENT_TO_DRIVE},
        {{true, 2, false, true}, 2, SEGMENT_STAYS_HERE},
        {{true, 2, false, true}, 1, SEGMENT_WAITS},
        {{true, 4, false, false}, END, SEGMENT_TO_DRIVE}, /* the last unit's, and all where nothing went before */
        {{true, 4, false, true}, END, SEGMENT_STAYS_HERE},
        {{true, 0, false, false}, END, SEGMENT_TO_DRIVE}, /* a step that does not speculate */
        {{true, 0, true, false}, END, SEGMENT_IS_GONE},
        {{true, 2, true, true}, END, SEGMENT_IS_GONE}, /* stayed here, at its moment */
    };
    for (size_t i = 0; i < COUNT(table); i++)
        if (shore__segment_way(&table[i].facts, table[i].looked_up) != table[i].way) fail_msg("row %zu", i);
}

/* In a step of some units, of which the first `moments` are handed over early. */
static int times_gone(struct segment_facts facts, uint32_t units, uint32_t moments) {
    int times = 0;
    for (uint32_t moment = 0; moment <= units; moment++) {
        uint32_t looked_up = moment < units ? moment : END;
        if (moment < units && moment >= moments) continue;
        enum segment_way way = shore__segment_way(&facts, looked_up);
        times += way == SEGMENT_TO_DRIVE || way == SEGMENT_STAYS_HERE;
        if (looked_up != END) facts.early |= facts.due == looked_up;
    }
    return times;
}

static void every_segment_goes_once(void **state) {
    for (uint32_t units = 1; units <= 5; units++)
        for (uint32_t due = 0; due <= units; due++)
            for (uint32_t moments = 0; moments <= units; moments++) /* 0: the step waits for its norm */
                for (int ahead = 0; ahead < 2; ahead++)
                    assert_int_equal(times_gone((struct segment_facts){true, due, false, ahead}, units, moments), 1);
}

static void a_piece_goes_as_the_table_says(void **state) {
    static const struct {
        struct piece_facts facts;
        enum piece_way way;
    } table[] = {
        /* host_update, speculates, goes_on, all_fit, held, left */
        {{false, true, true, false, false, 0}, PIECE_TO_DRIVES},
        {{false, true, true, true, true, 9}, PIECE_TO_DRIVES},
        {{false, true, false, true, false, 0}, PIECE_IS_HELD}, /* passed the limit, and nothing is lost */
        {{false, true, false, false, false, 9}, PIECE_IS_GIVEN_UP},
        {{false, true, false, false, true, 9}, PIECE_IS_GIVEN_UP}, /* of another piece there may be nothing left */
        {{false, false, false, true, false, 0}, PIECE_IS_HELD},
        {{false, false, false, false, true, 0}, PIECE_IS_HELD},
        {{false, false, false, false, false, 2}, PIECE_IS_HELD},
        {{false, false, false, false, false, 1}, PIECE_IS_SPILLED},
        {{false, false, false, false, false, 0}, PIECE_IS_SPILLED},
        {{true, false, false, true, true, 9}, PIECE_IS_SPILLED},
        {{true, false, false, false, false, 0}, PIECE_IS_SPILLED},
    };
    for (size_t i = 0; i < COUNT(table); i++)
        if (shore__piece_way(&table[i].facts) != table[i].way) fail_msg("row %zu", i);
}

static void more_buffers_never_spill_more(void **state) {
    for (unsigned bits = 0; bits < 32; bits++) {
        struct piece_facts p = {bits & 1, bits & 2, bits & 4 && bits & 2, bits & 8, bits & 16, 0};
        bool held = false;
        for (p.left = 0; p.left < 6; p.left++) {
            bool spilled = shore__piece_way(&p) == PIECE_IS_SPILLED;
            assert_false(held && spilled);
            held |= !spilled;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_segment_goes_as_the_table_says),
        cmocka_unit_test(every_segment_goes_once),
        cmocka_unit_test(a_piece_goes_as_the_table_says),
        cmocka_unit_test(more_buffers_never_spill_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
