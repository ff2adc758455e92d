/* Limits of containers, from files as the kernel lays them out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/limits.h"

static char root[64];

static int make_root(void **state) {
    strcpy(root, "/tmp/longshore-machine-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void put(const char *file, const char *text) {
    char path[512];
    int n = snprintf(path, sizeof path, "%s/%s", root, file);
    assert_true(n > 0 && (size_t)n < sizeof path);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void expect(double quota, uint64_t memory_bytes) {
    struct shore__limits limits;
    shore__limits_read(root, &limits);
    assert_true(limits.quota == quota);
    assert_int_equal(limits.memory_bytes, memory_bytes);
}

static void nothing_that_can_be_read_is_no_limit(void **state) {
    expect((double)INFINITY, UINT64_MAX);
    put("proc/self/cgroup", "no colons\n:\n::\n0::\n");
    expect((double)INFINITY, UINT64_MAX);
}

static void the_tightest_group_on_the_way_up_counts(void **state) {
    put("proc/self/cgroup", "0::/pod/box/job\n");
    put("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
    put("sys/fs/cgroup/pod/memory.max", "9000\n");
    put("sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/pod/box/memory.max", "max\n");
    put("sys/fs/cgroup/pod/box/job/cpu.max", "800000 200000\n");
    put("sys/fs/cgroup/pod/box/job/memory.max", "10000\n");
    expect(1.5, 9000);
    put("sys/fs/cgroup/pod/box/job/cpu.max", "20000 40000\n");
    put("sys/fs/cgroup/pod/box/job/memory.max", "8000\n");
    expect(0.5, 8000);
    /* what is above the mount is not ours */
    put("sys/fs/cpu.max", "1000 100000\n");
    expect(0.5, 8000);
}

static void a_group_that_is_not_mounted_has_the_limits_of_the_root(void **state) {
    put("proc/self/cgroup", "12:memory:/docker/0123\n7:cpu,cpuacct:/docker/0123\n1:name=systemd:/docker/0123\n0::/\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n");
    expect(2.5, 4096);
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    expect((double)INFINITY, UINT64_C(9223372036854771712));
}

static void what_is_no_quota_is_none(void **state) {
    static const char *const bad[] = {"", "max", "max 100000", "100000", "0 0", "5 0", "0 100000", "-1 100000", "x 1"};
    put("proc/self/cgroup", "0::/a\n");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put("sys/fs/cgroup/a/cpu.max", bad[i]);
        expect((double)INFINITY, UINT64_MAX);
    }
}

static void long_names_do_no_harm(void **state) {
    static char line[8000];
    memset(line, 'a', sizeof line - 1);
    memcpy(line, "0::/", 4);
    put("proc/self/cgroup", line);
    put("sys/fs/cgroup/cpu.max", "300000 100000\n");
    expect(3, UINT64_MAX);
}

static void threads_are_whole_and_at_least_one(void **state) {
    static const struct {
        unsigned processors;
        double quota;
        unsigned threads;
    } cases[] = {{8, (double)INFINITY, 8},
                 {8, 8, 8},
                 {8, 16, 8},
                 {8, 2, 2},
                 {8, 2.5, 3},
                 {8, 0.5, 1},
                 {8, 0.01, 1},
                 {1, 0.5, 1},
                 {2, 1.01, 2},
                 {0, 4, 1},
                 {4, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(shore__threads_within(cases[i].processors, cases[i].quota), cases[i].threads);
}

static void this_machine_has_some(void **state) {
    unsigned threads = shore__machine_threads();
    assert_true(threads >= 1 && threads <= shore__machine_processors());
    assert_true(shore__machine_memory_bytes() > 0);
}

#define IN_A_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_ROOT(nothing_that_can_be_read_is_no_limit),
        IN_A_ROOT(the_tightest_group_on_the_way_up_counts),
        IN_A_ROOT(a_group_that_is_not_mounted_has_the_limits_of_the_root),
        IN_A_ROOT(what_is_no_quota_is_none),
        IN_A_ROOT(long_names_do_no_harm),
        cmocka_unit_test(threads_are_whole_and_at_least_one),
        cmocka_unit_test(this_machine_has_some),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
