#include "drive/recorder.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/units.h"

enum {
    SPANS_MOST = 32768, /* of a buffer */
    LANE_SPANS = 24576, /* of them: the rest is for charges, steps, and the last span of each lane */
    STEPS_LEAST = 64,   /* that have room, whatever else was recorded */
    GRAIN_NS = 1000000, /* spans of a lane that follow one another become one, up to this length */
    GRAIN_NS_MOST = 1 << 30,
};

struct lane {
    struct shore__work_span span; /* not yet in the buffer */
    bool open;
    uint64_t end_ns; /* when it last worked */
};

struct shore__recorder {
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t due;
    uint32_t ndrives;
    uint64_t grain_ns;
    struct shore__work_span *filling, *taken;
    uint32_t count, steps; /* in filling */
    uint64_t lost;
    bool ending;
    struct lane charges;
    struct lane lanes[]; /* of each drive, then those of none */
};

static size_t head_bytes(uint32_t ndrives) {
    return sizeof(struct shore__recorder) + ((size_t)ndrives + 1) * SHORE_LANES * sizeof(struct lane);
}

size_t shore__recorder_bytes(uint32_t ndrives) {
    return head_bytes(ndrives) + 2 * SPANS_MOST * sizeof(struct shore__work_span);
}

int shore__recorder_open(uint32_t ndrives, struct shore__recorder **out) {
    struct shore__recorder *r = *out = calloc(1, head_bytes(ndrives));
    if (!r) return -ENOMEM;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->due, NULL);
    r->ndrives = ndrives;
    r->grain_ns = GRAIN_NS;
    r->filling = calloc(SPANS_MOST, sizeof *r->filling);
    r->taken = calloc(SPANS_MOST, sizeof *r->taken);
    if (r->filling && r->taken) return 0;
    shore__recorder_close(r);
    *out = NULL;
    return -ENOMEM;
}

void shore__recorder_close(struct shore__recorder *r) {
    if (!r) return;
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->due);
    free(r->filling);
    free(r->taken);
    free(r);
}

static bool put(struct shore__recorder *r, const struct shore__work_span *span) {
    bool room = r->count < SPANS_MOST - (span->kind == SHORE__SPAN_STEP ? 0 : STEPS_LEAST);
    if (room)
        r->filling[r->count++] = *span;
    else
        r->lost++;
    return room;
}

static void put_open(struct shore__recorder *r, struct lane *l) {
    if (l->open) put(r, &l->span);
    l->open = false;
}

/* Adds to a lane: as part of its last span if they are of one kind and near. */
static void add(struct shore__recorder *r, struct lane *l, struct shore__work_span span, uint64_t gap_ns,
                uint64_t most_ns) {
    if (span.begin_ns < l->end_ns) span.begin_ns = l->end_ns;
    if (span.end_ns < span.begin_ns) span.end_ns = span.begin_ns;
    l->end_ns = span.end_ns;
    bool full = span.kind == SHORE__SPAN_LANE && r->count >= LANE_SPANS;
    bool same = l->open && l->span.what == span.what;
    bool near = same && span.begin_ns <= l->span.end_ns + gap_ns && span.end_ns - l->span.begin_ns <= most_ns;
    if (near || (same && full)) {
        l->span.end_ns = span.end_ns;
        l->span.amount += span.amount;
        r->lost += !near;
        return;
    }
    put_open(r, l);
    l->span = span;
    l->open = true;
}

uint64_t shore__recorder_clock(const struct shore__recorder *r) {
    return r ? shore__now_ns() : 0;
}

void shore__recorder_worked(struct shore__recorder *r, enum shore_lane lane, uint32_t drive, uint64_t begin_ns,
                            uint64_t end_ns, uint64_t amount) {
    if (!r) return;
    struct shore__work_span span = {begin_ns, end_ns, amount, drive, SHORE__SPAN_LANE, (uint16_t)lane};
    uint32_t of = drive < r->ndrives ? drive : r->ndrives;
    if (of == r->ndrives) span.drive = SHORE__NO_DRIVE;
    pthread_mutex_lock(&r->lock);
    add(r, &r->lanes[(size_t)of * SHORE_LANES + lane], span, r->grain_ns / 16, r->grain_ns);
    pthread_mutex_unlock(&r->lock);
}

void shore__recorder_charged(struct shore__recorder *r, unsigned charge, uint64_t begin_ns, uint64_t end_ns) {
    if (!r || end_ns <= begin_ns) return;
    struct shore__work_span span = {begin_ns, end_ns, 0, SHORE__NO_DRIVE, SHORE__SPAN_CHARGE, (uint16_t)charge};
    pthread_mutex_lock(&r->lock);
    add(r, &r->charges, span, 0, UINT64_MAX);
    pthread_mutex_unlock(&r->lock);
}

void shore__recorder_stepped(struct shore__recorder *r, uint64_t step, uint64_t begin_ns, uint64_t end_ns) {
    if (!r) return;
    struct shore__work_span span = {begin_ns, end_ns, step, SHORE__NO_DRIVE, SHORE__SPAN_STEP, 0};
    pthread_mutex_lock(&r->lock);
    put_open(r, &r->charges);
    for (size_t i = 0; i < ((size_t)r->ndrives + 1) * SHORE_LANES; i++)
        put_open(r, &r->lanes[i]);
    r->steps += put(r, &span);
    pthread_cond_signal(&r->due);
    pthread_mutex_unlock(&r->lock);
}

bool shore__recorder_take(struct shore__recorder *r, struct shore__recorded *out) {
    pthread_mutex_lock(&r->lock);
    while (!r->steps && !r->ending)
        pthread_cond_wait(&r->due, &r->lock);
    *out = (struct shore__recorded){r->filling, r->count, r->steps, r->lost};
    if (r->steps) {
        r->filling = r->taken;
        r->taken = (struct shore__work_span *)(uintptr_t)out->spans;
        if (r->lost && r->grain_ns < GRAIN_NS_MOST) r->grain_ns *= 2;
        r->count = r->steps = 0;
        r->lost = 0;
    }
    pthread_mutex_unlock(&r->lock);
    return out->steps;
}

void shore__recorder_end(struct shore__recorder *r) {
    pthread_mutex_lock(&r->lock);
    r->ending = true;
    pthread_cond_signal(&r->due);
    pthread_mutex_unlock(&r->lock);
}
