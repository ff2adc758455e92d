/* A child that is forked off beside open drives, and what descriptors it has. */
#ifndef TESTS_FORKED_H
#define TESTS_FORKED_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { DESCRIPTORS = 256 };

static inline void descriptors(bool open[DESCRIPTORS]) {
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        open[fd] = fcntl(fd, F_GETFD) >= 0;
}

struct child {
    pid_t pid;
    int left, end; /* says whether it has exactly what it is to have; is closed when it may end */
};

/* leave(what) is all that it does. kept: what it is to have then. */
static inline struct child child_that_leaves(void (*leave)(void *what), void *what, const bool kept[DESCRIPTORS]) {
    int left[2], end[2];
    bool now[DESCRIPTORS];
    assert_true(pipe(left) == 0 && pipe(end) == 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char byte;
        leave(what);
        descriptors(now);
        now[left[0]] = now[left[1]] = now[end[0]] = now[end[1]] = false;
        byte = memcmp(now, kept, sizeof now) ? 'n' : 'y';
        for (int fd = 0; fd < DESCRIPTORS; fd++)
            if (now[fd] != kept[fd]) fprintf(stderr, "descriptor %d is %s\n", fd, now[fd] ? "kept" : "closed");
        close(end[1]);
        if (write(left[1], &byte, 1) == 1 && read(end[0], &byte, 1) == 0) _exit(0);
        _exit(1);
    }
    close(left[1]);
    close(end[0]);
    char said = 0;
    assert_int_equal(read(left[0], &said, 1), 1);
    assert_int_equal(said, 'y');
    return (struct child){pid, left[0], end[1]};
}

static inline void child_ends(struct child c) {
    int status = 0;
    close(c.end);
    close(c.left);
    assert_int_equal(waitpid(c.pid, &status, 0), c.pid);
    assert_int_equal(status, 0);
}

#endif
