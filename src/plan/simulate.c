#include "plan/simulate.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "plan/simulate_impl.h"

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

/* Leaves a part of the work behind an operation. begins: the first one. */
static void leave_behind(struct run *r, const struct timed_operation *op, double part, bool begins) {
    struct shore__simulation *s = r->s;
    const struct job *job = &s->job[op->job];
    const struct route_lanes *way = &s->route[s->one_memory ? KEPT_HERE : KEPT_THERE];
    uint32_t j = begins ? r->asked++ : r->asked - 1;
    s->job_at[j] = r->now;
    for (uint32_t i = 0; begins && i < s->nbusy; i++)
        s->busy[i]->done[j] = 0;
    for (uint32_t i = job->first; i < job->end; i++)
        add_behind(r, s->part[i].lane, j, s->part[i].seconds * part * s->part[i].lane->left);
    for (uint32_t i = 0; op->kept_bytes > 0 && i < way->count; i++)
        add_behind(r, way->on[i].lane, j, op->kept_bytes * way->on[i].each * part);
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
    double end = start + seconds;
    for (uint32_t i = 0; i < s->nsharing; i++) {
        struct lane *l = s->sharing[i];
        if (!(l->behind > start)) continue;
        end += l->slows * fmin(seconds, l->behind - start);
        drop_done(l, start);
        for (uint32_t j = 0; j < l->queued; j++)
            l->done[l->queue[j]] += l->slowed * fmin(seconds, l->done[l->queue[j]] - start);
        l->behind += l->slowed * fmin(seconds, l->behind - start);
    }
    s->compute_seconds += end - start;
    return end;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* A buffer becomes the one that was taken last. */
static void to_newest(struct stream *st, uint32_t b) {
    struct buffer *of = &st->buffer[b];
    if (b == st->newest) return;
    if (b == st->oldest) st->oldest = of->after;
    if (of->before != SHORE__NONE) st->buffer[of->before].after = of->after;
    st->buffer[of->after].before = of->before;
    st->buffer[st->newest].after = b;
    of->before = st->newest;
    of->after = SHORE__NONE;
    st->newest = b;
}

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

static uint32_t *where(const struct stream *st, uint32_t tensor) {
    return &st->where[2 * tensor];
}

/* Whether a tensor still lies in a buffer of the stream, so that it need not come in this step. An update changes it on
 * the drives, and not there. */
static bool is_there(const struct stream *st, const struct entry *e) {
    uint32_t b = *where(st, e->tensor);
    if (b >= st->nbuffers || st->buffer[b].tensor != e->tensor) return false;
    return e->changer == SHORE__NONE || st->buffer[b].step == st->step;
}

/* Goes on to the next entry. */
static void advance(struct stream *st, struct entry *e, uint32_t buffer) {
    e->buffer = buffer;
    st->next++;
    if (++st->at < st->count) return;
    st->at = 0;
    st->step++;
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

/* ---- fates ------------------------------------------------------------------------------------------------------- */

static enum route route_of(const struct shore__simulation *s, const struct shore_tensor *t, enum shore_way way,
                           bool in) {
    bool across = !s->one_memory && (t->place == SHORE_PLACE_DEVICE || t->place == SHORE_PLACE_BOTH);
    if (way == SHORE_WAY_MOVE) return across ? in ? ACROSS_IN : ACROSS_OUT : in ? DRIVE_IN : DRIVE_OUT;
    return in ? BUS_IN : BUS_OUT;
}

static struct entry *add_entry(struct shore__simulation *s, struct stream *st, const struct shore__use *u,
                               enum passing passing, enum route route) {
    const struct shore_tensor *t = &s->program->tensor[u->tensor];
    struct entry *e = &st->entry[st->count++];
    *e = (struct entry){.operation = u->operation,
                        .tensor = u->tensor,
                        .changer = passing == COMES ? s->tensor[u->tensor].changer : SHORE__NONE,
                        .passing = (unsigned char)passing,
                        .route = (unsigned char)route,
                        .bytes = (double)(t->moved_bytes ? t->moved_bytes : t->bytes)};
    return e;
}

/* The device's copy of a parameter comes from the host's memory: of a stream there, or where it stays. */
static void add_copy(struct shore__simulation *s, struct stream *st, const struct shore__use *u, uint32_t host) {
    struct entry *e = add_entry(s, st, u, COMES, BUS_IN);
    e->copy = true;
    struct stream *from = &s->stream[2 * s->tensor[host].group];
    for (uint32_t i = from->count; i-- && from->entry[i].operation == u->operation;)
        if (from->entry[i].tensor == host) {
            from->entry[i].other = st;
            from->entry[i].its = (uint32_t)(e - st->entry);
            e->other = from;
            e->its = i;
        }
}

/* The part of a tensor that is computed again: all of it, or what an amount lacks. */
static double part_again(const struct shore_tensor *t, const struct shore__fate *f) {
    if (t->ways || t->full_bytes <= t->bytes) return f->way == SHORE_WAY_AGAIN;
    return (double)(t->full_bytes - f->bytes) / (double)(t->full_bytes - t->bytes);
}

/* A parameter comes before each operation that reads it, or stays: then its update sends it there. */
static void add_parameter(struct shore__simulation *s, const struct shore__use *u, bool moves) {
    const struct timed_tensor *t = &s->tensor[u->tensor];
    const struct shore_tensor *of = &s->program->tensor[u->tensor];
    struct stream *host = &s->stream[2 * t->group];
    struct timed_operation *op = &s->op[u->operation];
    if (moves && t->copy_of != SHORE__NONE)
        add_copy(s, host, u, t->copy_of);
    else if (moves)
        add_entry(s, host, u, COMES, route_of(s, of, SHORE_WAY_MOVE, true));
    else if (t->changer != SHORE__NONE) {
        s->wait[op->end_wait++] = t->changer;
        if (u->operation == t->first_reader) s->op[t->changed].kept_bytes += (double)of->bytes;
    }
    if (host[1].nbuffers) add_copy(s, host + 1, u, u->tensor);
}

/* What becomes of a use of a tensor: it passes through buffers, is computed again, or lies there. */
static void add_use(struct shore__simulation *s, const struct shore__fate *fate, const struct shore__use *u) {
    const struct timed_tensor *t = &s->tensor[u->tensor];
    const struct shore_tensor *of = &s->program->tensor[u->tensor];
    const struct shore__fate *f = &fate[u->tensor];
    struct timed_operation *op = &s->op[u->operation];
    struct stream *st = &s->stream[2 * t->group];
    bool moves = f->way == SHORE_WAY_MOVE || f->way == SHORE_WAY_HOST;
    if (!f->count || u->kind == SHORE__FREES || u->kind == SHORE__CHANGES) return;
    if (u->kind == SHORE__MAKES) {
        if (moves) add_entry(s, st, u, t->first_reader == SHORE__NONE ? WAITS : LEAVES, route_of(s, of, f->way, false));
        return;
    }
    if (u->operation == t->maker || op->idle) return;
    if (u->operation == t->first_reader) op->more_seconds += t->again_seconds * part_again(of, f);
    if (t->maker == SHORE__NONE)
        add_parameter(s, u, moves);
    else if (moves)
        add_entry(s, st, u, COMES, route_of(s, of, f->way, true));
}

/* What memory beyond the least saves: of computing, in the operations that read it, or of a lane's work behind. */
static void save(struct shore__simulation *s, const struct shore__fate *fate) {
    double saved[SHORE_LANES] = {0};
    for (uint32_t i = 0; i < s->nsaving; i++) {
        const struct shore_tensor *t = &s->program->tensor[s->saving[i]];
        const struct shore__fate *f = &fate[s->saving[i]];
        if (f->count && f->bytes > t->bytes) saved[t->saves_lane] += t->saves * (double)(f->bytes - t->bytes);
    }
    saved[SHORE_LANE_DRIVE_READ] += saved[SHORE_LANE_DRIVE_MIXED] / 2;
    saved[SHORE_LANE_DRIVE_WRITE] += saved[SHORE_LANE_DRIVE_MIXED] / 2;
    saved[SHORE_LANE_DRIVE_MIXED] = saved[SHORE_LANE_DRIVE_READ] + saved[SHORE_LANE_DRIVE_WRITE];
    for (uint32_t i = 0; i < s->nlanes; i++) {
        double all = s->work[s->lane[i].as];
        s->lane[i].left = all > 0 ? fmax(1 - saved[s->lane[i].as] / all, 0) : 1;
    }
    for (uint32_t o = 0; s->computed_seconds > 0 && o < s->program->nops; o++)
        s->op[o].more_seconds -= saved[SHORE_LANE_COMPUTE] * s->op[o].seconds / s->computed_seconds;
}

static void empty(struct stream *st) {
    st->next = st->used = 0;
    st->step = st->at = st->used_at = st->oldest = 0;
    st->newest = st->nbuffers - 1;
    for (uint32_t b = 0; b < st->nbuffers; b++)
        st->buffer[b] = (struct buffer){.tensor = SHORE__NONE,
                                        .before = b ? b - 1 : SHORE__NONE,
                                        .after = b < st->newest ? b + 1 : SHORE__NONE,
                                        .user = UINT64_MAX,
                                        .job = SHORE__NONE};
}

/* Finds what a device's buffers still hold from the use before, so that the host need not have it: in two steps. */
static void find_what_stays(struct stream *st) {
    for (uint32_t i = 0; i < 2 * st->count; i++) {
        struct entry *e = &st->entry[st->at];
        e->stays = is_there(st, e);
        uint32_t b = e->stays ? *where(st, e->tensor) : st->oldest;
        st->buffer[b].tensor = e->tensor;
        st->buffer[b].step = st->step;
        *where(st, e->tensor) = b;
        to_newest(st, b);
        advance(st, e, b);
    }
    empty(st);
}

/* Opens the streams: what passes, and through how many buffers. */
static void open_streams(struct run *r, const struct shore__fate *fate) {
    struct shore__simulation *s = r->s;
    const struct shore_program *p = s->program;
    s->nactive = 0;
    memset(s->where, 0xff, 2 * p->ntensors * sizeof *s->where);
    for (uint32_t i = 0; i < 2 * s->ngroups; i++)
        s->stream[i].nbuffers = s->stream[i].count = 0;
    for (uint32_t i = 0; i < s->nbuffers; i++) {
        const struct shore_tensor *t = &p->tensor[s->buffers_of[i]];
        s->stream[2 * s->tensor[s->buffers_of[i]].group + (t->there && !s->one_memory)].nbuffers +=
            (uint32_t)fate[s->buffers_of[i]].count;
    }
    for (uint32_t o = 0; o < p->nops; o++)
        s->op[o].more_seconds = s->op[o].kept_bytes = 0;
    for (uint32_t o = 0; o < p->nops; o++) {
        s->op[o].first_wait = s->op[o].end_wait = o ? s->op[o - 1].end_wait : 0;
        for (uint32_t i = s->op[o].first; i < s->op[o].end; i++)
            add_use(s, fate, &s->use[i]);
    }
    for (uint32_t i = 0; i < 2 * s->ngroups; i++) {
        struct stream *st = &s->stream[i];
        if (st->nbuffers > st->count) st->nbuffers = st->count;
        if (!st->nbuffers) st->nbuffers = 1; /* what has no buffers takes turns */
        empty(st);
        if (!st->count) continue;
        s->active[s->nactive++] = st;
        for (uint32_t e = 0; e < st->count; e++)
            if (st->entry[e].copy) {
                find_what_stays(st);
                break;
            }
    }
    save(s, fate);
    memset(s->left, 0, p->ntensors * sizeof *s->left);
    for (uint32_t i = 0; i < s->nlanes; i++) {
        s->lane[i].asked = (struct shore__bucket){.each = 1};
        s->lane[i].behind = s->lane[i].queued = 0;
    }
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
    uint64_t kept = 0;
    for (uint32_t o = 0; o < s->program->nops; o++)
        kept += (uint64_t)s->op[o].kept_bytes;
    out->drive_read_bytes = r->read + (uint64_t)(work[SHORE_LANE_DRIVE_READ] * s->lane[LANES_OF_HOST + OF_READ].left);
    out->drive_write_bytes =
        r->written +
        (uint64_t)(work[SHORE_LANE_DRIVE_WRITE] * s->lane[LANES_OF_HOST + OF_WRITE].left + work[SHORE_LANE_COMMIT]);
    out->link_bytes = r->link + kept + (uint64_t)(work[SHORE_LANE_LINK_IN] + work[SHORE_LANE_LINK_OUT]);
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
    open_streams(&r, fate);
    for (; r.step < SHORE__SIMULATED_STEPS; r.step++) {
        begin_step(&r);
        for (uint32_t o = 0; o < s->program->nops; o++)
            run_operation(&r, o);
    }
    out->step_seconds = r.now - r.ended;
    out->lane_seconds[SHORE_LANE_COMPUTE] = s->compute_seconds;
    out->lane_seconds[SHORE_LANE_COMMIT] = s->commit_seconds;
    const struct route_lanes *kept = &s->route[s->one_memory ? KEPT_HERE : KEPT_THERE];
    for (uint32_t o = 0; o < s->program->nops; o++)
        for (uint32_t i = 0; s->op[o].kept_bytes > 0 && i < kept->count; i++)
            kept->on[i].lane->asked.busy += s->op[o].kept_bytes * kept->on[i].each;
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
