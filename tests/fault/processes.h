/* Processes of a test that are killed: they are started and waited for here, and time is counted for the kill. */
#ifndef TESTS_FAULT_PROCESSES_H
#define TESTS_FAULT_PROCESSES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "longshore/error.h"

/* Work in a process of its own, since threads of OpenMP do not survive a fork. Returns at once. */
static inline pid_t start(int (*work)(struct shore_diag *diag)) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct shore_diag diag = {0};
        int rc = work(&diag);
        if (rc < 0) fprintf(stderr, "%d: %s\n", rc, diag.text);
        _exit(rc < 0 ? 1 : 0);
    }
    return pid;
}

/* Waits for its end. Returns its status, as waitpid() gives it. */
static inline int finished(pid_t pid) {
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* Removes the run "run" by this work, after a kill. left: there was at least a part of it. */
static inline void clear_away(int (*take_away)(struct shore_diag *diag), bool left) {
    int removed = finished(start(take_away));
    if (access("run", F_OK) == 0) /* killed before there was anything in it */
        assert_int_equal(rmdir("run"), 0);
    else
        assert_true(removed == 0 || !left);
}

static inline uint64_t microseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

#endif
