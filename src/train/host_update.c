#include "train/host_update.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/thread.h"
#include "base/units.h"
#include "drive/chunk.h"
#include "drive/fleet/fleet.h"
#include "number/norm.h"

enum { GRADIENT_BYTES = SHORE_SEGMENT_ELEMS * 4 };

/* Segments of a block that lie in a row on one drive. */
struct span {
    uint32_t block, drive, segment, count;
    uint32_t at; /* index of the first in the chunk */
};

/* FETCHED and STORED: submitted; the waits tell when they are done */
enum chunk_state { CHUNK_FREE, CHUNK_FETCHED, CHUNK_STORED };

struct chunk {
    enum chunk_state state;
    struct span *spans;
    uint32_t nspans, segments;
    unsigned char *image, *gradient;
    struct shore_wait fetch, store;
};

/* Walks the segments of a block: the first of each drive, then the second of each, and so on. */
struct cursor {
    uint32_t block, row, drive;
};

struct work {
    struct shore_fleet *fleet;
    const struct shore__host_update *how;
    size_t state_bytes;
    struct cursor next;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool all_fetched;
    uint64_t stored; /* segments */
    int rc;          /* the first failure, which ends the work */
    struct shore_diag diag;
    struct chunk chunk[SHORE__HOST_BUFFERS_MOST];
};

uint64_t shore__host_update_bytes(size_t state_segment_bytes, uint32_t buffers, uint32_t chunk_segments) {
    return (uint64_t)buffers * chunk_segments * (state_segment_bytes + GRADIENT_BYTES);
}

static void fail(struct work *w, int rc, const struct shore_diag *diag) {
    pthread_mutex_lock(&w->mutex);
    if (!w->rc) {
        w->rc = rc;
        if (diag && diag->text[0])
            w->diag = *diag;
        else
            shore__fail(&w->diag, rc, "the update on the host failed: %s", shore_error_text(rc));
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

/* Waits for the requests of a chunk. */
static int end(struct work *w, struct shore_wait *wait) {
    struct shore_diag diag = {0};
    int rc = shore_wait(wait, &diag);
    if (rc) fail(w, rc, &diag);
    return rc;
}

static void set_state(struct work *w, struct chunk *c, enum chunk_state state) {
    pthread_mutex_lock(&w->mutex);
    assert(state == CHUNK_FREE ? c->state != CHUNK_FETCHED : c->state + 1 == state);
    c->state = state;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

/* ---- which segments ---------------------------------------------------------------------------------------------- */

/* Segments of a block that are updated: of one that rests, none. */
static uint32_t segments_of(const struct shore_fleet *f, uint32_t block) {
    const struct shore_layout_block *b = &f->layout->blocks[block];
    return shore__block_rests(b) ? 0 : b->segments;
}

static bool next_segment(struct work *w, struct span *out) {
    const struct shore_fleet *f = w->fleet;
    struct cursor *c = &w->next;
    for (; c->block < f->layout->nblocks; c->block++, c->row = 0)
        for (; c->row < segments_of(f, c->block); c->row++, c->drive = 0)
            for (; c->drive < f->ndrives; c->drive++) {
                struct shore__range own = f->ranges[(size_t)c->block * f->ndrives + c->drive];
                if (c->row >= own.count) continue;
                *out = (struct span){c->block, c->drive++, own.first + c->row, 1, 0};
                return true;
            }
    return false;
}

static void choose_spans(struct work *w, struct chunk *c) {
    struct span one;
    c->nspans = c->segments = 0;
    while (c->segments < w->how->chunk_segments && next_segment(w, &one)) {
        uint32_t i = 0;
        while (i < c->nspans && (c->spans[i].block != one.block || c->spans[i].drive != one.drive))
            i++;
        if (i == c->nspans)
            c->spans[c->nspans++] = one;
        else
            c->spans[i].count++;
        c->segments++;
    }
    for (uint32_t i = 1; i < c->nspans; i++)
        c->spans[i].at = c->spans[i - 1].at + c->spans[i - 1].count;
}

/* ---- between link and memory ------------------------------------------------------------------------------------- */

/* Ends one request of a wait. rc: nonzero if it was refused, so that it has ended already. */
static void settle(struct shore_wait *wait, int rc) {
    if (rc) shore_wait_end(wait, rc);
}

static void fetch(struct work *w, struct chunk *c) {
    bool half = w->how->form == SHORE_GRADIENT_BF16;
    shore_wait_init(&c->fetch);
    for (uint32_t i = 0; i < c->nspans; i++) {
        const struct span *p = &c->spans[i];
        shore_wait_add(&c->fetch);
        settle(&c->fetch,
               shore_fleet_fetch(w->fleet, w->how->base_step, p->block, p->segment, p->count, SHORE_FETCH_STATE,
                                 c->image + p->at * w->state_bytes, shore_wait_completion(&c->fetch)));
        shore_wait_add(&c->fetch);
        settle(&c->fetch, shore_fleet_fetch(w->fleet, w->how->base_step, p->block, p->segment, p->count,
                                            half ? SHORE_FETCH_SPILLED_BF16 : SHORE_FETCH_SPILLED,
                                            c->gradient + p->at * shore__gradient_segment_bytes(w->how->form),
                                            shore_wait_completion(&c->fetch)));
    }
    shore_wait_end(&c->fetch, 0);
}

static void store(struct work *w, struct chunk *c) {
    shore_wait_init(&c->store);
    for (uint32_t i = 0; i < c->nspans; i++) {
        const struct span *p = &c->spans[i];
        struct shore_store part = {
            .size = sizeof part,
            .base_step = w->how->base_step,
            .attempt = w->how->attempt,
            .block = p->block,
            .segment = p->segment,
            .count = p->count,
            .state = c->image + p->at * w->state_bytes,
        };
        shore_wait_add(&c->store);
        settle(&c->store, shore_fleet_store(w->fleet, &part, shore_wait_completion(&c->store)));
    }
    shore_wait_end(&c->store, 0);
}

/* Fetches chunk after chunk, each as soon as its buffer is written back. */
static void *read_ahead(void *ctx) {
    struct work *w = ctx;
    for (uint64_t n = 0;; n++) {
        struct chunk *c = &w->chunk[n % w->how->buffers];
        pthread_mutex_lock(&w->mutex);
        while (c->state == CHUNK_FETCHED && !w->rc)
            pthread_cond_wait(&w->changed, &w->mutex);
        bool stop = w->rc != 0;
        pthread_mutex_unlock(&w->mutex);
        if (stop) break;
        if (c->state == CHUNK_STORED) end(w, &c->store);
        set_state(w, c, CHUNK_FREE);
        choose_spans(w, c);
        if (!c->segments) break;
        fetch(w, c);
        set_state(w, c, CHUNK_FETCHED);
    }
    pthread_mutex_lock(&w->mutex);
    w->all_fetched = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* ---- computing --------------------------------------------------------------------------------------------------- */

static char *params_of(const struct work *w, const struct span *p, uint32_t i) {
    return w->how->params_at ? w->how->params_at(w->how->ctx, p->block, p->segment + i) : NULL;
}

/* Updates at once the segments whose new parameters lie in a row, or go nowhere. */
static int update_span(const struct work *w, const struct chunk *c, const struct span *p, struct shore_diag *diag) {
    size_t params_bytes = (size_t)SHORE_SEGMENT_ELEMS * (w->fleet->config.fp32_params ? 4 : 2);
    int rc = 0;
    for (uint32_t i = 0, n = 1; !rc && i < p->count; i += n, n = 1) {
        char *params = params_of(w, p, i);
        while (i + n < p->count && params_of(w, p, i + n) == (params ? params + n * params_bytes : NULL))
            n++;
        const struct shore_update update = {
            .size = sizeof update,
            .base_step = w->how->base_step,
            .attempt = w->how->attempt,
            .block = p->block,
            .segment = p->segment + i,
            .count = n,
            .gradient = c->gradient + (p->at + i) * shore__gradient_segment_bytes(w->how->form),
            .form = w->how->form,
            .coefficient = w->how->coefficient,
            .groups = w->how->groups + (size_t)p->block * w->how->stride,
            .ngroups = w->how->ngroups,
            .params_out = params,
        };
        rc = shore_fleet_update_images(w->fleet, &update, c->image + (p->at + i) * w->state_bytes, diag);
    }
    return rc;
}

static int compute(struct work *w, const struct chunk *c) {
    struct shore__gate *gate = w->fleet->gate;
    uint64_t elems = (uint64_t)c->segments * SHORE_SEGMENT_ELEMS;
    uint64_t over_ns = gate ? gate->over_ns(gate, SHORE_LANE_HOST_UPDATE, 0, elems) : 0;
    struct shore_diag diag = {0};
    int rc = 0;
    const uint64_t start = shore__recorder_clock(w->fleet->recorder);
    for (uint32_t i = 0; !rc && i < c->nspans; i++)
        rc = update_span(w, c, &c->spans[i], &diag);
    if (rc) fail(w, rc, &diag);
    if (gate) shore__sleep_until(over_ns);
    if (start)
        shore__recorder_worked(w->fleet->recorder, SHORE_LANE_HOST_UPDATE, SHORE__NO_DRIVE, start, shore__now_ns(), 0);
    return rc;
}

static bool wait_for_chunk(struct work *w, struct chunk *c) {
    uint64_t start = shore__fleet_waits(w->fleet);
    pthread_mutex_lock(&w->mutex);
    while (c->state != CHUNK_FETCHED && !w->all_fetched && !w->rc)
        pthread_cond_wait(&w->changed, &w->mutex);
    bool there = c->state == CHUNK_FETCHED && !w->rc;
    pthread_mutex_unlock(&w->mutex);
    if (there && end(w, &c->fetch)) there = false;
    shore__fleet_waited(w->fleet, SHORE_LANE_DRIVE_READ, start);
    return there;
}

static void write_back(struct work *w) {
    for (uint64_t n = 0;; n++) {
        struct chunk *c = &w->chunk[n % w->how->buffers];
        if (!wait_for_chunk(w, c) || compute(w, c)) break;
        store(w, c);
        w->stored += c->segments;
        set_state(w, c, CHUNK_STORED);
    }
}

/* Waits for all requests that use a buffer. */
static void drain(struct work *w) {
    uint64_t start = shore__fleet_waits(w->fleet);
    for (uint32_t i = 0; i < w->how->buffers; i++) {
        if (w->chunk[i].state == CHUNK_FETCHED) shore_wait(&w->chunk[i].fetch, NULL);
        if (w->chunk[i].state == CHUNK_STORED) end(w, &w->chunk[i].store);
    }
    shore__fleet_waited(w->fleet, SHORE_LANE_DRIVE_WRITE, start);
}

int shore__host_update_run(struct shore_fleet *fleet, const struct shore__host_update *how, struct shore_diag *diag) {
    struct work w = {.fleet = fleet, .how = how, .state_bytes = shore_fleet_state_bytes(fleet)};
    unsigned char *at = how->memory;
    int rc = how->buffers >= 1 && how->buffers <= SHORE__HOST_BUFFERS_MOST && how->chunk_segments ? 0 : -EINVAL;
    for (uint32_t i = 0; !rc && i < how->buffers; i++) {
        w.chunk[i].spans = calloc(how->chunk_segments, sizeof *w.chunk[i].spans);
        if (!w.chunk[i].spans) rc = -ENOMEM;
        w.chunk[i].image = at;
        w.chunk[i].gradient = at + how->chunk_segments * w.state_bytes;
        at = w.chunk[i].gradient + (size_t)how->chunk_segments * GRADIENT_BYTES;
    }
    pthread_t reader;
    pthread_mutex_init(&w.mutex, NULL);
    pthread_cond_init(&w.changed, NULL);
    if (!rc) rc = shore__thread_start(&reader, "shore-host-read", read_ahead, &w);
    if (rc) {
        shore__fail(diag, rc, "the update on the host cannot begin: %s", shore_error_text(rc));
    } else {
        write_back(&w);
        pthread_join(reader, NULL);
        drain(&w);
        rc = w.rc;
        assert(rc || w.stored == shore__trained_before(fleet->layout, fleet->layout->nblocks));
        if (rc) *diag = w.diag;
    }
    for (uint32_t i = 0; i < how->buffers && i < SHORE__HOST_BUFFERS_MOST; i++)
        free(w.chunk[i].spans);
    pthread_cond_destroy(&w.changed);
    pthread_mutex_destroy(&w.mutex);
    return rc;
}
