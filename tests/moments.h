/* A device of which a test says how far it has come. Copies are made, in order, when it comes past them. */
#ifndef TESTS_MOMENTS_H
#define TESTS_MOMENTS_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/diag.h"
#include "base/thread.h"
#include "longshore/device.h"

enum { MOMENTS_COPIES = 64 };

struct moments {
    struct shore_device device;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct {
        void *to;
        const void *from;
        size_t bytes;
    } copy[MOMENTS_COPIES]; /* of those that are called for and not passed */
    uint64_t called, passed, waits;
    bool by_itself; /* it comes as far as somebody waits for it */
    bool stuck;     /* who waits, waits for longer than is allowed */
    int failed;
};

static inline void moments_go(struct moments *m, uint64_t position) {
    for (; m->passed < position; m->passed++)
        if (m->copy[m->passed % MOMENTS_COPIES].bytes)
            memcpy(m->copy[m->passed % MOMENTS_COPIES].to, m->copy[m->passed % MOMENTS_COPIES].from,
                   m->copy[m->passed % MOMENTS_COPIES].bytes);
    pthread_cond_broadcast(&m->changed);
}
static inline void moments_pass(struct moments *m, uint64_t position) {
    pthread_mutex_lock(&m->mutex);
    moments_go(m, position);
    pthread_mutex_unlock(&m->mutex);
}

/* Copies that have not passed. */
static inline uint64_t moments_under_way(struct moments *m) {
    pthread_mutex_lock(&m->mutex);
    uint64_t count = m->called - m->passed;
    pthread_mutex_unlock(&m->mutex);
    return count;
}

static inline int moments_get(void *ctx, void *stream, void *to, uint64_t from, size_t bytes) {
    struct moments *m = ctx;
    pthread_mutex_lock(&m->mutex);
    if (m->called - m->passed == MOMENTS_COPIES) moments_go(m, m->passed + 1);
    m->copy[m->called % MOMENTS_COPIES].to = to;
    m->copy[m->called % MOMENTS_COPIES].from = (const void *)(uintptr_t)from;
    m->copy[m->called % MOMENTS_COPIES].bytes = bytes;
    m->called++;
    pthread_mutex_unlock(&m->mutex);
    return 0;
}

static inline struct shore_event moments_record(void *ctx, void *stream) {
    struct moments *m = ctx;
    pthread_mutex_lock(&m->mutex);
    const struct shore_event event = {m, m->called};
    pthread_mutex_unlock(&m->mutex);
    return event;
}

/* A copy, and the event behind it. */
static inline struct shore_event moments_copy(struct moments *m, void *to, const void *from, size_t bytes) {
    moments_get(m, m, to, (uintptr_t)from, bytes);
    return moments_record(m, m);
}

static inline int moments_wait(void *ctx, struct shore_event event, uint64_t timeout_ns, struct shore_diag *diag) {
    struct moments *m = ctx;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)((timeout_ns + (uint64_t)until.tv_nsec) / 1000000000);
    until.tv_nsec = (long)((timeout_ns + (uint64_t)until.tv_nsec) % 1000000000);
    pthread_mutex_lock(&m->mutex);
    m->waits += timeout_ns && m->passed < event.position;
    pthread_cond_broadcast(&m->changed);
    if (timeout_ns && m->by_itself) moments_go(m, event.position);
    int late = timeout_ns ? 0 : ETIMEDOUT;
    while (m->passed < event.position && (!late || (timeout_ns && m->stuck))) {
        if (m->stuck)
            pthread_cond_wait(&m->changed, &m->mutex);
        else
            late = pthread_cond_timedwait(&m->changed, &m->mutex, &until);
    }
    int rc = m->passed < event.position ? -ETIMEDOUT : m->failed;
    pthread_mutex_unlock(&m->mutex);
    return rc == -ETIMEDOUT || !rc ? rc : shore__fail(diag, rc, "a copy has failed");
}

static inline void moments_open(struct moments *m) {
    *m = (struct moments){
        .device = {
            .size = sizeof m->device, .ctx = m, .get = moments_get, .record = moments_record, .wait = moments_wait}};
    pthread_mutex_init(&m->mutex, NULL);
    shore__cond_init(&m->changed);
}
static inline void moments_close(struct moments *m) {
    pthread_mutex_destroy(&m->mutex);
    pthread_cond_destroy(&m->changed);
}

#endif
