/* Drives that do not make the fleet that is asked for (missing, copies, others', in use), and fleets whose making was
 * cut off: each has its own message, and what is whole stays whole. */
#include "fault/faulty_fleet.h"

#include <errno.h>

#include "base/arena.h"

static void copy_file(const char *from, const char *to) {
    char command[512];
    snprintf(command, sizeof command, "cp --sparse=always '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

static void a_missing_drive_is_named(void **state) {
    struct fault t;
    char away[160];
    start(&t, "ff");
    step(&t);
    stop(&t);
    snprintf(away, sizeof away, "%s.away", t.place.path[1]);
    assert_int_equal(rename(t.place.path[1], away), 0);
    assert_int_equal(open_again(&t), SHORE_EMISSING);
    says(&t, "/1.volume is missing");
    /* where it is now, and the other one not at all */
    t.place.paths[1] = away;
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    stop(&t);
    t.options.ndrives = 1;
    assert_int_equal(open_again(&t), SHORE_EMISMATCH);
    says(&t, "belongs to 2 drives");
    unlink(away);
    finish(&t);
}

static void a_drive_from_a_copy_is_stale(void **state) {
    struct fault t;
    char old[160], fresh[160];
    start(&t, "ff");
    snprintf(old, sizeof old, "%s.old", t.place.path[1]);
    snprintf(fresh, sizeof fresh, "%s.fresh", t.place.path[1]);
    step(&t);
    stop(&t);
    copy_file(t.place.path[1], old);
    /* one step behind, and an epoch */
    must(&t, open_again(&t));
    step(&t);
    stop(&t);
    copy_file(t.place.path[1], fresh);
    copy_file(old, t.place.path[1]);
    assert_int_equal(open_again(&t), SHORE_ESTALE);
    says(&t, "/1.volume is at step 1");
    copy_file(fresh, t.place.path[1]);
    /* two steps behind */
    must(&t, open_again(&t));
    step(&t);
    stop(&t);
    copy_file(t.place.path[1], fresh);
    copy_file(old, t.place.path[1]);
    assert_int_equal(open_again(&t), SHORE_ESTALE);
    copy_file(fresh, t.place.path[1]);
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    unlink(old);
    unlink(fresh);
    finish(&t);
}

static void a_fleet_from_a_copy_is_older_than_its_hint(void **state) {
    struct fault t;
    char old[160];
    start(&t, "f");
    snprintf(old, sizeof old, "%s.old", t.place.path[0]);
    step(&t);
    stop(&t);
    copy_file(t.place.path[0], old);
    assert_int_equal(rename(old, t.place.path[0]), 0);
    t.options.hint_step = 2;
    assert_int_equal(open_again(&t), SHORE_ESTALE);
    says(&t, "older");
    t.options.hint_step = 1;
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    finish(&t);
}

static void a_drive_in_use_is_refused(void **state) {
    struct fault t;
    struct shore_fleet *other;
    start(&t, "f");
    assert_int_equal(shore_fleet_open(t.plain.layout, &t.options, &other, &t.diag), SHORE_EBUSY);
    says(&t, "in use");
    t.options.overwrite = true;
    assert_int_equal(shore_fleet_create(t.plain.layout, &t.options, &other, &t.diag), SHORE_EBUSY);
    step(&t);
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    finish(&t);
}

static void drives_of_two_fleets_do_not_mix(void **state) {
    struct fault a, b;
    start(&a, "ff");
    start(&b, "ff");
    step(&a);
    stop(&a);
    stop(&b);
    a.place.paths[1] = b.place.path[1];
    assert_int_equal(open_again(&a), SHORE_EMISMATCH);
    says(&a, "another fleet");
    a.place.paths[1] = a.place.path[1];
    a.options.fleet_id[0] = 5;
    assert_int_equal(open_again(&a), SHORE_EMISMATCH);
    says(&a, "another run");
    a.options.fleet_id[0] = 0;
    a.options.optimizer = SHORE_SGD;
    assert_int_equal(open_again(&a), SHORE_EMISMATCH);
    says(&a, "another optimizer");
    a.options.optimizer = SHORE_ADAMW;
    struct shore_layout *other;
    assert_int_equal(shore_layout_make(harness_blocks, 2, &other), 0);
    assert_int_equal(shore_fleet_open(other, &a.options, &a.fleet, &a.diag), SHORE_EMISMATCH);
    shore_layout_free(other);
    must(&a, open_again(&a));
    assert_digest(a.fleet, &a.plain, true);
    finish(&a);
    finish(&b);
}

static void nothing_is_replaced_unasked(void **state) {
    struct fault t;
    struct shore_fleet *other;
    start(&t, "ff");
    step(&t);
    stop(&t);
    assert_int_equal(shore_fleet_create(t.plain.layout, &t.options, &other, &t.diag), SHORE_EEXISTS);
    says(&t, "holds the state of a run already; name another path");
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    stop(&t);
    /* a drive that is there stops the making of one that is not */
    char fresh[160];
    snprintf(fresh, sizeof fresh, "%s/fresh.volume", t.place.directory);
    const char *paths[] = {fresh, t.place.path[0]};
    t.options.drives = paths;
    assert_int_equal(shore_fleet_create(t.plain.layout, &t.options, &other, &t.diag), SHORE_EEXISTS);
    assert_int_not_equal(access(fresh, F_OK), 0);
    t.options.overwrite = true;
    must(&t, shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag));
    unlink(fresh);
    finish(&t);
}

static void a_fleet_that_memory_is_short_for_leaves_nothing(void **state) {
    struct fault t;
    start(&t, "ff");
    stop(&t);
    unlink(t.place.path[0]);
    unlink(t.place.path[1]);
    uint64_t least = shore_fleet_memory_least_bytes(t.plain.layout, &t.options);
    must(&t, shore_arena_open(least - (1u << 20), 0, &t.options.arena, &t.diag));
    assert_int_equal(shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag), -ENOMEM);
    says(&t, t.place.path[1]);
    assert_int_not_equal(access(t.place.path[0], F_OK), 0);
    assert_int_not_equal(access(t.place.path[1], F_OK), 0);
    shore_arena_close(t.options.arena);
    must(&t, shore_arena_open(least, 0, &t.options.arena, &t.diag));
    must(&t, shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag));
    stop(&t);
    shore_arena_close(t.options.arena);
    finish(&t);
}

static void an_unfinished_fleet_is_made_again(void **state) {
    struct fault t;
    start(&t, "f");
    stop(&t);
    unlink(t.place.path[0]);
    must(&t, shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag));
    unsigned char digest[16];
    must(&t, shore_fleet_init_block(t.fleet, 0, 0, 1, t.plain.master[0], NULL, NULL, &t.diag));
    assert_int_equal(shore_fleet_seal(t.fleet, 0, &t.diag), -EINVAL);
    says(&t, "initial state");
    assert_int_equal(open_again(&t), SHORE_EMISSING);
    says(&t, "make it again");
    must(&t, shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag));
    must(&t, fleet_init(t.fleet, &t.plain, &t.diag));
    must(&t, shore_fleet_digest(t.fleet, false, digest, &t.diag));
    assert_digest(t.fleet, &t.plain, true);
    finish(&t);
}

/* Cut off, made again with other shares, and cut off before its second drive: nothing of that is in the way. */
static void a_making_that_is_cut_off_twice_is_made_again(void **state) {
    static const char *const speeds[] = {"1,1", "3,1"};
    struct fault t;
    char first[200];
    start(&t, "ff");
    stop(&t);
    snprintf(first, sizeof first, "%s/first", t.place.directory);
    unlink(t.place.path[0]);
    unlink(t.place.path[1]);
    for (int i = 0; i < 2; i++) {
        t.options.drive_speeds = speeds[i];
        must(&t, shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag));
        stop(&t);
        if (i == 0) copy_file(t.place.path[1], first);
    }
    copy_file(first, t.place.path[1]);
    unlink(first);
    assert_int_equal(open_again(&t), SHORE_EMISSING);
    says(&t, "make it again");
    must(&t, shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag));
    must(&t, fleet_init(t.fleet, &t.plain, &t.diag));
    must(&t, open_again(&t));
    step(&t);
    assert_digest(t.fleet, &t.plain, true);
    finish(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_drive_is_named),
        cmocka_unit_test(a_drive_from_a_copy_is_stale),
        cmocka_unit_test(a_fleet_from_a_copy_is_older_than_its_hint),
        cmocka_unit_test(a_drive_in_use_is_refused),
        cmocka_unit_test(drives_of_two_fleets_do_not_mix),
        cmocka_unit_test(nothing_is_replaced_unasked),
        cmocka_unit_test(a_fleet_that_memory_is_short_for_leaves_nothing),
        cmocka_unit_test(an_unfinished_fleet_is_made_again),
        cmocka_unit_test(a_making_that_is_cut_off_twice_is_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
