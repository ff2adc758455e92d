/* A run of another program is made by a process that is killed at random instants; the same calls must then make it,
 * and whatever is left can be removed. */
#include <errno.h>
#include <signal.h>

#include "base/prng.h"
#include "fault/processes.h"
#include "unit/run/of_program.h"

#if defined(__SANITIZE_THREAD__)
enum { KILLS = 6 };
#else
enum { KILLS = 30 };
#endif

static int make(struct shore_diag *diag) {
    struct shore_run *run = NULL;
    const struct shore_fleet_options options = fleet_of_program(two_drives, 2);
    int rc = begin_run("run", &options, &run, diag);
    if (rc == 0) rc = shore_run_seal(run, 0, diag);
    shore_run_close(run);
    return rc;
}

static int look(struct shore_diag *diag) {
    struct shore_run *run = NULL;
    unsigned char digest[16];
    int rc = shore_run_open("run", NULL, &run, diag);
    if (rc == 0) rc = shore_fleet_digest(shore_run_fleet(run), true, digest, diag);
    shore_run_close(run);
    return rc;
}

static int take_away(struct shore_diag *diag) {
    return shore_run_remove("run", NULL, diag);
}

static void is_gone(void) {
    assert_false(exists("run") || has_volume("drive0") || has_volume("drive1"));
}

static void kill_at(uint64_t microsecond) {
    pid_t pid = start(make);
    usleep((useconds_t)microsecond);
    kill(pid, SIGKILL);
    finished(pid);
}

/* Also one that a kill kept from its place; whoever opens it finishes it. */
static bool is_whole(void) {
    return shore__is_run("run") || shore__run_is_half_replaced("run");
}

static void is_made_again_by_the_same_calls(void **state) {
    const uint64_t seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : microseconds(), begun = microseconds();
    printf("SEED=%llu\n", (unsigned long long)seed);
    assert_int_equal(finished(start(make)), 0);
    const uint64_t taken = microseconds() - begun;
    assert_int_equal(finished(start(look)), 0);
    assert_int_equal(finished(start(take_away)), 0);
    is_gone();
    for (uint64_t i = 0; i < KILLS; i++) {
        /* killed up to three times in a row */
        for (uint64_t k = 0; k <= i % 3; k++)
            if (!is_whole()) kill_at((uint64_t)(shore__random_unit(seed, i, k) * 1.2 * (double)taken));
        bool left = exists("run");
        /* every fourth one is removed as it is */
        if (i % 4 && !is_whole()) assert_int_equal(finished(start(make)), 0);
        if (is_whole()) {
            assert_int_equal(finished(start(look)), 0);
            assert_false(exists("run/making"));
            left = true;
        }
        clear_away(take_away, left);
        is_gone();
    }
}

static int group_open(void **state) {
    if (scratch_open(state) < 0) return -1;
    return mkdir("drive0", 0755) || mkdir("drive1", 0755) ? -1 : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_made_again_by_the_same_calls)};
    return cmocka_run_group_tests(tests, group_open, scratch_close);
}
