/* The fetch lane of a local drive: runs fetches and calls in order, cut into spans, with several spans under way. */
#include <assert.h>
#include <string.h>

#include "base/diag.h"
#include "drive/layout.h"
#include "drive/local/local.h"
#include "number/bf16.h"

#define CALL_SPAN_BYTES (1024u * 1024u) /* of calls that are not over segments */

struct span {
    struct shore__local_job *job; /* NULL: free */
    uint32_t at, count;           /* segments, counted from the job's first */
    struct shore__io_op op[SHORE_PLANE_COUNT];
    unsigned pending;
    bool failed;
    unsigned char *stage; /* the stored form of one segment, if it differs from the delivered form */
    uint64_t link_ns;     /* when a gate lets it off the host link; 0: no gate */
};

struct fetcher {
    struct shore__local *l;
    struct shore__local_job *current; /* not all of its spans have started */
    unsigned busy;
    uint32_t free_stages;
    unsigned char **stages;
    struct span span[SHORE__FETCH_SPANS];
};

static void seal(const struct shore__call *call, const void *bytes) {
    struct shore__leaf leaf;
    shore__leaf_make(bytes, call->bytes, call->start, &leaf);
    memcpy(call->seal, leaf.hash, 16);
}

static void finish_call(struct shore__local *l, const struct shore__local_job *job) {
    const struct shore__call *call = &job->call;
    if (call->function == SHORE__SCRATCH_GET) seal(call, call->out);
    if (call->function == SHORE__SPILL) memset(l->front.spilled + job->local, 1 + (int)call->form, job->count);
}

static void finish_job(struct fetcher *f, struct shore__local_job *job) {
    struct shore__local *l = f->l;
    if (!job->rc && job->kind == SHORE__LOCAL_CALL) finish_call(l, job);
    shore__front_finish(&l->front, &l->front.fetches, job);
}

static void submit_op(struct fetcher *f, struct span *p, enum shore__io_kind kind, void *buffer, uint64_t offset,
                      size_t bytes) {
    assert(p->pending < SHORE_PLANE_COUNT);
    struct shore__io_op *op = &p->op[p->pending];
    *op = (struct shore__io_op){.kind = kind, .buffer = buffer, .offset = offset, .bytes = (uint32_t)bytes, .user = p};
    enum shore_lane lane = kind == SHORE__IO_WRITE ? SHORE_LANE_DRIVE_WRITE : SHORE_LANE_DRIVE_READ;
    uint64_t drive_ns = shore__local_gate_ns(f->l, lane, bytes);
    op->not_before_ns = drive_ns > p->link_ns ? drive_ns : p->link_ns;
    if (shore__local_io_begin(f->l, f->l->fetch_io, p->job, op))
        p->pending++;
    else
        p->failed = true;
}

static enum shore_plane plane_of(enum shore_fetch_kind kind) {
    return kind == SHORE_FETCH_M   ? SHORE_PLANE_M
           : kind == SHORE_FETCH_V ? SHORE_PLANE_V
           : kind == SHORE_FETCH_R ? SHORE_PLANE_R
                                   : SHORE_PLANE_HI;
}

/* Whether the stored form differs: hi and lo are joined, moments of 8 bits dequantised. */
static bool is_staged(const struct fetcher *f, const struct shore__local_job *job) {
    if (job->kind != SHORE__LOCAL_FETCH) return false;
    bool moment = job->fetch.kind == SHORE_FETCH_M || job->fetch.kind == SHORE_FETCH_V;
    return job->fetch.kind == SHORE_FETCH_MASTER || (moment && f->l->front.config.moments != SHORE_MOMENTS_FP32);
}

static int check_plane(struct fetcher *f, struct span *p, enum shore_plane plane, const unsigned char *data) {
    struct shore__local_job *job = p->job;
    for (uint32_t i = 0; i < p->count; i++) {
        int rc = shore__volume_check(&f->l->volume, job->slot, job->block, job->segment + p->at + i, plane,
                                     data + (size_t)i * f->l->front.config.plane_bytes[plane], &job->diag);
        if (rc) return rc;
    }
    return 0;
}

static unsigned char *state_image(const struct fetcher *f, const struct span *p) {
    return p->job->fetch.dst + p->at * shore__state_segment_bytes(f->l->front.config.plane_bytes);
}

static int check_state(struct fetcher *f, struct span *p) {
    const unsigned char *data = state_image(f, p);
    int rc = 0;
    for (int plane = 0; !rc && plane < SHORE_PLANE_COUNT; plane++) {
        if (f->l->front.config.plane_bytes[plane]) rc = check_plane(f, p, plane, data);
        data += f->l->front.config.plane_bytes[plane];
    }
    return rc;
}

static unsigned char *spilled_part(const struct span *p, size_t *each) {
    *each = shore__gradient_segment_bytes(shore__fetch_form(p->job->fetch.kind));
    return p->job->fetch.dst + p->at * *each;
}

/* Finishes a span whose I/O is done. */
static int finish_fetch(struct fetcher *f, struct span *p) {
    struct shore__local_job *job = p->job;
    if (shore__fetch_is_spilled(job->fetch.kind)) {
        size_t each;
        const unsigned char *data = spilled_part(p, &each);
        return shore__local_check_spilled(f->l, job, job->local + p->at, p->count, data, each);
    }
    enum shore_plane plane = plane_of(job->fetch.kind);
    float *floats = (float *)(void *)job->fetch.dst + (size_t)p->at * SHORE_SEGMENT_ELEMS;
    if (job->fetch.kind == SHORE_FETCH_STATE) return check_state(f, p);
    if (!p->stage)
        return check_plane(f, p, plane, job->fetch.dst + (size_t)p->at * f->l->front.config.plane_bytes[plane]);
    if (plane != SHORE_PLANE_HI) {
        int moment_rc = check_plane(f, p, plane, p->stage);
        if (!moment_rc)
            shore__moments_load(&f->l->front.config.layout->blocks[job->block], job->segment + p->at,
                                f->l->front.config.moments, plane, p->stage, floats);
        return moment_rc;
    }
    unsigned char *lo = p->stage + f->l->front.config.plane_bytes[SHORE_PLANE_HI];
    int rc = check_plane(f, p, SHORE_PLANE_HI, p->stage);
    if (!rc) rc = check_plane(f, p, SHORE_PLANE_LO, lo);
    if (!rc)
        shore__f32_join(floats, (const uint16_t *)(void *)p->stage, (const uint16_t *)(void *)lo, SHORE_SEGMENT_ELEMS);
    return rc;
}

static void finish_span(struct fetcher *f, struct span *p) {
    struct shore__local_job *job = p->job;
    if (!p->failed && !job->rc && job->kind == SHORE__LOCAL_FETCH) job->rc = finish_fetch(f, p);
    if (p->stage) f->stages[f->free_stages++] = p->stage;
    p->stage = NULL;
    p->job = NULL;
    assert(f->busy > 0 && job->under_way > 0 && !p->pending);
    f->busy--;
    job->under_way--;
    if (job->under_way == 0 && job != f->current) finish_job(f, job);
}

/* Reads a plane of the span's first segment. */
static void read_plane(struct fetcher *f, struct span *p, enum shore_plane plane, unsigned char *to) {
    const struct shore__local_job *job = p->job;
    uint32_t segment = job->segment + p->at, local = job->local + p->at;
    size_t bytes = shore__stored_bytes(&f->l->front.config, job->block, segment, plane);
    shore__stored_end(&f->l->front.config, job->block, segment, plane, to);
    submit_op(f, p, SHORE__IO_READ, to, shore__volume_plane_offset(&f->l->volume, job->slot, plane, local), bytes);
    f->l->front.read_fetch += bytes;
}

static void start_fetch(struct fetcher *f, struct span *p) {
    const uint32_t *each = f->l->front.config.plane_bytes;
    struct shore__local_job *job = p->job;
    enum shore_plane plane = plane_of(job->fetch.kind);
    if (is_staged(f, job)) p->stage = f->stages[--f->free_stages];
    if (job->fetch.kind == SHORE_FETCH_STATE) {
        unsigned char *to = state_image(f, p);
        for (int i = 0; i < SHORE_PLANE_COUNT; i++) {
            if (each[i]) read_plane(f, p, i, to);
            to += each[i];
        }
    } else if (shore__fetch_is_spilled(job->fetch.kind)) {
        size_t bytes;
        unsigned char *to = spilled_part(p, &bytes);
        submit_op(f, p, SHORE__IO_READ, to, shore__volume_spill_offset(&f->l->volume, job->local + p->at, bytes),
                  p->count * bytes);
        f->l->front.read_spill += p->count * bytes;
    } else if (p->stage) {
        read_plane(f, p, plane, p->stage);
        if (plane == SHORE_PLANE_HI) read_plane(f, p, SHORE_PLANE_LO, p->stage + each[SHORE_PLANE_HI]);
    } else {
        size_t bytes = (size_t)p->count * each[plane];
        submit_op(f, p, SHORE__IO_READ, job->fetch.dst + (size_t)p->at * each[plane],
                  shore__volume_plane_offset(&f->l->volume, job->slot, plane, job->local + p->at), bytes);
        f->l->front.read_fetch += bytes;
    }
}

/* Starts a part of a call; `at` says where it begins. */
static void start_call(struct fetcher *f, struct span *p, const struct shore__call *part, uint64_t at) {
    struct shore__local *l = f->l;
    struct shore__local_job *job = p->job;
    const struct shore__function *function = shore__function(part->function);
    const bool brings = function->link_in != 0;
    const uint64_t bytes = brings ? shore__call_in_bytes(part) : shore__call_out_bytes(part);
    size_t each = shore__call_unit_bytes(part);
    uint64_t offset = shore__volume_scratch_offset(&l->volume) + part->start;
    if (part->function == SHORE__SPILL) {
        uint32_t local = job->local + (uint32_t)at;
        for (uint32_t i = 0; i < part->count; i++)
            shore__leaf_make((const unsigned char *)part->in + i * each, each, local + i, &l->spill_leaf[local + i]);
        offset = shore__volume_spill_offset(&l->volume, local, each);
    }
    if (part->function == SHORE__SCRATCH_PUT && at == 0) seal(&job->call, job->call.in);
    submit_op(f, p, brings ? SHORE__IO_WRITE : SHORE__IO_READ, brings ? (void *)(uintptr_t)part->in : part->out, offset,
              bytes);
    l->front.moved[brings ? function->writes : function->reads] += bytes;
}

/* Sends the span across the host link while the drive works on it. */
static uint64_t cross_link(struct fetcher *f, const struct span *p, const struct shore__call *part) {
    const struct shore__local_job *job = p->job;
    const struct shore_layout *layout = f->l->front.config.layout;
    if (!f->l->front.drive.gate) return 0;
    bool in = job->kind == SHORE__LOCAL_CALL && shore__function(part->function)->link_in;
    uint64_t bytes;
    if (job->kind == SHORE__LOCAL_CALL) {
        bytes = shore__call_crossing(part, layout, in ? shore__call_in_bytes(part) : shore__call_out_bytes(part));
    } else {
        size_t each = shore__fetch_segment_bytes(f->l->front.config.plane_bytes, job->fetch.kind);
        bytes = job->fetch.kind == SHORE_FETCH_STATE
                    ? p->count * each /* in the other kinds, the padding behind a block does not cross */
                    : shore__layout_bytes(layout, job->block, job->segment + p->at, p->count, each);
    }
    return shore__local_gate_ns(f->l, in ? SHORE_LANE_LINK_IN : SHORE_LANE_LINK_OUT, bytes);
}

static void start_span(struct fetcher *f, struct span *p) {
    struct shore__local_job *job = f->current;
    bool call = job->kind == SHORE__LOCAL_CALL;
    uint64_t total = call ? shore__call_units(&job->call) : job->count;
    uint64_t most = SHORE__FETCH_SPAN_SEGMENTS;
    if (call) {
        if (shore__function(job->call.function)->over != SHORE__OVER_SEGMENTS) most = CALL_SPAN_BYTES;
    } else {
        if (job->fetch.kind == SHORE_FETCH_BF16) most *= 2;
        if (is_staged(f, job) || job->fetch.kind == SHORE_FETCH_STATE) most = 1;
    }
    uint64_t at = job->next, count = total - at < most ? total - at : most;
    if (job->kind == SHORE__LOCAL_FETCH && !shore__fetch_is_spilled(job->fetch.kind))
        count = shore__slot_map_run(&f->l->volume.map, job->slot, job->local + (uint32_t)at, (uint32_t)count);
    struct shore__call part = call ? shore__call_part(&job->call, at, count) : (struct shore__call){0};
    p->job = job;
    p->at = (uint32_t)at;
    p->count = (uint32_t)count;
    p->pending = 0;
    p->failed = false;
    p->link_ns = cross_link(f, p, &part);
    job->next += count;
    job->under_way++;
    f->busy++;
    assert(count && job->next <= total && f->busy <= SHORE__FETCH_SPANS);
    if (job->next == total) f->current = NULL;
    if (call)
        start_call(f, p, &part, at);
    else
        start_fetch(f, p);
    if (p->pending == 0) finish_span(f, p);
}

static bool start_something(struct fetcher *f) {
    if (!f->current) f->current = (struct shore__local_job *)shore__lane_pop(&f->l->front.fetches, false);
    struct shore__local_job *job = f->current;
    if (!job) return false;
    if (job->rc) {
        f->current = NULL;
        if (job->under_way == 0) finish_job(f, job);
        return true;
    }
    if (job->kind == SHORE__LOCAL_CALL && shore__function(job->call.function)->run) {
        if (f->busy) return false; /* it runs alone */
        f->current = NULL;
        shore__local_run(f->l, job);
        finish_job(f, job);
        return true;
    }
    if (is_staged(f, job) && f->free_stages == 0) return false;
    for (unsigned i = 0; i < SHORE__FETCH_SPANS; i++) {
        if (!f->span[i].job) {
            start_span(f, &f->span[i]);
            return true;
        }
    }
    return false;
}

static void reap(struct fetcher *f) {
    struct shore__io_op *ops[SHORE__FETCH_OPS];
    unsigned n = shore__io_reap(f->l->fetch_io, ops, SHORE__FETCH_OPS, 1);
    for (unsigned i = 0; i < n; i++) {
        struct span *p = ops[i]->user;
        assert(p->pending > 0 && p->job);
        if (ops[i]->rc) {
            shore__local_io_failed(f->l, p->job, ops[i]);
            p->failed = true;
        }
        shore__local_io_done(f->l, ops[i]);
        if (--p->pending == 0) finish_span(f, p);
    }
}

void *shore__local_fetch_lane(void *ctx) {
    struct shore__local *l = ctx;
    unsigned char *stages[SHORE__FETCH_SPANS];
    struct fetcher f = {.l = l, .stages = stages};
    while (f.free_stages < l->front.config.stage_segments && f.free_stages < SHORE__FETCH_SPANS) {
        stages[f.free_stages] = l->stage + (size_t)2 * f.free_stages * l->front.config.plane_bytes[SHORE_PLANE_HI];
        f.free_stages++;
    }
    for (;;) {
        while (start_something(&f)) {
        }
        if (f.busy) {
            reap(&f);
        } else {
            f.current = (struct shore__local_job *)shore__lane_pop(&l->front.fetches, true);
            if (!f.current) break;
        }
    }
    return NULL;
}
