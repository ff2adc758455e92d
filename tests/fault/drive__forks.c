/* A child that is forked off closes what a fleet has open and nothing else; its parent's goes on, under its locks. */
#include "drive/fleet/fleet.h"
#include "fault/faulty_fleet.h"
#include "fault/forked.h"

static void leave(void *fleet) {
    shore__fleet_forked(fleet);
}

static void forked(const char *kinds, enum shore_io io) {
    struct fault t;
    bool kept[DESCRIPTORS];
    start(&t, kinds);
    step(&t);
    stop(&t);
    descriptors(kept);
    t.options.io = io;
    must(&t, shore_fleet_open(t.plain.layout, &t.options, &t.fleet, &t.diag));
    int others = open("/dev/null", O_RDONLY | O_CLOEXEC); /* of somebody else, while the fleet is open */
    assert_true(others >= 0 && others < DESCRIPTORS);
    kept[others] = true;
    struct child child = child_that_leaves(leave, t.fleet, kept);
    step(&t);
    struct shore_fleet *second = NULL;
    assert_int_equal(shore_fleet_open(t.plain.layout, &t.options, &second, &t.diag), SHORE_EBUSY);
    step(&t);
    assert_digest(t.fleet, &t.plain, true);
    must(&t, open_again(&t)); /* with the child still there */
    assert_digest(t.fleet, &t.plain, true);
    child_ends(child);
    close(others);
    finish(&t);
}

static void files_by_threads(void **state) {
    forked("ff", SHORE_IO_THREADS);
}

static void files_by_the_best_way(void **state) {
    forked("f", SHORE_IO_AUTO);
}

static void a_server_and_memory(void **state) {
    forked("fu", SHORE_IO_AUTO);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_by_threads), cmocka_unit_test(files_by_the_best_way),
                                       cmocka_unit_test(a_server_and_memory)};
    server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return failed;
}
