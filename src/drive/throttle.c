#include "drive/throttle.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/diag.h"
#include "base/units.h"

#define NS_PER_SECOND 1000000000u

void shore__bucket_init(struct shore__bucket *bucket, uint64_t rate) {
    *bucket = (struct shore__bucket){.rate = rate};
    pthread_mutex_init(&bucket->lock, NULL);
}

void shore__bucket_fini(struct shore__bucket *bucket) {
    pthread_mutex_destroy(&bucket->lock);
}

uint64_t shore__bucket_reserve(struct shore__bucket *bucket, uint64_t now_ns, uint64_t units) {
    pthread_mutex_lock(&bucket->lock);
    bucket->units += units;
    if (!bucket->rate) {
        pthread_mutex_unlock(&bucket->lock);
        return now_ns;
    }
    if (bucket->free_ns < now_ns) {
        /* it was idle: that time is lost */
        bucket->free_ns = now_ns;
        bucket->rest = 0;
    }
    unsigned __int128 work = (unsigned __int128)units * NS_PER_SECOND + bucket->rest;
    uint64_t ns = (uint64_t)(work / bucket->rate);
    bucket->rest = (uint64_t)(work % bucket->rate);
    bucket->busy_ns += ns;
    bucket->free_ns += ns;
    uint64_t instant = bucket->free_ns;
    pthread_mutex_unlock(&bucket->lock);
    return instant;
}

struct throttled_drive {
    struct shore__bucket read, write, mixed, compute;
};

struct shore__throttle {
    struct shore__emulation emulation;
    struct shore__bucket link[2], host_update, gpu;
    uint32_t ndrives;
    struct throttled_drive drive[];
};

const struct shore__emulated_drive *shore__emulation_drive(const struct shore__emulation *e, uint32_t drive) {
    if (!e || !e->ndrives) return NULL;
    return &e->drive[drive < e->ndrives ? drive : e->ndrives - 1];
}

int shore__throttle_open(const struct shore__emulation *e, uint32_t ndrives, struct shore__throttle **out,
                         struct shore_diag *diag) {
    struct shore__throttle *t = calloc(1, sizeof *t + ndrives * sizeof t->drive[0]);
    if (!t) return shore__fail(diag, -ENOMEM, "out of memory");
    t->emulation = *e;
    t->ndrives = ndrives;
    for (int i = 0; i < 2; i++)
        shore__bucket_init(&t->link[i], e->link[i]);
    shore__bucket_init(&t->host_update, e->host_update);
    shore__bucket_init(&t->gpu, NS_PER_SECOND); /* its units are nanoseconds */
    for (uint32_t d = 0; d < ndrives; d++) {
        struct shore__emulated_drive none = {0};
        const struct shore__emulated_drive *as = shore__emulation_drive(e, d);
        if (!as) as = &none;
        shore__bucket_init(&t->drive[d].read, as->read);
        shore__bucket_init(&t->drive[d].write, as->write);
        shore__bucket_init(&t->drive[d].mixed, as->mixed);
        shore__bucket_init(&t->drive[d].compute, as->compute);
    }
    *out = t;
    return 0;
}

void shore__throttle_close(struct shore__throttle *t) {
    if (!t) return;
    for (int i = 0; i < 2; i++)
        shore__bucket_fini(&t->link[i]);
    shore__bucket_fini(&t->host_update);
    shore__bucket_fini(&t->gpu);
    for (uint32_t d = 0; d < t->ndrives; d++) {
        shore__bucket_fini(&t->drive[d].read);
        shore__bucket_fini(&t->drive[d].write);
        shore__bucket_fini(&t->drive[d].mixed);
        shore__bucket_fini(&t->drive[d].compute);
    }
    free(t);
}

const struct shore__emulation *shore__throttle_emulation(const struct shore__throttle *t) {
    return t ? &t->emulation : NULL;
}

/* Of an update that reads as much as it writes: bytes moved in a second, computing at the same time. */
static uint64_t update_speed(const struct shore__emulated_drive *d) {
    double seconds = 0; /* for a byte read, computed and written */
    const double rates[4] = {(double)d->read, (double)d->write, (double)d->mixed / 2, (double)d->compute * 12 / 16};
    for (int i = 0; i < 4; i++)
        if (rates[i] > 0 && 1 / rates[i] > seconds) seconds = 1 / rates[i];
    const uint64_t no_limit = UINT64_C(1) << 40;
    return seconds > 0 ? 1 + (uint64_t)(2 / seconds) : no_limit;
}

bool shore__throttle_speeds(const struct shore__throttle *t, uint32_t ndrives, uint64_t *speeds) {
    if (!t || !t->emulation.ndrives) return false;
    for (uint32_t d = 0; d < ndrives; d++)
        speeds[d] = update_speed(shore__emulation_drive(&t->emulation, d));
    return true;
}

uint64_t shore__throttle_link(struct shore__throttle *t, enum shore__link_direction direction, uint64_t bytes) {
    return shore__bucket_reserve(&t->link[t->emulation.link_shared ? 0 : direction], shore__now_ns(), bytes);
}

uint64_t shore__throttle_io(struct shore__throttle *t, uint32_t drive, bool write, uint64_t bytes) {
    if (drive >= t->ndrives) return 0;
    struct throttled_drive *d = &t->drive[drive];
    uint64_t now = shore__now_ns();
    uint64_t alone = shore__bucket_reserve(write ? &d->write : &d->read, now, bytes);
    uint64_t mixed = shore__bucket_reserve(&d->mixed, now, bytes);
    return alone > mixed ? alone : mixed;
}

uint64_t shore__throttle_compute(struct shore__throttle *t, uint32_t drive, uint64_t elems) {
    if (drive >= t->ndrives) return 0;
    return shore__bucket_reserve(&t->drive[drive].compute, shore__now_ns(), elems * SHORE__COMPUTE_BYTES_PER_ELEM);
}

uint64_t shore__throttle_host_update(struct shore__throttle *t, uint64_t elems) {
    return shore__bucket_reserve(&t->host_update, shore__now_ns(), elems * SHORE__COMPUTE_BYTES_PER_ELEM);
}

uint64_t shore__throttle_host(struct shore__throttle *t, uint64_t start_ns, uint64_t ns) {
    return shore__bucket_reserve(&t->gpu, start_ns, ns);
}

static double seconds_of(const struct shore__bucket *bucket) {
    struct shore__bucket *b = (struct shore__bucket *)(uintptr_t)bucket;
    pthread_mutex_lock(&b->lock);
    uint64_t ns = b->busy_ns;
    pthread_mutex_unlock(&b->lock);
    return (double)ns * 1e-9;
}

static double greater(double a, double b) {
    return a > b ? a : b;
}

void shore__throttle_busy(const struct shore__throttle *t, struct shore__busy *out) {
    *out = (struct shore__busy){.gpu = seconds_of(&t->gpu), .host_update = seconds_of(&t->host_update)};
    out->link = greater(seconds_of(&t->link[0]), seconds_of(&t->link[1]));
    for (uint32_t d = 0; d < t->ndrives; d++) {
        out->drive_read = greater(out->drive_read, seconds_of(&t->drive[d].read));
        out->drive_write = greater(out->drive_write, seconds_of(&t->drive[d].write));
        out->drive_mixed = greater(out->drive_mixed, seconds_of(&t->drive[d].mixed));
        out->drive_compute = greater(out->drive_compute, seconds_of(&t->drive[d].compute));
    }
}

uint64_t shore__throttle_link_bytes(const struct shore__throttle *t) {
    return t->link[0].units + t->link[1].units;
}

void shore__sleep_until(uint64_t instant_ns) {
    struct timespec at = {.tv_sec = (time_t)(instant_ns / NS_PER_SECOND),
                          .tv_nsec = (long)(instant_ns % NS_PER_SECOND)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
    }
}
