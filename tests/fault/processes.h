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

static inline uint64_t microseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

#endif
