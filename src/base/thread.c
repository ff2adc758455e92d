#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct start {
    void *(*run)(void *);
    void *ctx;
    char name[16];
};

static void *begin(void *arg) {
    struct start start = *(struct start *)arg;
    free(arg);
    pthread_setname_np(pthread_self(), start.name);
    return start.run(start.ctx);
}

int shore__thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *ctx) {
    struct start *start = malloc(sizeof *start);
    if (!start) return -ENOMEM;
    start->run = run;
    start->ctx = ctx;
    snprintf(start->name, sizeof start->name, "%s", name);

    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);
    if (rc != 0) {
        free(start);
        return -rc;
    }
    /* a new thread inherits the mask, so it never takes a signal */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_attr_setstacksize(&attr, SHORE__THREAD_STACK_BYTES);
    if (rc == 0) rc = pthread_create(thread, &attr, begin, start);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc != 0) free(start);
    return -rc;
}

void shore__cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}
