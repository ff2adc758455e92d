/* What fates mean for a simulation: which tensors pass through which buffers, and what work they save or add. */
#include <math.h>
#include <string.h>

#include "plan/simulate_impl.h"

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
                        .bytes = (double)shore__moved_bytes(t)};
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
        bool there = !s->one_memory && of->place == SHORE_PLACE_DEVICE;
        for (int i = 0; u->operation == t->first_reader && i <= there; i++)
            s->op[t->changed].kept[i] += (double)of->bytes;
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
    if (u->operation == t->first_reader) {
        op->more_seconds += t->again_seconds * part_again(of, f);
        if (f->way != SHORE_WAY_AGAIN && !f->full) op->more_seconds += t->cheap_seconds;
    }
    if (t->maker == SHORE__NONE)
        add_parameter(s, u, moves && !(shore__may_stay_apart(of) && st->nbuffers >= st->apart));
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
void shore__simulation_apply(struct shore__simulation *s, const struct shore__fate *fate) {
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
        s->op[o].more_seconds = s->op[o].kept[0] = s->op[o].kept[1] = 0;
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
