/* Waits for events of devices, with a time limit: an event of a lost device never passes. A watch is a thread that
 * waits for events one after the other. */
#include "base/events.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/diag.h"
#include "base/thread.h"

struct shore_watch {
    struct shore_device *device;
    pthread_t thread;
    pthread_mutex_t mutex;       /* of all that follows */
    pthread_cond_t changed;      /* an event is expected, or has passed; the watch ends, or has ended */
    struct shore__fifo expected; /* events */
    uint64_t stood_at;           /* how many events were expected so far when somebody waited last */
    int failed;                  /* the first failure */
    struct shore_diag why;
    bool ends, ended;
    unsigned holders; /* the thread, and the device: the last one frees it */
};

static uint64_t timeout_of(const struct shore_device *device) {
    return device->timeout_ns ? device->timeout_ns : SHORE_DEVICE_TIMEOUT_NS;
}

static bool is_lost(const struct shore_device *device) {
    return __atomic_load_n(&device->lost, __ATOMIC_ACQUIRE);
}

static int lost(struct shore_device *device, struct shore_diag *diag) {
    __atomic_store_n(&device->lost, 1, __ATOMIC_RELEASE);
    shore__fail(
        diag, -ETIMEDOUT,
        "the device is lost: it has not finished its work within %g seconds; the state stays at the last commit",
        (double)timeout_of(device) * 1e-9);
    return shore__advise(diag, -ETIMEDOUT, SHORE_ADVICE_DEVICE_TIMEOUT, NULL);
}

/* ---- what waits ------------------------------------------------------------------------------------------------- */

bool shore__fifo_add(struct shore__fifo *f, const void *item, size_t bytes) {
    if (f->count == f->room) {
        void *larger = realloc(f->items, (2 * f->count + 8) * bytes);
        if (!larger) return false;
        f->items = larger;
        f->room = 2 * f->count + 8;
    }
    memcpy((char *)f->items + f->count++ * bytes, item, bytes);
    return true;
}

void shore__fifo_take(struct shore__fifo *f, void *item, size_t bytes) {
    assert(f->count);
    memcpy(item, f->items, bytes);
    memmove(f->items, (char *)f->items + bytes, --f->count * bytes);
    f->taken++;
}

/* ---- the watch --------------------------------------------------------------------------------------------------- */

/* How many events have left when this one has passed; 0: out of memory. The caller holds the mutex. */
static uint64_t expect(struct shore_watch *w, struct shore_event event) {
    const struct shore_event *expected = w->expected.items;
    for (size_t i = 0; i < w->expected.count; i++)
        if (expected[i].stream == event.stream && expected[i].position >= event.position)
            return w->expected.taken + i + 1;
    if (!shore__fifo_add(&w->expected, &event, sizeof event)) return 0;
    pthread_cond_broadcast(&w->changed);
    return w->expected.taken + w->expected.count;
}

/* Gives up one hold; the mutex is held, and is not any more. */
static void let_go(struct shore_watch *w) {
    bool last = --w->holders == 0;
    pthread_mutex_unlock(&w->mutex);
    if (!last) return;
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->changed);
    free(w->expected.items);
    free(w);
}

/* Whether this is the watch's own thread. */
static bool is_own(const struct shore_watch *w) {
    return pthread_equal(pthread_self(), w->thread);
}

/* Waits for the first event that is expected. The device may be gone when it returns, if the watch ends. */
static void wait_for_first(struct shore_watch *w) {
    struct shore_event event = shore__fifo_event(&w->expected);
    struct shore_diag why = {.text = ""};
    pthread_mutex_unlock(&w->mutex);
    int rc = w->device->wait(w->device->ctx, event, timeout_of(w->device), &why);
    pthread_mutex_lock(&w->mutex);
    shore__fifo_take(&w->expected, &event, sizeof event);
    if (rc && !w->failed) {
        w->failed = rc;
        w->why = why;
    }
    pthread_cond_broadcast(&w->changed);
}

static void *watch(void *ctx) {
    struct shore_watch *w = ctx;
    pthread_mutex_lock(&w->mutex);
    while (!w->ends) {
        if (w->expected.count && w->failed != -ETIMEDOUT)
            wait_for_first(w);
        else
            pthread_cond_wait(&w->changed, &w->mutex);
    }
    w->ended = true;
    pthread_cond_broadcast(&w->changed);
    let_go(w);
    return NULL;
}

int shore_device_watch(struct shore_device *device, struct shore_diag *diag) {
    assert(!device->watch);
    struct shore_watch *w = calloc(1, sizeof *w);
    if (!w) return shore__fail(diag, -ENOMEM, "out of memory for the watch of a device");
    w->device = device;
    w->holders = 2;
    pthread_mutex_init(&w->mutex, NULL);
    shore__cond_init(&w->changed);
    int rc = shore__thread_start(&w->thread, "shore-watch", watch, w);
    if (!rc) {
        device->watch = w;
        return 0;
    }
    w->holders = 1;
    pthread_mutex_lock(&w->mutex);
    let_go(w);
    return shore__fail(diag, rc, "the watch of a device cannot be started: %s", shore_error_text(rc));
}

static struct timespec after(uint64_t ns) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    ns += (uint64_t)at.tv_nsec;
    at.tv_sec += (time_t)(ns / 1000000000);
    at.tv_nsec = (long)(ns % 1000000000);
    return at;
}

void shore_device_unwatch(struct shore_device *device) {
    struct shore_watch *w = device->watch;
    if (!w) return;
    device->watch = NULL;
    const struct timespec until = after(is_lost(device) ? 0 : timeout_of(device));
    pthread_mutex_lock(&w->mutex);
    w->ends = true;
    pthread_cond_broadcast(&w->changed);
    while (!is_own(w) && !w->ended && pthread_cond_timedwait(&w->changed, &w->mutex, &until) != ETIMEDOUT) {
    }
    bool ended = w->ended;
    pthread_t thread = w->thread;
    let_go(w);
    if (ended)
        pthread_join(thread, NULL);
    else
        pthread_detach(thread); /* a device that never answers keeps it, or it has called this itself */
}

void shore__device_expect(struct shore_device *device, struct shore_event event) {
    struct shore_watch *w = event.stream ? device->watch : NULL;
    if (!w) return;
    pthread_mutex_lock(&w->mutex);
    if (!w->failed) expect(w, event);
    pthread_mutex_unlock(&w->mutex);
}

/* Waits until the watch has seen the event, or has failed, or nothing has passed for as long as the device may take. */
static int wait_for_watch(struct shore_device *device, struct shore_event event, struct shore_diag *diag) {
    struct shore_watch *w = device->watch;
    struct timespec until = after(timeout_of(device));
    pthread_mutex_lock(&w->mutex);
    uint64_t before = w->expected.taken, last = w->failed ? before : expect(w, event);
    uint64_t asked = before + w->expected.count;
    if (!w->failed && w->stood_at != asked) __atomic_add_fetch(&device->waits, 1, __ATOMIC_RELAXED);
    w->stood_at = asked;
    while (w->expected.taken < last && !w->failed) {
        if (pthread_cond_timedwait(&w->changed, &w->mutex, &until) == ETIMEDOUT) break;
        if (w->expected.taken > before) until = after(timeout_of(device));
        before = w->expected.taken;
    }
    int rc = w->failed ? w->failed : w->expected.taken < last ? -ETIMEDOUT : 0;
    if (w->failed && diag) *diag = w->why;
    bool waits = last || w->failed;
    pthread_mutex_unlock(&w->mutex);
    return waits ? rc : device->wait(device->ctx, event, timeout_of(device), diag);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

int shore_device_wait(struct shore_device *device, struct shore_event event, struct shore_diag *diag) {
    if (!event.stream) return 0;
    int rc = is_lost(device) ? -ETIMEDOUT : device->wait(device->ctx, event, 0, diag);
    if (rc == -ETIMEDOUT && !is_lost(device) && device->watch && !is_own(device->watch)) {
        rc = wait_for_watch(device, event, diag);
    } else if (rc == -ETIMEDOUT && !is_lost(device)) {
        __atomic_add_fetch(&device->waits, 1, __ATOMIC_RELAXED);
        rc = device->wait(device->ctx, event, timeout_of(device), diag);
    }
    return rc == -ETIMEDOUT ? lost(device, diag) : rc;
}

bool shore_device_passed(struct shore_device *device, struct shore_event event) {
    if (!event.stream) return true;
    if (is_lost(device)) return false;
    return device->wait(device->ctx, event, 0, NULL) != -ETIMEDOUT;
}
