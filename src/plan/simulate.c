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

/* Asks a lane for what an operation waits for. It goes before the work behind operations, which ends so much later. */
static double ask(struct lane *l, uint32_t asked, double now, double seconds) {
    double start = later(now, l->asked.free), over = shore__bucket_serve(&l->asked, now, seconds);
    if (l->behind <= start) return over;
    while (l->open < asked && l->done[l->open] <= start)
        l->open++;
    for (uint32_t j = l->open; j < asked; j++)
        l->done[j] += seconds;
    l->behind += seconds;
    return over;
}

static double move(struct run *r, enum route route, double now, double bytes) {
    const struct route_lanes *way = &r->s->route[route];
    double over = now;
    for (uint32_t i = 0; i < way->count; i++)
        over = later(over, ask(way->on[i].lane, r->asked, now, bytes * way->on[i].each));
    if (route != BUS_IN && route != BUS_OUT) {
        bool in = route == DRIVE_IN || route == ACROSS_IN;
        *(in ? &r->read : &r->written) += (uint64_t)bytes;
        r->link += (uint64_t)bytes;
    }
    return over;
}

/* Leaves a part of the work behind an operation. begins: the first one. */
static void leave_behind(struct run *r, const struct timed_operation *op, double part, bool begins) {
    struct shore__simulation *s = r->s;
    const struct job *job = &s->job[op->job];
    r->asked += begins;
    s->job_at[r->asked - 1] = r->now;
    for (uint32_t i = job->first; i < job->end; i++) {
        struct lane *l = s->part[i].lane;
        l->behind = later(later(l->behind, l->asked.free), r->now) + s->part[i].seconds * part;
    }
    for (uint32_t i = 0; i < s->nbusy; i++)
        s->busy[i]->done[r->asked - 1] = s->busy[i]->behind;
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
        for (uint32_t j = l->open; j < r->asked; j++)
            if (l->done[j] > start) l->done[j] += l->slowed * fmin(seconds, l->done[j] - start);
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
    uint32_t changer = s->tensor[e->tensor].changer;
    double at = s->left[e->tensor];
    if (e->passing != COMES) return 0;
    if (there && at < INFINITY) at = 0; /* what is on its way out can be read on */
    if (changer != SHORE__NONE && st->step) at = later(at, done(r, (st->step - 1) * s->njobs + changer));
    if (e->source == SHORE__NONE) return at;
    const struct stream *from = st - 1;
    bool here = from->next > (uint64_t)st->step * from->count + e->source;
    return here ? later(at, from->entry[e->source].at) : INFINITY;
}

/* The host's buffer is free once what lay there has crossed the bus. */
static void free_source(const struct stream *st, const struct entry *e) {
    const struct stream *from = st - 1;
    struct buffer *b = &from->buffer[from->entry[e->source].buffer];
    if (b->user == (uint64_t)st->step * from->count + e->source) b->free = e->at;
}

/* The stream's next entry takes a buffer, if there is one. must: whatever it takes. */
static bool take_next(struct run *r, struct stream *st, bool must) {
    struct shore__simulation *s = r->s;
    struct entry *e = &st->entry[st->at];
    uint32_t *where = &s->where[2 * e->tensor + (st - s->stream) % 2];
    bool comes = e->passing == COMES, there = comes && *where < st->nbuffers && st->buffer[*where].tensor == e->tensor;
    uint32_t b = there ? *where : st->oldest;
    struct buffer *to = &st->buffer[b];
    double at = ready(r, st, e, there), room = there ? to->there : to->job != SHORE__NONE ? done(r, to->job) : to->free;
    if (later(at, room) == INFINITY && !must) return false;
    e->at = at < INFINITY ? at : r->now;
    if (room < INFINITY) e->at = later(e->at, room);
    if (!there) e->at = later(e->at, r->now);
    if (comes && !there) e->at = move(r, (enum route)e->route, e->at, e->bytes);
    if (e->passing == LEAVES) s->left[e->tensor] = INFINITY;
    if (e->source != SHORE__NONE) free_source(st, e);
    e->buffer = b;
    to->tensor = e->passing == WAITS ? SHORE__NONE : e->tensor;
    to->there = e->at;
    to->user = st->next++;
    if (++st->at == st->count) {
        st->at = 0;
        st->step++;
    }
    to->job = SHORE__NONE;
    to->free = INFINITY;
    *where = b;
    to_newest(st, b);
    return true;
}

/* Brings what may come: tensors in order, each as soon as there is a buffer. */
static void prefetch(struct run *r) {
    struct shore__simulation *s = r->s;
    for (uint32_t i = 0; i < s->nactive; i++) {
        struct stream *st = s->active[i];
        while (st->next < st->used + st->count && st->entry[st->at].passing == COMES)
            if (!take_next(r, st, false)) break;
    }
}

/* Returns when the nth entry of the operation at hand may be used. */
static double take(struct run *r, struct stream *st, uint32_t nth) {
    const struct entry *e = &st->entry[st->used_at + nth];
    if (e->source != SHORE__NONE) {
        struct stream *from = st - 1;
        while (from->next <= (uint64_t)r->step * from->count + e->source)
            if (!take_next(r, from, false)) take_next(r, from, true);
    }
    while (st->next <= st->used + nth)
        if (!take_next(r, st, false)) take_next(r, st, true);
    return e->at;
}

/* The operation is done with an entry. A gradient's buffer is free once the work behind the operation took it. */
static void let_go(struct run *r, struct stream *st, uint32_t nth) {
    struct shore__simulation *s = r->s;
    struct entry *e = &st->entry[st->used_at + nth];
    struct buffer *b = &st->buffer[e->buffer];
    const struct timed_operation *op = &s->op[e->operation];
    double at = later(r->now, s->left[e->tensor]); /* it may still be on its way out */
    if (e->passing == LEAVES) at = s->left[e->tensor] = move(r, (enum route)e->route, r->now, e->bytes);
    if (e->passing == WAITS && op->job != SHORE__NONE) {
        leave_behind(r, op, 1.0 / r->waiting, r->left++ == 0);
        if (r->left == r->waiting) b->job = r->asked - 1;
        at = done(r, r->asked - 1);
    }
    if (b->user == st->used + nth && !e->copied) b->free = at;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* An operation that uses more tensors of a group than one is done in so many parts: each needs its own. */
static uint32_t begin_parts(struct run *r, uint32_t operation) {
    struct shore__simulation *s = r->s;
    uint32_t parts = 1;
    r->waiting = r->left = 0;
    for (uint32_t i = 0; i < s->nactive; i++) {
        struct stream *st = s->active[i];
        st->here = st->taken = st->gone = 0;
        for (const struct entry *e = st->entry + st->used_at, *end = st->entry + st->count;
             e < end && e->operation == operation; e++, st->here++)
            r->waiting += e->passing == WAITS;
        if (st->here > parts) parts = st->here;
    }
    return parts;
}

/* When all that a part of the operation uses is there. */
static double part_starts(struct run *r, uint32_t part, uint32_t parts) {
    double start = r->now;
    for (uint32_t i = 0; i < r->s->nactive; i++) {
        struct stream *st = r->s->active[i];
        for (; st->taken < st->here && st->taken * parts <= part * st->here; st->taken++)
            start = later(start, take(r, st, st->taken));
    }
    return start;
}

/* Lets go of what the operation is done with after a part: gradients that wait, or everything else. */
static void end_part(struct run *r, uint32_t part, uint32_t parts, bool waits) {
    for (uint32_t i = 0; i < r->s->nactive; i++) {
        struct stream *st = r->s->active[i];
        for (; st->gone < st->here && (st->gone + 1) * parts <= (part + 1) * st->here; st->gone++) {
            if ((st->entry[st->used_at + st->gone].passing == WAITS) != waits) break;
            let_go(r, st, st->gone);
        }
    }
}

static double operation_starts(const struct run *r, uint32_t operation) {
    const struct shore__simulation *s = r->s;
    const struct timed_operation *op = &s->op[operation];
    double start = r->now;
    if (!r->step) return start;
    if (op->waits) start = later(start, done(r, (r->step - 1) * s->njobs + op->waits - 1));
    if (operation == s->first_gradient) {
        double over = s->njobs ? later(r->ended, done(r, r->step * s->njobs - 1)) : r->ended;
        start = later(start, over + s->commit_seconds);
    }
    return start;
}

static void run_operation(struct run *r, uint32_t operation) {
    struct shore__simulation *s = r->s;
    struct timed_operation *op = &s->op[operation];
    uint32_t parts = begin_parts(r, operation);
    double seconds = (op->seconds + op->again_seconds) / parts;
    r->now = operation_starts(r, operation);
    for (uint32_t part = 0; part < parts; part++) {
        double start = part_starts(r, part, parts);
        if (!part) op->began = start;
        r->now = compute(r, start, seconds);
        end_part(r, part, parts, false);
        prefetch(r); /* before the gradient is left behind */
        if (r->waiting) end_part(r, part, parts, true);
    }
    for (uint32_t i = 0; i < s->nactive; i++) {
        struct stream *st = s->active[i];
        st->used += st->here;
        st->used_at += st->here;
        if (st->used_at == st->count) st->used_at = 0;
    }
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

static struct entry *add_entry(struct shore__simulation *s, uint32_t stream, const struct shore__use *u,
                               enum passing passing, enum shore_way way) {
    const struct shore_tensor *t = &s->program->tensor[u->tensor];
    struct stream *st = &s->stream[stream];
    struct entry *e = &st->entry[st->count++];
    *e = (struct entry){.operation = u->operation,
                        .tensor = u->tensor,
                        .source = SHORE__NONE,
                        .passing = (unsigned char)passing,
                        .route = (unsigned char)route_of(s, t, way, passing == COMES),
                        .bytes = (double)t->bytes};
    return e;
}

/* The part of a tensor that is computed again: all of it, or what an amount lacks. */
static double part_again(const struct shore__simulation *s, uint32_t tensor, const struct shore__fate *f) {
    const struct shore_tensor *t = &s->program->tensor[tensor];
    if (t->ways || t->full_bytes <= t->bytes) return f->way == SHORE_WAY_AGAIN;
    return (double)(t->full_bytes - f->bytes) / (double)(t->full_bytes - t->bytes);
}

/* What becomes of a use of a tensor: it passes through buffers, is computed again, or lies there. */
static void add_use(struct shore__simulation *s, const struct shore__fate *fate, const struct shore__use *u) {
    const struct timed_tensor *t = &s->tensor[u->tensor];
    const struct shore__fate *f = &fate[u->tensor];
    bool made = t->maker != SHORE__NONE, moves = f->way == SHORE_WAY_MOVE;
    uint32_t host = 2 * t->group, device = host + 1;
    if (!f->count || u->kind == SHORE__FREES || u->kind == SHORE__CHANGES) return;
    if (u->kind == SHORE__MAKES) {
        if (moves) add_entry(s, host, u, t->first_reader == SHORE__NONE ? WAITS : LEAVES, f->way);
        return;
    }
    if (u->operation == t->maker) return;
    struct timed_operation *op = &s->op[u->operation];
    if (u->operation == t->first_reader) op->again_seconds += t->again_seconds * part_again(s, u->tensor, f);
    if (!moves && !made && t->changer != SHORE__NONE && op->waits <= t->changer) op->waits = t->changer + 1;
    struct entry *from = moves ? add_entry(s, host, u, COMES, f->way) : NULL;
    if (made || !s->stream[device].nbuffers) return;
    struct entry *e = add_entry(s, device, u, COMES, SHORE_WAY_KEEP);
    if (!from) return;
    from->copied = true;
    e->source = (uint32_t)(from - s->stream[host].entry);
}

/* Opens the streams: what passes, and through how many buffers. */
static void open_streams(struct shore__simulation *s, const struct shore__fate *fate) {
    const struct shore_program *p = s->program;
    s->nactive = 0;
    for (uint32_t i = 0; i < 2 * s->ngroups; i++)
        s->stream[i].nbuffers = s->stream[i].count = 0;
    for (uint32_t i = 0; i < s->nbuffers; i++) {
        const struct shore_tensor *t = &p->tensor[s->buffers_of[i]];
        s->stream[2 * s->tensor[s->buffers_of[i]].group + (t->there && !s->one_memory)].nbuffers +=
            (uint32_t)fate[s->buffers_of[i]].count;
    }
    for (uint32_t o = 0; o < p->nops; o++) {
        s->op[o].again_seconds = s->op[o].waits = 0;
        for (uint32_t i = s->op[o].first; i < s->op[o].end; i++)
            add_use(s, fate, &s->use[i]);
    }
    for (uint32_t i = 0; i < 2 * s->ngroups; i++) {
        struct stream *st = &s->stream[i];
        if (st->nbuffers > st->count) st->nbuffers = st->count;
        if (!st->nbuffers) st->nbuffers = 1; /* what has no buffers takes turns */
        if (st->count) s->active[s->nactive++] = st;
        st->next = st->used = 0;
        st->step = st->at = st->used_at = 0;
        st->oldest = 0;
        st->newest = st->nbuffers - 1;
        for (uint32_t b = 0; b < st->nbuffers; b++)
            st->buffer[b] = (struct buffer){.tensor = SHORE__NONE,
                                            .before = b ? b - 1 : SHORE__NONE,
                                            .after = b < st->newest ? b + 1 : SHORE__NONE,
                                            .user = UINT64_MAX,
                                            .job = SHORE__NONE};
    }
    memset(s->where, 0xff, 2 * p->ntensors * sizeof *s->where);
    memset(s->left, 0, p->ntensors * sizeof *s->left);
    for (uint32_t i = 0; i < s->nlanes; i++) {
        s->lane[i].asked = (struct shore__bucket){.each = 1};
        s->lane[i].behind = s->lane[i].open = 0;
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
    out->drive_read_bytes = s->read_bytes + r->read;
    out->drive_write_bytes = s->write_bytes + r->written;
    out->link_bytes = s->link_bytes + r->link;
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
    open_streams(s, fate);
    for (; r.step < SHORE__SIMULATED_STEPS; r.step++) {
        begin_step(&r);
        for (uint32_t o = 0; o < s->program->nops; o++)
            run_operation(&r, o);
    }
    out->step_seconds = r.now - r.ended;
    out->lane_seconds[SHORE_LANE_COMPUTE] = s->compute_seconds;
    out->lane_seconds[SHORE_LANE_COMMIT] = s->commit_seconds;
    for (uint32_t i = 0; i < s->nlanes; i++) {
        double *most = &out->lane_seconds[s->lane[i].as];
        *most = later(*most, s->lane[i].asked.busy + s->lane[i].behind_seconds);
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
