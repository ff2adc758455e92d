/* The update lane of a local drive: streams chunks through a ring of fixed buffers. While one chunk is computed, later
 * ones are read and earlier ones written, across the boundaries of requests. */
#include <assert.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/local/local_chunks.h"
#include "drive/local/on_device.h"

/* Whether all chunks of a job have started and ended. */
static bool is_over(const struct shore__local_job *job) {
    return job->under_way == 0 && job->next == job->count;
}

/* Ends the chunk's part of the job. */
static void release_chunk(struct shore__pipeline *p, struct chunk *c) {
    struct shore__local_job *job = c->job;
    if (!c->failed && job->kind != SHORE__LOCAL_VERIFY) memset(p->l->front.written + c->local, 1, c->count);
    c->state = CHUNK_FREE;
    c->job = NULL;
    assert(p->busy > 0 && job->under_way > 0 && !c->pending);
    p->busy--;
    job->under_way--;
    if (is_over(job)) shore__front_finish(&p->l->front, &p->l->front.updates, job);
}

static void start_reads(struct shore__pipeline *p, struct chunk *c) {
    struct shore__local *l = p->l;
    struct shore__local_job *job = c->job;
    c->state = CHUNK_READING;
    if (job->kind == SHORE__LOCAL_UPDATE || job->kind == SHORE__LOCAL_VERIFY) {
        uint64_t bytes = shore__chunk_planes(p, c, SHORE__IO_READ, job->slot);
        *(job->kind == SHORE__LOCAL_VERIFY ? &l->front.read_fetch : &l->front.read_state) += bytes;
    }
    if (job->kind == SHORE__LOCAL_UPDATE && shore__update_is_spilled(&job->update)) {
        size_t each = shore__gradient_segment_bytes(job->update.form);
        shore__chunk_move(p, c, SHORE__IO_READ, c->gradient, shore__volume_spill_offset(&l->volume, c->local, each),
                          c->count * each);
        l->front.read_spill += c->count * each;
    }
    shore__chunk_hold(p, c, SHORE_LANE_LINK_IN);
    if (c->pending == 0) c->state = CHUNK_READY;
}

static void start_chunk(struct shore__pipeline *p, struct chunk *c) {
    struct shore__local *l = p->l;
    struct shore__local_job *job = p->current;
    uint64_t left = job->count - job->next;
    c->job = job;
    c->number = p->started++;
    c->segment = job->segment + (uint32_t)job->next;
    c->local = job->local + (uint32_t)job->next;
    c->count = left < l->front.config.chunk_segments ? (uint32_t)left : l->front.config.chunk_segments;
    c->count = shore__slot_map_run(&l->volume.map, job->slot, c->local, c->count);
    c->pending = 0;
    c->failed = false;
    job->next += c->count;
    job->under_way++;
    p->busy++;
    assert(c->count && job->next <= job->count && p->busy <= p->nchunks);
    if (job->next == job->count) p->current = NULL;
    start_reads(p, c);
}

/* Starts no more chunks of the current job, which ends when those under way do. */
static void stop_current(struct shore__pipeline *p) {
    struct shore__local_job *job = p->current;
    p->current = NULL;
    job->next = job->count;
    if (is_over(job)) shore__front_finish(&p->l->front, &p->l->front.updates, job);
}

/* Runs carries between chunks; they need no I/O. */
static void run_carry(struct shore__pipeline *p) {
    struct shore__local *l = p->l;
    struct shore__local_job *job = p->current;
    p->current = NULL;
    job->rc =
        shore__front_is_discarded(&l->front, job) ? SHORE_EDISCARDED : shore__volume_can_carry(&l->volume, &job->diag);
    if (!job->rc) {
        struct shore__leaves **table = l->volume.table;
        memcpy(table[1 - job->slot] + job->local, table[job->slot] + job->local, job->count * sizeof **table);
        shore__slot_map_carry(&l->volume.map, 1 - job->slot, job->local, job->count);
        memset(l->front.written + job->local, 1, job->count);
    }
    shore__front_finish(&l->front, &l->front.updates, job);
}

static int discard(struct shore__local *l, struct shore__local_job *job) {
    shore__front_begin_attempt(&l->front);
    return 0;
}

/* By kind; NULL: such jobs stream. */
static int (*const alone[SHORE__LOCAL_CALL + 1])(struct shore__local *l, struct shore__local_job *job) = {
    [SHORE__LOCAL_LOAD] = shore__local_load,         [SHORE__LOCAL_BEGIN] = shore__local_begin,
    [SHORE__LOCAL_COMMIT] = shore__local_commit,     [SHORE__LOCAL_DISCARD] = discard,
    [SHORE__LOCAL_SNAPSHOT] = shore__local_snapshot, [SHORE__LOCAL_BLOB] = shore__local_blob,
};

static void run_alone(struct shore__pipeline *p) {
    struct shore__local_job *job = p->current;
    p->current = NULL;
    job->rc = alone[job->kind](p->l, job);
    shore__front_finish(&p->l->front, &p->l->front.updates, job);
}

static bool runs_alone(const struct shore__local_job *job) {
    return alone[job->kind];
}

/* The next job to run: a more urgent one that has arrived comes before the rest of another. */
static struct shore__local_job *take_job(struct shore__pipeline *p) {
    struct shore__lane *lane = &p->l->front.updates;
    if (!p->current)
        p->current = (struct shore__local_job *)shore__lane_pop(lane, false);
    else if (!runs_alone(p->current))
        p->current = (struct shore__local_job *)shore__lane_swap(lane, &p->current->job);
    return p->current;
}

/* Starts what can start; false: nothing more for now. */
static bool start_something(struct shore__pipeline *p) {
    struct shore__local_job *job = take_job(p);
    if (!job) return false;
    if (runs_alone(job)) {
        if (p->busy) return false;
        run_alone(p);
        return true;
    }
    if (job->kind == SHORE__LOCAL_CARRY) {
        run_carry(p);
        return true;
    }
    if (!job->rc && shore__front_is_discarded(&p->l->front, job)) job->rc = SHORE_EDISCARDED;
    if (job->rc && job->rc != SHORE_ENONFINITE) {
        stop_current(p);
        return true;
    }
    for (uint32_t i = 0; i < p->nchunks; i++) {
        if (p->chunk[i].state == CHUNK_FREE) {
            start_chunk(p, &p->chunk[i]);
            return true;
        }
    }
    return false;
}

static int check_leaves(struct shore__pipeline *p, struct chunk *c) {
    const struct shore__volume *volume = &p->l->volume;
    for (int plane = 0; plane < SHORE_PLANE_COUNT; plane++) {
        size_t bytes = p->l->front.config.plane_bytes[plane];
        if (!bytes || !shore__chunk_reads(c->job, plane)) continue;
        for (uint32_t i = 0; i < c->count; i++) {
            int rc = shore__volume_check(volume, c->job->slot, c->job->block, c->segment + i, plane,
                                         c->stored.plane[plane] + i * bytes, &c->job->diag);
            if (rc) return rc;
        }
    }
    return 0;
}

/* Makes the chunk's leaves, and records where its segments will lie. */
static void make_leaves(struct shore__pipeline *p, struct chunk *c, unsigned slot) {
    struct shore__leaves *table = p->l->volume.table[slot];
    assert(c->local + c->count <= p->l->volume.desc.segments);
    shore__slot_map_update(&p->l->volume.map, slot, c->local, c->count);
    for (int plane = 0; plane < SHORE_PLANE_COUNT; plane++) {
        size_t bytes = p->l->front.config.plane_bytes[plane];
        for (uint32_t i = 0; bytes && i < c->count; i++) {
            shore__leaf_make(c->stored.plane[plane] + i * bytes, bytes,
                             shore__leaf_seed(c->job->block, c->segment + i, plane), &table[c->local + i].plane[plane]);
        }
    }
}

/* Lets the engine begin. */
static int submit_update(struct shore__pipeline *p, struct chunk *c) {
    struct shore__local_job *job = c->job;
    int rc = check_leaves(p, c);
    bool spilled = shore__update_is_spilled(&job->update);
    if (!rc && spilled)
        rc = shore__local_check_spilled(p->l, job, c->local, c->count, c->gradient,
                                        shore__gradient_segment_bytes(job->update.form));
    if (rc) return rc;
    c->work.update = shore__update_part(&p->l->front.config, &job->update, c->segment, c->count);
    if (spilled) c->work.update.gradient = c->gradient;
    c->work.diag.text[0] = '\0';
    if (p->on_device) rc = shore__on_device_prepare(&p->l->front.config, &c->work, &c->stored, c->gradient);
    if (rc) {
        job->diag = c->work.diag;
        return rc;
    }
    c->state = CHUNK_SUBMITTED;
    p->computing++;
    p->l->engine->ops->submit(p->l->engine, &c->work);
    return 0;
}

static void end_update(struct shore__pipeline *p, struct chunk *c) {
    struct shore__local_job *job = c->job;
    if (p->l->front.config.plane_bytes[SHORE_PLANE_R])
        shore__update_residual(&c->work.update, (uint16_t *)(void *)c->stored.plane[SHORE_PLANE_R]);
    if (p->on_device && c->work.rc == SHORE_ENONFINITE) shore__on_device_explain(&p->l->front.config, &c->work);
    if (c->work.rc && !job->rc) {
        /* it is written anyway: the attempt fails */
        job->rc = c->work.rc;
        job->diag = c->work.diag;
    }
    make_leaves(p, c, 1 - job->slot);
}

static void compute_store(struct shore__pipeline *p, struct chunk *c) {
    struct shore__local_job *job = c->job;
    const uint32_t *stored = p->l->front.config.plane_bytes;
    const unsigned char *from =
        (const unsigned char *)job->store.state + (c->segment - job->segment) * shore__state_segment_bytes(stored);
    for (uint32_t i = 0; i < c->count; i++) {
        for (int plane = 0; plane < SHORE_PLANE_COUNT; plane++) {
            unsigned char *to = c->stored.plane[plane] + (size_t)i * stored[plane];
            if (stored[plane]) memcpy(to, from, stored[plane]);
            if (stored[plane]) shore__stored_end(&p->l->front.config, job->block, c->segment + i, plane, to);
            from += stored[plane];
        }
    }
    make_leaves(p, c, 1 - job->slot);
}

static void compute_init(struct shore__pipeline *p, struct chunk *c) {
    struct shore__local_job *job = c->job;
    size_t first = (size_t)(c->segment - job->segment) * SHORE_SEGMENT_ELEMS;
    const float *m = job->init.m ? job->init.m + first : NULL, *v = job->init.v ? job->init.v + first : NULL;
    shore__chunk_init(&p->l->front.config, job->block, c->segment, c->count, job->init.master + first, m, v,
                      &c->stored);
    make_leaves(p, c, job->slot);
}

static void start_writes(struct shore__pipeline *p, struct chunk *c) {
    struct shore__local *l = p->l;
    struct shore__local_job *job = c->job;
    c->state = CHUNK_WRITING;
    l->front.write_state +=
        shore__chunk_planes(p, c, SHORE__IO_WRITE, job->kind == SHORE__LOCAL_INIT ? job->slot : 1 - job->slot);
    shore__chunk_hold(p, c, SHORE_LANE_LINK_OUT);
    if (c->pending == 0) release_chunk(p, c);
}

/* Writes what was computed, unless that failed. */
static void computed(struct shore__pipeline *p, struct chunk *c, int rc) {
    struct shore__local *l = p->l;
    struct shore__local_job *job = c->job;
    uint64_t now = shore__now_ns();
    l->front.compute_ns += now - (c->begun_ns > p->computed_ns ? c->begun_ns : p->computed_ns);
    p->computed_ns = now;
    if (rc) {
        if (!job->rc || job->rc == SHORE_ENONFINITE) job->rc = rc;
        c->failed = true;
    }
    if (rc || job->kind == SHORE__LOCAL_VERIFY) {
        release_chunk(p, c);
        return;
    }
    c->state = CHUNK_COMPUTED;
    shore__chunk_hold(p, c, SHORE_LANE_DRIVE_UPDATE);
    if (c->pending && c->op[0].not_before_ns > now) now = c->op[0].not_before_ns;
    shore__recorder_worked(l->front.drive.recorder, SHORE_LANE_DRIVE_UPDATE, l->volume.desc.drive, c->begun_ns, now, 0);
    if (c->pending == 0) start_writes(p, c);
}

/* Goes on with chunks that the engine has ended. wait: for one at least. */
static void take_computed(struct shore__pipeline *p, bool wait) {
    struct shore__engine_job *work;
    for (; (work = p->l->engine->ops->reap(p->l->engine, wait)); wait = false) {
        struct chunk *c = work->user;
        p->computing--;
        end_update(p, c);
        computed(p, c, 0);
    }
}

static void compute_chunk(struct shore__pipeline *p, struct chunk *c) {
    struct shore__local *l = p->l;
    struct shore__local_job *job = c->job;
    int rc = 0;
    c->begun_ns = shore__now_ns();
    if (c->failed || (job->rc && job->rc != SHORE_ENONFINITE) || shore__front_is_discarded(&l->front, job)) {
        c->failed = true;
        if (!job->rc) job->rc = SHORE_EDISCARDED;
        release_chunk(p, c);
        return;
    }
    switch (job->kind) {
    case SHORE__LOCAL_UPDATE:
        rc = submit_update(p, c);
        if (!rc) return;
        break;
    case SHORE__LOCAL_STORE:
        compute_store(p, c);
        break;
    case SHORE__LOCAL_INIT:
        compute_init(p, c);
        break;
    default:
        rc = check_leaves(p, c);
        break;
    }
    computed(p, c, rc);
}

static struct chunk *oldest_ready(struct shore__pipeline *p) {
    struct chunk *oldest = NULL;
    for (uint32_t i = 0; i < p->nchunks; i++) {
        struct chunk *c = &p->chunk[i];
        if (c->state == CHUNK_READY && (!oldest || c->number < oldest->number)) oldest = c;
    }
    return oldest;
}

static void reap(struct shore__pipeline *p, unsigned min) {
    struct shore__io_op *ops[32];
    uint64_t start = min ? shore__now_ns() : 0;
    unsigned n = shore__io_reap(p->l->update_io, ops, 32, min);
    if (min) p->l->front.io_wait_ns += shore__now_ns() - start;
    for (unsigned i = 0; i < n; i++) {
        struct chunk *c = ops[i]->user;
        assert(c->pending > 0 && c->state != CHUNK_FREE);
        if (ops[i]->rc) {
            shore__local_io_failed(p->l, c->job, ops[i]);
            c->failed = true;
        }
        shore__local_io_done(p->l, ops[i]);
        if (--c->pending) continue;
        if (c->state == CHUNK_READING) {
            c->state = CHUNK_READY;
        } else if (c->state == CHUNK_COMPUTED) {
            start_writes(p, c);
        } else {
            release_chunk(p, c);
        }
    }
}

void *shore__local_update_lane(void *ctx) {
    struct shore__local *l = ctx;
    struct shore__pipeline *p = l->pipeline;
    for (;;) {
        take_computed(p, false);
        while (start_something(p)) {
        }
        reap(p, 0);
        struct chunk *ready = oldest_ready(p);
        if (ready) {
            compute_chunk(p, ready);
        } else if (p->computing) {
            take_computed(p, true);
        } else if (p->busy) {
            reap(p, 1);
        } else if (!p->current) { /* a job that waits for buffers may be left: the reaping above has freed some */
            p->current = (struct shore__local_job *)shore__lane_pop(&l->front.updates, true);
            if (!p->current) break;
        }
    }
    return NULL;
}
