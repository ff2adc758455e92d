/* Gives each tensor what its class has: its fate, its row; the sum, and a step's time. */
#include <assert.h>
#include <string.h>

#include "base/units.h"
#include "plan/plan.h"
#include "plan/simulate.h"

uint64_t shore__tensor_bytes(const struct shore_tensor *t, bool full) {
    return full && t->full_bytes ? t->full_bytes : t->bytes;
}

/* ---- fates ------------------------------------------------------------------------------------------------------- */

/* What becomes of those of a class that get nothing. */
static enum shore_way least_way(unsigned ways) {
    if (ways & SHORE_WAY_AGAIN) return SHORE_WAY_AGAIN;
    return ways & SHORE_WAY_MOVE ? SHORE_WAY_MOVE : ways & SHORE_WAY_HOST ? SHORE_WAY_HOST : SHORE_WAY_KEEP;
}

static struct shore__fate fate_of(const struct shore_tensor *t, unsigned ways, const struct shore__share *s,
                                  size_t nth) {
    struct shore__fate fate = {.way = SHORE_WAY_KEEP, .count = 1};
    if (t->buffers) return (struct shore__fate){.way = SHORE_WAY_KEEP};
    if (!t->ways) {
        fate.bytes = t->bytes + s->more;
        fate.full = t->full_bytes && fate.bytes == t->full_bytes;
        return fate;
    }
    if (nth < s->kept)
        fate.full = nth < s->full;
    else if (nth - s->kept < s->host)
        fate.way = SHORE_WAY_HOST;
    else if (nth - s->kept - s->host < s->moved)
        fate.way = SHORE_WAY_MOVE;
    else
        fate.way = least_way(ways);
    return fate;
}

static void choose(struct shore_plan *plan) {
    for (uint32_t k = 0; k < plan->nclasses; k++) {
        const struct shore__class *of = &plan->class[k];
        unsigned ways = shore__class_ways(plan, of);
        const uint32_t *order = plan->share[k].moved ? plan->spread : plan->order;
        for (uint32_t nth = 0; nth < of->n; nth++) {
            uint32_t id = order[of->first + nth];
            plan->fate[id] = fate_of(&plan->program->tensor[id], ways, &plan->share[k], nth);
        }
    }
}

static bool is_there(const struct shore_plan *plan, const struct shore_tensor *t) {
    return (!t->with || plan->fate[t->with - 1].way == SHORE_WAY_KEEP) &&
           (!t->without || plan->fate[t->without - 1].way != SHORE_WAY_KEEP);
}

/* Buffers are there as far as something passes through them: no more than that, but at least the least. */
static void fill_buffers(const struct shore_plan *plan, const struct shore_tensor *buffers,
                         const struct shore__passing *g, struct shore__fate *fate) {
    size_t wanted = g->buffers == SHORE__NO_ROW ? buffers->least : plan->share[g->buffers].more;
    fate->bytes = buffers->there ? g->bytes : g->passing_bytes;
    if (buffers->there)
        fate->count = wanted > buffers->index;
    else if (g->passing && wanted > g->passing)
        fate->count = g->passing > buffers->least ? g->passing : buffers->least;
    else if (g->passing)
        fate->count = wanted;
}

/* Derives the rest from the choice: sizes, tensors that depend on others, and the buffers of tensors that move. */
static void derive(struct shore_plan *plan) {
    const struct shore_program *p = plan->program;
    for (uint32_t g = 0; g < plan->ngroups; g++)
        plan->group[g].passing = plan->group[g].moved = plan->group[g].passing_bytes = plan->group[g].bytes = 0;
    for (uint32_t i = 0; i < p->ntensors; i++) {
        const struct shore_tensor *t = &p->tensor[i];
        struct shore__fate *fate = &plan->fate[i];
        fate->row = SHORE__NO_ROW;
        if (!fate->bytes) fate->bytes = shore__tensor_bytes(t, fate->full);
        if (!is_there(plan, t)) *fate = (struct shore__fate){.row = SHORE__NO_ROW, .bytes = fate->bytes};
        if (plan->group_of[i] == SHORE__NO_ROW || t->buffers || !fate->count) continue;
        struct shore__passing *g = &plan->group[plan->group_of[i]];
        if (t->bytes > g->bytes) g->bytes = t->bytes;
        if (fate->way != SHORE_WAY_MOVE && fate->way != SHORE_WAY_HOST) continue;
        g->passing++;
        if (fate->way == SHORE_WAY_MOVE) fate->moved = g->moved++;
        if (t->bytes > g->passing_bytes) g->passing_bytes = t->bytes;
    }
    for (uint32_t i = 0; i < p->ntensors; i++)
        if (p->tensor[i].buffers && plan->group_of[i] != SHORE__NO_ROW)
            fill_buffers(plan, &p->tensor[i], &plan->group[plan->group_of[i]], &plan->fate[i]);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void add_row(struct shore_plan *plan, uint32_t id, uint32_t index, enum shore_place place, uint64_t bytes) {
    const struct shore_tensor *t = &plan->program->tensor[id];
    shore__regions_add(&plan->rows, t->key, index, t->name, place, bytes, plan->live[id]);
}

/* Adds the row that `first` and the next tensors share, of those with this way. Returns the first tensor after them. */
static uint32_t add_shared(struct shore_plan *plan, uint32_t first, enum shore_way way) {
    const struct shore_program *p = plan->program;
    const struct shore_tensor *of = &p->tensor[first];
    uint64_t bytes = 0;
    uint32_t end = first;
    for (; end < p->ntensors && p->tensor[end].key == of->key && p->tensor[end].index == of->index; end++) {
        struct shore__fate *fate = &plan->fate[end];
        if (fate->way != way) continue;
        fate->row = plan->rows.count;
        fate->at = bytes;
        bytes += fate->bytes * fate->count;
    }
    if (bytes) add_row(plan, first, of->index, way == SHORE_WAY_HOST ? SHORE_PLACE_PINNED : of->place, bytes);
    return end;
}

/* Counts a tensor that its maker allocates. */
static void add_own(struct shore_plan *plan, const struct shore_tensor *t, const struct shore__fate *fate) {
    uint64_t bytes = fate->way == SHORE_WAY_KEEP ? fate->bytes * fate->count : 0;
    if (fate->way == SHORE_WAY_HOST) plan->place_total[SHORE_PLACE_PINNED] += fate->bytes;
    bool both = t->place == SHORE_PLACE_BOTH;
    plan->place_total[both || plan->options.one_memory ? SHORE_PLACE_DEVICE : t->place] += bytes;
    if (both && !plan->options.one_memory) plan->place_total[SHORE_PLACE_PINNED] += bytes;
}

/* Adds all rows, and counts what has none. */
static void add_rows(struct shore_plan *plan) {
    const struct shore_program *p = plan->program;
    shore__regions_clear(&plan->rows);
    for (uint32_t i = 0; i < p->ntensors;) {
        const struct shore_tensor *t = &p->tensor[i];
        struct shore__fate *fate = &plan->fate[i];
        if (t->own) {
            add_own(plan, t, fate);
            i++;
        } else if (t->buffers) {
            fate->row = fate->bytes && fate->count ? plan->rows.count : SHORE__NO_ROW;
            for (uint32_t b = 0; b < fate->count && fate->bytes; b++)
                add_row(plan, i, t->index + b, t->place, fate->bytes);
            i++;
        } else {
            if (!plan->options.one_memory) add_shared(plan, i, SHORE_WAY_HOST);
            i = add_shared(plan, i, SHORE_WAY_KEEP);
        }
    }
}

uint32_t shore__plan_budget(const struct shore_plan *plan, enum shore_place place) {
    assert(place < SHORE_PLACES);
    return plan->options.place_bytes[place] ? (uint32_t)place : SHORE__SHARED;
}

uint64_t shore__plan_excess(void *ctx) {
    struct shore_plan *plan = ctx;
    uint64_t above = 0;
    choose(plan);
    shore__plan_lay_out(plan);
    for (int b = 0; b < SHORE__BUDGETS; b++)
        if (plan->total.of[b] > plan->limit.of[b]) above += plan->total.of[b] - plan->limit.of[b];
    return above;
}

void shore__plan_lay_out(struct shore_plan *plan) {
    memset(plan->place_total, 0, sizeof plan->place_total);
    memset(&plan->total, 0, sizeof plan->total);
    derive(plan);
    add_rows(plan);
    shore__regions_lay_out(&plan->rows);
    for (int k = 0; k < SHORE_PLACES; k++) {
        plan->place_total[k] += plan->rows.bytes[k];
        plan->total.of[shore__plan_budget(plan, (enum shore_place)k)] += plan->place_total[k];
    }
}

void shore__plan_simulate(struct shore_plan *plan) {
    struct shore_plan_times *times = &plan->times;
    double most = plan->options.written_bytes_per_day_most;
    shore__simulate(plan->simulation, plan->fate, times);
    double held = most > 0 ? (double)times->drive_write_bytes / most * SHORE__DAY_SECONDS : 0;
    if (held <= times->step_seconds) return;
    times->step_seconds = held;
    times->bound = SHORE_LANES;
}
