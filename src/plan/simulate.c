#include "plan/simulate.h"

#include <assert.h>
#include <math.h>

#include "plan/simulate_impl.h"

#define SAME 1e-4 /* a smaller share of a step is no difference between two */

struct run {
    struct shore__simulation *s;
    double now;   /* the operation before has ended */
    double ended; /* the last step */
    uint32_t step;
    uint32_t asked;               /* jobs that operations have left behind */
    uint32_t waiting, left;       /* of the operation at hand: gradients, and how many of them were left behind */
    uint64_t read, written, link; /* bytes that tensors moved in this step */
};

static double later(double a, double b) {
    return a > b ? a : b;
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

/* Forgets jobs that are done. */
static void drop_done(struct lane *l, double now) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->queued; i++)
        if (l->done[l->queue[i]] > now) l->queue[kept++] = l->queue[i];
    l->queued = kept;
}

/* Asks a lane for what an operation waits for. It goes before the work behind operations, which ends so much later. */
static double ask(struct lane *l, double now, double seconds) {
    double start = later(now, l->asked.free), over = shore__bucket_serve(&l->asked, now, seconds);
    if (l->behind <= start) return over;
    drop_done(l, start);
    for (uint32_t i = 0; i < l->queued; i++)
        l->done[l->queue[i]] += seconds;
    l->behind += seconds;
    return over;
}

static double move(struct run *r, enum route route, double now, double bytes) {
    const struct route_lanes *way = &r->s->route[route];
    double over = now;
    for (uint32_t i = 0; i < way->count; i++)
        over = later(over, ask(way->on[i].lane, now, bytes * way->on[i].each));
    if (route != BUS_IN && route != BUS_OUT) {
        bool in = route == DRIVE_IN || route == ACROSS_IN;
        *(in ? &r->read : &r->written) += (uint64_t)bytes;
        r->link += (uint64_t)bytes;
    }
    return over;
}

/* Adds to what a job does in a lane. It goes behind jobs that the next step needs sooner, and before the others. */
static void add_behind(struct run *r, struct lane *l, uint32_t job, double seconds) {
    const struct shore__simulation *s = r->s;
    double now = later(l->asked.free, r->now), start = now;
    uint32_t needed = s->job[job % s->njobs].needed;
    bool queued = l->done[job] > now;
    drop_done(l, now);
    for (uint32_t i = 0; i < l->queued; i++)
        if (s->job[l->queue[i] % s->njobs].needed <= needed) start = later(start, l->done[l->queue[i]]);
    for (uint32_t i = 0; i < l->queued; i++)
        if (s->job[l->queue[i] % s->njobs].needed > needed) l->done[l->queue[i]] += seconds;
    if (!queued) l->queue[l->queued++] = job;
    l->done[job] = start + seconds;
    l->behind = later(l->behind, now) + seconds;
}

static const enum route kept_route[2] = {LINK_ALONE, BUS_IN};

/* Leaves a part of the work behind an operation. begins: the first one. */
static void leave_behind(struct run *r, const struct timed_operation *op, double part, bool begins) {
    struct shore__simulation *s = r->s;
    const struct job *job = &s->job[op->job];
    uint32_t j = begins ? r->asked++ : r->asked - 1;
    s->job_at[j] = r->now;
    for (uint32_t i = 0; begins && i < s->nbusy; i++)
        s->busy[i]->done[j] = 0;
    for (uint32_t i = job->first; i < job->end; i++)
        add_behind(r, s->part[i].lane, j, s->part[i].seconds * part * s->part[i].lane->left);
    for (int there = 0; there < 2; there++)
        for (uint32_t i = 0; op->kept[there] > 0 && i < s->route[kept_route[there]].count; i++) {
            const struct way_on *on = &s->route[kept_route[there]].on[i];
            add_behind(r, on->lane, j, op->kept[there] * on->each * part);
            on->lane->asked.busy += op->kept[there] * on->each * part;
        }
    r->link += (uint64_t)(op->kept[0] * part);
}

/* When a job will be done, as far as is known now. */
static double done(const struct run *r, uint32_t job) {
    const struct shore__simulation *s = r->s;
    if (job >= r->asked) return INFINITY;
    double at = s->job_at[job];
    for (uint32_t i = 0; i < s->nbusy; i++)
        at = later(at, s->busy[i]->done[job]);
    return at;
}

/* Computes; returns the end. Work behind on the same cores and the computing share them: each takes longer while both
 * run. */
static double compute(struct run *r, double start, double seconds) {
    struct shore__simulation *s = r->s;
    double end = start + seconds, slows = 0; /* so much of all who work */
    for (uint32_t i = 0; i < s->nsharing; i++) {
        const struct lane *l = s->sharing[i];
        if (!(l->behind > start)) continue;
        slows += l->slows;
        end += l->slows * fmin(seconds, l->behind - start);
    }
    for (uint32_t i = 0; slows > 0 && i < s->nsharing; i++) {
        struct lane *l = s->sharing[i];
        if (!(l->behind > start)) continue;
        drop_done(l, start);
        for (uint32_t j = 0; j < l->queued; j++)
            l->done[l->queue[j]] += slows * fmin(seconds, l->done[l->queue[j]] - start);
        l->behind += slows * fmin(seconds, l->behind - start);
    }
    s->compute_seconds += end - start;
    return end;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* When what the entry waits for has happened, apart from a buffer: the last step's update of it, its own way out, its
 * way to the host. INFINITY: not known yet. */
static double ready(const struct run *r, const struct stream *st, const struct entry *e, bool there) {
    const struct shore__simulation *s = r->s;
    double at = s->left[e->tensor];
    if (e->passing != COMES) return 0;
    if (there && at < INFINITY) at = 0; /* what is on its way out can be read on */
    if (e->changer != SHORE__NONE && st->step) at = later(at, done(r, (st->step - 1) * s->njobs + e->changer));
    if (!e->copy || !e->other) return at;
    bool here = e->other->next > (uint64_t)st->step * e->other->count + e->its;
    return here ? later(at, e->other->entry[e->its].at) : INFINITY;
}

/* The host's buffer is free once what lay there has crossed the bus. */
static void free_source(const struct stream *st, const struct entry *e) {
    uint32_t buffer = e->other->entry[e->its].buffer;
    struct buffer *b = &e->other->buffer[buffer];
    if (buffer != SHORE__NONE && b->user == (uint64_t)st->step * e->other->count + e->its) b->free = e->at;
}

static double free_at(const struct run *r, const struct buffer *b) {
    return b->job != SHORE__NONE ? done(r, b->job) : b->free;
}

/* The buffer that is free soonest. */
static uint32_t soonest(const struct run *r, const struct stream *st) {
    uint32_t best = st->oldest;
    for (uint32_t b = best; b != SHORE__NONE && free_at(r, &st->buffer[best]) > r->now; b = st->buffer[b].after)
        if (free_at(r, &st->buffer[b]) < free_at(r, &st->buffer[best])) best = b;
    return best;
}

/* The stream's next entry takes a buffer, if there is one. must: whatever it takes. */
static bool take_next(struct run *r, struct stream *st, bool must) {
    struct shore__simulation *s = r->s;
    struct entry *e = &st->entry[st->at];
    bool comes = e->passing == COMES, there = comes && is_there(st, e);
    uint32_t b = there ? *where(st, e->tensor) : e->passing == WAITS ? soonest(r, st) : st->oldest;
    struct buffer *to = &st->buffer[b];
    if (e->other && !e->copy && e->other->entry[e->its].stays) { /* the device still has it */
        e->at = 0;
        advance(st, e, SHORE__NONE);
        return true;
    }
    double at = ready(r, st, e, there), room = there ? to->there : free_at(r, to);
    if (later(at, room) == INFINITY && !must) return false;
    e->at = at < INFINITY ? at : r->now;
    if (room < INFINITY) e->at = later(e->at, room);
    if (!there) e->at = later(e->at, r->now);
    if (comes && !there) e->at = move(r, (enum route)e->route, e->at, e->bytes);
    if (e->passing == LEAVES) s->left[e->tensor] = INFINITY;
    if (e->other && e->copy) free_source(st, e);
    to->tensor = e->passing == WAITS ? SHORE__NONE : e->tensor;
    to->there = e->at;
    to->user = st->next;
    to->step = st->step;
    to->job = SHORE__NONE;
    to->free = INFINITY;
    *where(st, e->tensor) = b;
    to_newest(st, b);
    advance(st, e, b);
    return true;
}

/* Brings what may come through these streams: tensors in order, each as soon as there is a buffer. */
static void prefetch(struct run *r, struct stream *const *streams, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        struct stream *st = streams[i];
        while (st->next < st->used + st->count && st->entry[st->at].passing == COMES)
            if (!take_next(r, st, false)) break;
    }
}

/* Returns when the nth entry of the operation at hand may be used. */
static double take(struct run *r, struct stream *st, uint32_t nth) {
    const struct entry *e = &st->entry[st->used_at + nth];
    while (e->other && e->copy && e->other->next <= (uint64_t)r->step * e->other->count + e->its)
        if (!take_next(r, e->other, false)) take_next(r, e->other, true);
    while (st->next <= st->used + nth)
        if (!take_next(r, st, false)) take_next(r, st, true);
    return e->at;
}

/* The operation is done with an entry. A gradient's buffer is free once the work behind the operation took it. */
static void let_go(struct run *r, struct stream *st, uint32_t nth) {
    struct shore__simulation *s = r->s;
    struct entry *e = &st->entry[st->used_at + nth];
    if (e->other && !e->copy) return; /* its buffer is free once it has crossed the bus */
    struct buffer *b = &st->buffer[e->buffer];
    const struct timed_operation *op = &s->op[e->operation];
    double at = later(r->now, s->left[e->tensor]); /* it may still be on its way out */
    if (e->passing == LEAVES) at = s->left[e->tensor] = move(r, (enum route)e->route, r->now, e->bytes);
    if (e->passing == WAITS && op->job != SHORE__NONE) {
        leave_behind(r, op, 1.0 / r->waiting, r->left++ == 0);
        if (r->left == r->waiting) b->job = r->asked - 1;
        at = done(r, r->asked - 1);
    }
    if (b->user == st->used + nth) b->free = at;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* Finds what passes at an operation. One that uses more tensors of a group than one is done in so many parts: each
 * needs its own. */
static uint32_t begin_parts(struct run *r, uint32_t operation) {
    struct shore__simulation *s = r->s;
    uint32_t parts = 1;
    s->nhere = r->waiting = r->left = 0;
    for (uint32_t i = 0; i < s->nactive; i++) {
        struct stream *st = s->active[i];
        const struct entry *e = st->entry + st->used_at, *end = st->entry + st->count;
        if (e->operation != operation) continue;
        s->here[s->nhere++] = st;
        st->here = st->taken = st->gone = 0;
        for (; e < end && e->operation == operation; e++, st->here++)
            r->waiting += e->passing == WAITS;
        if (st->here > parts) parts = st->here;
    }
    return parts;
}

/* When all that a part of the operation uses is there. */
static double part_starts(struct run *r, uint32_t part, uint32_t parts) {
    double start = r->now;
    for (uint32_t i = 0; i < r->s->nhere; i++) {
        struct stream *st = r->s->here[i];
        for (; st->taken < st->here && st->taken * parts <= part * st->here; st->taken++)
            start = later(start, take(r, st, st->taken));
    }
    return start;
}

/* Lets go of what the operation is done with after a part: gradients that wait, or everything else. */
static void end_part(struct run *r, uint32_t part, uint32_t parts, bool waits) {
    for (uint32_t i = 0; i < r->s->nhere; i++) {
        struct stream *st = r->s->here[i];
        for (; st->gone < st->here && (st->gone + 1) * parts <= (part + 1) * st->here; st->gone++) {
            if ((st->entry[st->used_at + st->gone].passing == WAITS) != waits) break;
            let_go(r, st, st->gone);
        }
    }
}

static void end_parts(struct run *r) {
    for (uint32_t i = 0; i < r->s->nhere; i++) {
        struct stream *st = r->s->here[i];
        st->used += st->here;
        st->used_at += st->here;
        if (st->used_at == st->count) st->used_at = 0;
    }
}

static double operation_starts(const struct run *r, uint32_t operation) {
    const struct shore__simulation *s = r->s;
    const struct timed_operation *op = &s->op[operation];
    double start = r->now, over = r->ended;
    uint32_t before = (r->step - 1) * s->njobs; /* the last step's jobs */
    if (!r->step) return start;
    for (uint32_t i = op->first_wait; i < op->end_wait; i++)
        start = later(start, done(r, before + s->wait[i]));
    if (operation != s->first_gradient) return start;
    for (uint32_t j = 0; j < s->njobs; j++)
        over = later(over, done(r, before + j));
    return later(start, over + s->commit_seconds);
}

static void run_operation(struct run *r, uint32_t operation) {
    struct shore__simulation *s = r->s;
    struct timed_operation *op = &s->op[operation];
    uint32_t parts = begin_parts(r, operation);
    double seconds = fmax(op->seconds + op->more_seconds, 0) / parts;
    r->now = operation_starts(r, operation);
    for (uint32_t part = 0; part < parts; part++) {
        double start = part_starts(r, part, parts);
        if (!part) op->began = start;
        r->now = compute(r, start, seconds);
        end_part(r, part, parts, false);
        if (part + 1 < parts)
            prefetch(r, s->here, s->nhere);
        else /* before the gradient is left behind */
            prefetch(r, s->active, s->nactive);
        if (r->waiting) end_part(r, part, parts, true);
    }
    end_parts(r);
    op->ended = r->now;
    if (op->job != SHORE__NONE && !r->waiting) leave_behind(r, op, 1, true);
}

static void begin_step(struct run *r) {
    for (uint32_t i = 0; i < r->s->nlanes; i++)
        r->s->lane[i].asked.busy = 0;
    r->s->compute_seconds = 0;
    r->read = r->written = r->link = 0;
    r->ended = r->now;
}

static void count_bytes(const struct run *r, const struct shore__fate *fate, struct shore_plan_times *out) {
    const struct shore__simulation *s = r->s;
    const double *work = s->work;
    out->drive_read_bytes = r->read + (uint64_t)(work[SHORE_LANE_DRIVE_READ] * s->lane[LANES_OF_HOST + OF_READ].left);
    out->drive_write_bytes =
        r->written +
        (uint64_t)(work[SHORE_LANE_DRIVE_WRITE] * s->lane[LANES_OF_HOST + OF_WRITE].left + work[SHORE_LANE_COMMIT]);
    out->link_bytes = r->link + (uint64_t)(work[SHORE_LANE_LINK_IN] + work[SHORE_LANE_LINK_OUT]);
    for (uint32_t t = 0; t < s->program->ntensors; t++) {
        const struct shore__fate *f = &fate[t];
        if (!f->count || s->tensor[t].maker == SHORE__NONE || s->tensor[t].first_reader == SHORE__NONE) continue;
        if (!(s->program->tensor[t].ways & ~(unsigned)SHORE_WAY_KEEP)) continue;
        *(f->way == SHORE_WAY_KEEP    ? &out->kept_bytes
          : f->way == SHORE_WAY_AGAIN ? &out->again_bytes
                                      : &out->moved_bytes) += f->bytes;
    }
}

void shore__simulate(struct shore__simulation *s, const struct shore__fate *fate, struct shore_plan_times *out) {
    struct run r = {.s = s};
    *out = (struct shore_plan_times){.size = sizeof *out, .bound = SHORE_LANE_COMPUTE};
    shore__simulation_apply(s, fate);
    for (double last = 0; r.step < STEPS_MOST; r.step++) {
        begin_step(&r);
        for (uint32_t o = 0; o < s->program->nops; o++)
            run_operation(&r, o);
        out->step_seconds = r.now - r.ended;
        if (r.step + 1 >= STEPS_LEAST && fabs(out->step_seconds - last) <= SAME * last) break;
        last = out->step_seconds;
    }
    out->lane_seconds[SHORE_LANE_COMPUTE] = s->compute_seconds;
    out->lane_seconds[SHORE_LANE_COMMIT] = s->commit_seconds;
    for (uint32_t i = 0; i < s->nlanes; i++) {
        double *most = &out->lane_seconds[s->lane[i].as];
        *most = later(*most, s->lane[i].asked.busy + s->lane[i].behind_seconds * s->lane[i].left);
    }
    for (int l = 0; l < SHORE_LANES; l++) {
        if (out->lane_seconds[l] > out->lane_seconds[out->bound]) out->bound = (enum shore_lane)l;
        out->step_seconds = later(out->step_seconds, out->lane_seconds[l]); /* nothing lags behind for ever */
    }
    s->began = r.ended;
    count_bytes(&r, fate, out);
}

void shore__simulated(const struct shore__simulation *s, uint32_t operation, double *begin, double *end) {
    assert(operation < s->program->nops);
    *begin = s->op[operation].began - s->began;
    *end = s->op[operation].ended - s->began;
}
