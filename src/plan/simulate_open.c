#include "plan/simulate_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"

#define DRIVES_MAX SHORE__MACHINE_DRIVES_MAX

/* ---- drives ------------------------------------------------------------------------------------------------------ */

/* Drives that are alike and do the same work are one class: each of them is done when all are. */
struct drives {
    uint32_t count, class[DRIVES_MAX], first[DRIVES_MAX], nclasses;
    double weight[DRIVES_MAX], later[DRIVES_MAX]; /* of a drive: its part of all work, and of the later work */
    uint32_t computing;                           /* on the cores of this host */
};

static const struct shore__machine_drive *described(const struct shore_machine *m, uint32_t drive) {
    static const struct shore__machine_drive unlimited = {.read = 0};
    const struct shore__machine_drive *d = shore__machine_drive(m, drive);
    return d ? d : &unlimited;
}

static bool of_drive(enum shore_lane lane) {
    return lane >= SHORE_LANE_DRIVE_READ && lane <= SHORE_LANE_DRIVE_UPDATE;
}

/* The drive whose lanes a drive takes: the first on its device. */
static uint32_t first_on_device(const struct shore_machine *m, uint32_t drive) {
    uint32_t shares = drive < m->ndrives ? m->drive[drive].shares : 0;
    return shares && shares <= drive ? shares - 1 : drive;
}

static bool alike(const struct shore_machine *m, const struct drives *d, uint32_t a, uint32_t b) {
    const struct shore__machine_drive *x = described(m, a), *y = described(m, b);
    return x->read == y->read && x->write == y->write && x->mixed == y->mixed && x->update == y->update &&
           x->flush_seconds == y->flush_seconds && x->host_computes == y->host_computes &&
           fabs(d->weight[a] - d->weight[b]) <= 1e-3 * d->weight[a] &&
           fabs(d->later[a] - d->later[b]) <= 1e-3 * d->later[a];
}

/* Finds how the program divides its work among the drives. */
static void find_drives(const struct shore_program *p, const struct shore_machine *m, struct drives *d) {
    double all = 0;
    *d = (struct drives){.count = 0};
    for (uint32_t i = 0; i < p->ncosts; i++) {
        const struct shore__cost *c = &p->cost[i];
        if (!of_drive(c->lane) || c->drive >= DRIVES_MAX) continue;
        uint32_t first = first_on_device(m, c->drive);
        if (c->drive >= d->count) d->count = c->drive + 1;
        d->weight[first] += (double)c->work;
        d->later[first] += (double)c->work * (1 + c->operation);
        all += (double)c->work;
    }
    if (!d->count) d->count = m->ndrives ? m->ndrives : 1;
    for (uint32_t i = 0; all <= 0 && i < d->count; i++)
        d->weight[first_on_device(m, i)] += 1;
    for (uint32_t i = 0; i < d->count; i++) {
        d->weight[i] /= all > 0 ? all : d->count;
        d->computing += described(m, i)->host_computes;
    }
    for (uint32_t i = 0; i < d->count; i++) {
        uint32_t first = first_on_device(m, i), c = 0;
        while (c < d->nclasses && !alike(m, d, d->first[c], first))
            c++;
        if (c == d->nclasses) d->first[d->nclasses++] = first;
        d->class[i] = c;
    }
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

static struct lane *lane_of_drive(struct shore__simulation *s, const struct drives *d, uint32_t drive, uint32_t which) {
    uint32_t c = d->class[drive < d->count ? drive : d->count - 1];
    return &s->lane[LANES_OF_HOST + c * LANES_OF_DRIVE + which];
}

static void add_lanes(struct shore__simulation *s, const struct shore_machine *m, const struct drives *d) {
    const double host[LANES_OF_HOST] = {
        m->bus_in, m->bus_out, m->bus_both, m->link[0], m->link_shared ? 0 : m->link[1], m->host_update};
    static const enum shore_lane as[LANES_OF_HOST] = {SHORE_LANE_BUS_IN,  SHORE_LANE_BUS_OUT,  SHORE_LANE_BUS_IN,
                                                      SHORE_LANE_LINK_IN, SHORE_LANE_LINK_OUT, SHORE_LANE_HOST_UPDATE};
    double crowd = s->one_memory && m->cores ? d->computing / (double)m->cores : 0;
    for (uint32_t i = 0; i < LANES_OF_HOST; i++)
        s->lane[i] = (struct lane){.as = as[i], .each = shore__rate_each(host[i])};
    if (s->one_memory) s->lane[LANE_HOST_UPDATE].slows = 1;
    for (uint32_t c = 0; c < d->nclasses; c++) {
        const struct shore__machine_drive *of = described(m, d->first[c]);
        const double rate[LANES_OF_DRIVE] = {of->read, of->write, of->mixed, of->update};
        struct lane *lane = &s->lane[LANES_OF_HOST + c * LANES_OF_DRIVE];
        for (uint32_t i = 0; i < LANES_OF_DRIVE; i++)
            lane[i] =
                (struct lane){.as = (enum shore_lane)(SHORE_LANE_DRIVE_READ + i), .each = shore__rate_each(rate[i])};
        if (!of->host_computes || !(crowd > 0)) continue;
        for (uint32_t i = 0; i < d->count; i++)
            lane[OF_UPDATE].slows += d->class[i] == c ? 1.0 / m->cores : 0;
        if (crowd <= 1) continue;
        lane[OF_UPDATE].each *= crowd; /* there are not enough for themselves */
        lane[OF_UPDATE].slows /= crowd;
    }
    if (s->lane[LANE_LINK_OUT].each <= 0 && m->link_shared) s->lane[LANE_LINK_OUT].as = SHORE_LANE_LINK_IN;
}

/* Adds a lane to a route, if it has a limit. weight: of a byte, so much takes this lane. */
static void add_way(struct route_lanes *r, struct lane *lane, double weight) {
    if (lane->each > 0 && weight > 0) r->on[r->count++] = (struct way_on){lane, lane->each * weight};
}

static void add_routes(struct shore__simulation *s, const struct shore_machine *m, const struct drives *d) {
    uint32_t most = s->nlanes;
    for (enum route r = 0; r < ROUTES; r++) {
        struct route_lanes *to = &s->route[r];
        bool in = r != DRIVE_OUT && r != BUS_OUT && r != ACROSS_OUT, kept = r == LINK_ALONE;
        to->on = s->on + r * most;
        if (r != BUS_IN && r != BUS_OUT) {
            for (uint32_t c = 0; !kept && c < d->nclasses; c++) {
                double weight = d->weight[d->first[c]];
                add_way(to, lane_of_drive(s, d, d->first[c], in ? OF_READ : OF_WRITE), weight);
                add_way(to, lane_of_drive(s, d, d->first[c], OF_MIXED), weight);
            }
            add_way(to, &s->lane[in && !m->link_shared ? LANE_LINK_OUT : LANE_LINK_IN], 1);
        }
        if (s->one_memory || r == DRIVE_IN || r == DRIVE_OUT || kept) continue;
        add_way(to, &s->lane[in ? LANE_BUS_IN : LANE_BUS_OUT], 1);
        add_way(to, &s->lane[LANE_BUS_BOTH], 1);
    }
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

static bool is_backward(enum shore_work_kind kind) {
    return kind == SHORE_WORK_PRODUCT_INPUT || kind == SHORE_WORK_PRODUCT_WEIGHT ||
           kind == SHORE_WORK_ATTENTION_BACKWARD;
}

/* Divides a step's seconds of forward and backward, if the machine gives them, by the products. */
static void take_given_seconds(struct shore__simulation *s, const struct shore_machine *m) {
    const struct shore_program *p = s->program;
    double sum[2] = {0, 0}, given[2] = {m->forward_seconds, m->backward_seconds};
    for (uint32_t i = 0; i < p->ncomputes; i++)
        if (p->computes[i].what.kind < SHORE_WORK_ROWS)
            sum[is_backward(p->computes[i].what.kind)] += (double)p->computes[i].what.work;
    for (uint32_t i = 0; i < s->program->nops; i++)
        s->op[i].seconds = 0;
    for (uint32_t i = 0; i < p->ncomputes; i++) {
        const struct shore_computing *c = &p->computes[i].what;
        bool back = is_backward(c->kind);
        if (c->kind < SHORE_WORK_ROWS && sum[back] > 0)
            s->op[p->computes[i].operation].seconds += given[back] * (double)c->work / sum[back];
    }
}

static void add_computing(struct shore__simulation *s, const struct shore_machine *m) {
    const struct shore_program *p = s->program;
    for (uint32_t i = 0; i < p->ncomputes; i++) {
        const struct shore_computing *c = &p->computes[i].what;
        struct timed_operation *op = &s->op[p->computes[i].operation];
        double seconds = shore__computing_seconds(c, m);
        op->seconds += seconds;
        if (c->kind == SHORE_WORK_ROWS) op->rows_seconds += seconds;
    }
    if (m->forward_seconds > 0 || m->backward_seconds > 0) take_given_seconds(s, m);
    for (uint32_t o = 0; o < p->nops; o++) {
        s->op[o].idle = s->op[o].seconds <= 0 && s->op[o].job == SHORE__NONE;
        s->computed_seconds += s->op[o].seconds;
    }
    for (uint32_t i = 0; i < p->ncosts; i++)
        s->work[p->cost[i].lane] += (double)p->cost[i].work;
    s->work[SHORE_LANE_DRIVE_MIXED] += s->work[SHORE_LANE_DRIVE_READ] + s->work[SHORE_LANE_DRIVE_WRITE];
}

/* The lanes that work behind an operation takes; the second one may be NULL. */
static void find_lanes(struct shore__simulation *s, const struct drives *d, const struct shore__cost *c,
                       struct lane *lane[2]) {
    static const unsigned char of_host[SHORE_LANES] = {[SHORE_LANE_BUS_IN] = LANE_BUS_IN,
                                                       [SHORE_LANE_BUS_OUT] = LANE_BUS_OUT,
                                                       [SHORE_LANE_LINK_IN] = LANE_LINK_IN,
                                                       [SHORE_LANE_LINK_OUT] = LANE_LINK_OUT,
                                                       [SHORE_LANE_HOST_UPDATE] = LANE_HOST_UPDATE};
    bool bus = c->lane == SHORE_LANE_BUS_IN || c->lane == SHORE_LANE_BUS_OUT;
    lane[1] = bus ? &s->lane[LANE_BUS_BOTH] : NULL;
    lane[0] = &s->lane[of_host[c->lane]];
    if (lane[0]->as != c->lane && !of_drive(c->lane)) lane[0] = &s->lane[LANE_LINK_IN]; /* one for both directions */
    if (!of_drive(c->lane)) return;
    lane[0] = lane_of_drive(s, d, c->drive, c->lane - SHORE_LANE_DRIVE_READ);
    if (c->lane <= SHORE_LANE_DRIVE_WRITE) lane[1] = lane_of_drive(s, d, c->drive, OF_MIXED);
}

/* Of a class of drives, the first stands for all: what others do is done by then. Drives of one device add up. */
static bool counts(const struct shore_machine *m, const struct drives *d, const struct shore__cost *c) {
    uint32_t drive = c->drive < d->count ? c->drive : d->count - 1;
    return !of_drive(c->lane) || d->first[d->class[drive]] == first_on_device(m, drive);
}

static void add_jobs(struct shore__simulation *s, const struct shore_machine *m, const struct drives *d) {
    const struct shore_program *p = s->program;
    uint32_t parts = 0;
    for (uint32_t o = 0; o < p->nops; o++) { /* program->cost need not be in order, but its operations have one job */
        s->op[o].job = SHORE__NONE;
        s->job[s->njobs] = (struct job){.first = parts, .needed = SHORE__NONE};
        for (uint32_t i = s->op[o].first; i < s->op[o].end; i++)
            if (s->use[i].kind == SHORE__CHANGES) s->op[o].job = s->njobs;
        for (uint32_t i = 0; i < p->ncosts; i++) {
            const struct shore__cost *c = &p->cost[i];
            struct lane *lane[2];
            if (c->operation != o || c->lane == SHORE_LANE_COMMIT) continue;
            s->op[o].job = s->njobs;
            if (!counts(m, d, c)) continue;
            find_lanes(s, d, c, lane);
            for (uint32_t l = 0; l < 2 && lane[l]; l++) {
                double seconds = (double)c->work * lane[l]->each;
                if (seconds <= 0) continue;
                s->part[parts++] = (struct job_part){lane[l], seconds};
                lane[l]->behind_seconds += seconds;
            }
        }
        s->job[s->njobs].end = parts;
        s->njobs += s->op[o].job != SHORE__NONE;
    }
}

static void add_commit(struct shore__simulation *s, const struct shore_machine *m, const struct drives *d) {
    const struct shore_program *p = s->program;
    double written[DRIVES_MAX] = {0};
    bool changes = false;
    for (uint32_t i = 0; i < p->ncosts; i++)
        if (p->cost[i].lane == SHORE_LANE_COMMIT)
            written[p->cost[i].drive < d->count ? p->cost[i].drive : d->count - 1] += (double)p->cost[i].work;
    for (uint32_t i = 0; i < p->nuses; i++)
        changes |= p->use[i].kind == SHORE__CHANGES;
    for (uint32_t i = 0; changes && i < d->count; i++) {
        double seconds = written[i] * lane_of_drive(s, d, i, OF_WRITE)->each + described(m, i)->flush_seconds;
        if (seconds > s->commit_seconds) s->commit_seconds = seconds;
    }
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Puts the uses in the order of their operations. */
static void sort_uses(struct shore__simulation *s) {
    const struct shore_program *p = s->program;
    for (uint32_t i = 0; i < p->nuses; i++)
        s->op[p->use[i].operation].end++;
    for (uint32_t o = 0, at = 0; o < p->nops; o++) {
        uint32_t n = s->op[o].end;
        s->op[o].first = s->op[o].end = at;
        at += n;
    }
    for (uint32_t i = 0; i < p->nuses; i++)
        s->use[s->op[p->use[i].operation].end++] = p->use[i];
}

static uint32_t group_number(struct shore__simulation *s, uint32_t group) {
    for (uint32_t i = 0; i < s->ngroups; i++)
        if (s->groups[i] == group) return i;
    s->groups[s->ngroups] = group;
    return s->ngroups++;
}

static void read_tensors(struct shore__simulation *s, const struct shore_machine *m) {
    const struct shore_program *p = s->program;
    for (uint32_t t = 0; t < p->ntensors; t++)
        s->tensor[t] = (struct timed_tensor){.maker = SHORE__NONE,
                                             .first_reader = SHORE__NONE,
                                             .changer = SHORE__NONE,
                                             .changed = SHORE__NONE,
                                             .copy_of = SHORE__NONE,
                                             .group = group_number(s, p->tensor[t].group)};
    for (uint32_t i = 0; i < p->nuses; i++)
        if (s->use[i].kind == SHORE__MAKES) s->tensor[s->use[i].tensor].maker = s->use[i].operation;
    s->first_gradient = SHORE__NONE;
    for (uint32_t i = 0; i < p->nuses; i++) {
        const struct shore__use *u = &s->use[i];
        struct timed_tensor *t = &s->tensor[u->tensor];
        if (u->kind == SHORE__CHANGES) {
            t->changer = s->op[u->operation].job;
            t->changed = u->operation;
            if (s->first_gradient == SHORE__NONE) s->first_gradient = u->operation;
        }
        if (u->kind == SHORE__READS && u->operation != t->maker && t->first_reader == SHORE__NONE)
            t->first_reader = u->operation;
    }
    for (uint32_t t = 0; t < p->ntensors; t++) {
        struct timed_tensor *of = &s->tensor[t];
        struct job *job = of->changer == SHORE__NONE ? NULL : &s->job[of->changer];
        if (job && of->first_reader < job->needed) job->needed = of->first_reader;
        bool waits = of->maker != SHORE__NONE && of->first_reader == SHORE__NONE && p->tensor[t].ways & SHORE_WAY_MOVE;
        if (waits && of->maker < s->first_gradient) s->first_gradient = of->maker;
        uint32_t again = p->tensor[t].again, parts = p->tensor[t].again_parts;
        /* seconds of a step that a machine gives have it in them */
        if (again && again <= p->nops && !(m->backward_seconds > 0)) {
            of->again_seconds = s->op[again - 1].seconds / (parts ? parts : 1);
            if (p->tensor[t].ways && p->tensor[t].full_bytes > p->tensor[t].bytes)
                of->cheap_seconds = s->op[again - 1].rows_seconds / (parts ? parts : 1);
        }
        if (p->tensor[t].saves > 0) s->saving[s->nsaving++] = t;
        s->stream[2 * of->group].apart += shore__may_stay_apart(&p->tensor[t]) && of->maker == SHORE__NONE;
    }
}

static bool is_parameter(const struct shore__simulation *s, const struct shore__use *u, bool on_device) {
    const struct shore_tensor *t = &s->program->tensor[u->tensor];
    return u->kind == SHORE__READS && s->tensor[u->tensor].maker == SHORE__NONE && t->ways & SHORE_WAY_MOVE &&
           (t->place == SHORE_PLACE_DEVICE) == on_device;
}

/* Finds which of the host's parameters a device's are copies of: of those that an operation reads, the first of the
 * first, and so on. */
static void pair_copies(struct shore__simulation *s) {
    for (uint32_t o = 0; !s->one_memory && o < s->program->nops; o++)
        for (uint32_t i = s->op[o].first, host = i; i < s->op[o].end; i++) {
            if (!is_parameter(s, &s->use[i], true)) continue;
            while (host < s->op[o].end && !is_parameter(s, &s->use[host], false))
                host++;
            if (host == s->op[o].end) break;
            s->tensor[s->use[i].tensor].copy_of = s->use[host++].tensor;
        }
}

/* Gives each stream room for all that may pass. */
static void divide_room(struct shore__simulation *s) {
    const struct shore_program *p = s->program;
    struct entry *entry = s->entries;
    struct buffer *buffer = s->buffers;
    for (uint32_t t = 0; t < p->ntensors; t++)
        if (p->tensor[t].buffers) s->buffers_of[s->nbuffers++] = t;
    for (uint32_t i = 0; i < p->nuses; i++)
        s->stream[2 * s->tensor[p->use[i].tensor].group].count++;
    for (uint32_t i = 0; i < 2 * s->ngroups; i++) {
        struct stream *st = &s->stream[i];
        uint32_t most = s->stream[i - i % 2].count;
        st->entry = entry;
        st->buffer = buffer;
        st->where = s->where + i % 2;
        entry += most;
        buffer += most + 1;
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

struct room {
    char *memory; /* NULL: how much is needed */
    size_t bytes;
};

static void *carve(struct room *r, size_t count, size_t each) {
    void *at = r->memory ? r->memory + r->bytes : NULL;
    r->bytes += (count * each + 15) / 16 * 16;
    return at;
}

static void divide(struct shore__simulation *s, struct room *r) {
    const struct shore_program *p = s->program;
    size_t n = p->ntensors + (size_t)1, uses = p->nuses + (size_t)1, ops = p->nops + (size_t)1, lanes = s->nlanes;
    s->tensor = carve(r, n, sizeof *s->tensor);
    s->op = carve(r, ops, sizeof *s->op);
    s->use = carve(r, uses, sizeof *s->use);
    s->job = carve(r, ops, sizeof *s->job);
    s->part = carve(r, 2 * (size_t)p->ncosts, sizeof *s->part);
    s->lane = carve(r, lanes, sizeof *s->lane);
    s->busy = carve(r, lanes, sizeof *s->busy);
    s->sharing = carve(r, lanes, sizeof *s->sharing);
    s->on = carve(r, lanes * ROUTES, sizeof *s->on);
    s->stream = carve(r, 2 * n, sizeof *s->stream);
    s->active = carve(r, 2 * n, sizeof *s->active);
    s->here = carve(r, 2 * n, sizeof *s->here);
    s->entries = carve(r, 2 * uses, sizeof *s->entries);
    s->buffers = carve(r, 2 * (uses + n), sizeof *s->buffers);
    s->buffers_of = carve(r, n, sizeof *s->buffers_of);
    s->saving = carve(r, n, sizeof *s->saving);
    s->wait = carve(r, uses, sizeof *s->wait);
    s->groups = carve(r, n, sizeof *s->groups);
    s->where = carve(r, 2 * n, sizeof *s->where);
    s->left = carve(r, n, sizeof *s->left);
    s->job_at = carve(r, STEPS_MOST * ops, sizeof *s->job_at);
    s->done = carve(r, STEPS_MOST * ops * lanes, sizeof *s->done);
    s->queues = carve(r, STEPS_MOST * ops * lanes, sizeof *s->queues);
}

/* Finds the lanes that work behind operations takes, and those of them that share cores with operations. */
static void find_busy(struct shore__simulation *s) {
    for (uint32_t i = 0; i < s->nlanes; i++) {
        struct lane *l = &s->lane[i];
        bool updates = i == LANE_LINK_IN || i == LANE_LINK_OUT || i == LANE_BUS_IN || i == LANE_BUS_BOTH;
        l->done = s->done + (size_t)i * STEPS_MOST * (s->program->nops + 1);
        l->queue = s->queues + (l->done - s->done);
        if (l->behind_seconds <= 0 && !updates) continue;
        s->busy[s->nbusy++] = l;
        if (l->slows > 0) s->sharing[s->nsharing++] = l;
    }
}

int shore__simulation_open(const struct shore_program *program, const struct shore_machine *machine, bool one_memory,
                           struct shore__simulation **out, struct shore_diag *diag) {
    const struct shore_machine *m = machine ? machine : shore__machine_assumed();
    struct shore__simulation as = {.program = program, .one_memory = one_memory}, *s;
    struct room needed = {.memory = NULL};
    struct drives d;
    find_drives(program, m, &d);
    as.nlanes = LANES_OF_HOST + d.nclasses * LANES_OF_DRIVE;
    divide(&as, &needed);
    s = *out = calloc(1, sizeof *s + needed.bytes);
    if (!s) return shore__fail(diag, -ENOMEM, "out of memory for the time of a step");
    *s = as;
    divide(s, &(struct room){.memory = (char *)(s + 1)});
    sort_uses(s);
    add_lanes(s, m, &d);
    add_routes(s, m, &d);
    add_jobs(s, m, &d);
    add_computing(s, m);
    read_tensors(s, m);
    pair_copies(s);
    divide_room(s);
    add_commit(s, m, &d);
    find_busy(s);
    return 0;
}

void shore__simulation_close(struct shore__simulation *s) {
    free(s);
}
