/* Applies the choice to each tensor: its fate, its row, and the sum. */
#include <assert.h>
#include <string.h>

#include "plan/plan.h"

uint64_t shore__tensor_bytes(const struct shore_tensor *t, bool full) {
    return full && t->full_bytes ? t->full_bytes : t->bytes;
}

const struct shore_tensor *shore__plan_nth(const struct shore_plan *plan, enum shore_role role, size_t nth) {
    const struct shore_program *p = plan->program;
    for (uint32_t i = 0; i < p->ntensors; i++)
        if (p->tensor[i].role == role && nth-- == 0) return &p->tensor[i];
    return NULL;
}

/* ---- fates ------------------------------------------------------------------------------------------------------- */

static enum shore_way stays(bool so) {
    return so ? SHORE_WAY_KEEP : SHORE_WAY_MOVE;
}

static struct shore__fate of_parameters(const struct shore_plan *plan, const struct shore_tensor *t, size_t nth) {
    const struct shore__choice *c = &plan->choice;
    size_t kept = t->role == SHORE_ROLE_LAYER ? c->layers : t->role == SHORE__ROLE_TABLE ? c->tables : c->lookups;
    return (struct shore__fate){.way = stays(nth < kept), .count = 1};
}

static struct shore__fate of_activation(const struct shore_plan *plan, const struct shore_tensor *t, size_t nth) {
    const struct shore__choice *c = &plan->choice;
    if (t->role == SHORE_ROLE_INPUT)
        return (struct shore__fate){.way = stays(plan->count[SHORE_ROLE_INPUT] - nth <= c->inputs), .count = 1};
    struct shore__fate fate = {.way = SHORE_WAY_KEEP, .full = nth < c->full_inner, .count = 1};
    bool moves = t->ways & SHORE_WAY_MOVE && nth - c->inner < c->moved_inner;
    if (nth >= c->inner) fate.way = moves ? SHORE_WAY_MOVE : SHORE_WAY_AGAIN;
    return fate;
}

/* The fate of a tensor with an amount: so many of it, or so many bytes more than the least. */
static struct shore__fate of_amount(const struct shore_plan *plan, const struct shore_tensor *t) {
    const struct shore__choice *c = &plan->choice;
    struct shore__fate fate = {.way = SHORE_WAY_KEEP, .count = 1};
    uint64_t more = 0;
    if (t->role == SHORE__ROLE_LOGITS) fate.count = c->logits;
    if (t->role == SHORE_ROLE_HOST) fate.count = c->host_buffers * c->host_segments;
    if (t->role == SHORE_ROLE_DRIVES) fate.full = c->drives;
    if (t->role == SHORE_ROLE_WORKSPACE) fate.full = c->workspace;
    if (t->role == SHORE_ROLE_HOLES) fate.count = c->holes;
    if (t->role == SHORE_ROLE_POOL) more = c->pool;
    if (t->role == SHORE_ROLE_GRADIENTS) more = c->gradients;
    if (t->role == SHORE_ROLE_SPARE) more = c->spare;
    fate.bytes = shore__tensor_bytes(t, fate.full) + more;
    return fate;
}

static struct shore__fate fate_of(const struct shore_plan *plan, const struct shore_tensor *t, size_t nth) {
    switch ((unsigned)t->role) {
    case SHORE_ROLE_LAYER:
    case SHORE__ROLE_TABLE:
    case SHORE__ROLE_LOOKUP:
        return of_parameters(plan, t, nth);
    case SHORE_ROLE_INPUT:
    case SHORE_ROLE_INNER:
        return of_activation(plan, t, nth);
    case SHORE__ROLE_HELD:
        return (struct shore__fate){.way = stays(plan->choice.held), .count = 1};
    case SHORE_ROLE_PIECE:
        return (struct shore__fate){.way = SHORE_WAY_MOVE, .count = 1};
    case SHORE_ROLE_BUFFERS:
        return (struct shore__fate){.way = SHORE_WAY_KEEP};
    default:
        return of_amount(plan, t);
    }
}

static bool is_there(const struct shore_plan *plan, const struct shore_tensor *t) {
    return (!t->with || plan->fate[t->with - 1].way == SHORE_WAY_KEEP) &&
           (!t->without || plan->fate[t->without - 1].way != SHORE_WAY_KEEP);
}

enum shore__passing shore__passing(const struct shore_plan *plan, enum shore_role role,
                                   const struct shore_tensor *buffers) {
    if (role == SHORE_ROLE_PIECE) return SHORE__PIECES;
    if (role != SHORE_ROLE_LAYER && role != SHORE__ROLE_TABLE && role != SHORE__ROLE_LOOKUP) return SHORE__PASSING;
    bool device = buffers->place == SHORE_PLACE_DEVICE && !plan->options.one_memory;
    return device && !buffers->there ? SHORE__SLOTS : SHORE__PAGES; /* those that are there follow the host's */
}

static void fill_buffers(struct shore_plan *plan, uint32_t id) {
    const struct shore_program *p = plan->program;
    const struct shore_tensor *buffers = &p->tensor[id];
    struct shore__fate *fate = &plan->fate[id];
    fate->bytes = 0;
    for (uint32_t i = 0; i < p->ntensors; i++) {
        const struct shore_tensor *t = &p->tensor[i];
        const struct shore__fate *of = &plan->fate[i];
        if (t->group != buffers->group || t->role == SHORE_ROLE_BUFFERS || !of->count) continue;
        /* while the rules raise the number of inner tensors that stay, any of them may still move */
        bool passes = t->role == SHORE_ROLE_INNER ? plan->choice.moved_inner > 0 : of->way == SHORE_WAY_MOVE;
        if (!passes && !buffers->there) continue;
        enum shore__passing what = shore__passing(plan, t->role, buffers);
        fate->count = what == SHORE__PASSING ? buffers->most : plan->choice.buffers[what];
        if (buffers->there) fate->count = fate->count > buffers->index;
        if (t->bytes > fate->bytes) fate->bytes = t->bytes;
    }
}

static void choose(struct shore_plan *plan) {
    const struct shore_program *p = plan->program;
    size_t nth[SHORE__ROLES] = {0};
    for (uint32_t i = 0; i < p->ntensors; i++) {
        const struct shore_tensor *t = &p->tensor[i];
        plan->fate[i] = fate_of(plan, t, nth[t->role]++);
    }
}

/* Derives the rest from the choice: sizes, tensors that depend on others, and the buffers of tensors that move. */
static void derive(struct shore_plan *plan) {
    const struct shore_program *p = plan->program;
    size_t moved[SHORE__ROLES] = {0};
    for (uint32_t i = 0; i < p->ntensors; i++) {
        struct shore__fate *fate = &plan->fate[i];
        fate->row = SHORE__NO_ROW;
        if (!fate->bytes) fate->bytes = shore__tensor_bytes(&p->tensor[i], fate->full);
        if (!is_there(plan, &p->tensor[i])) *fate = (struct shore__fate){.row = SHORE__NO_ROW, .bytes = fate->bytes};
        if (fate->way == SHORE_WAY_MOVE) fate->moved = moved[p->tensor[i].role]++;
    }
    for (uint32_t i = 0; i < p->ntensors; i++)
        if (p->tensor[i].role == SHORE_ROLE_BUFFERS) fill_buffers(plan, i);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void add_row(struct shore_plan *plan, uint32_t id, uint32_t index, uint64_t bytes) {
    const struct shore_tensor *t = &plan->program->tensor[id];
    shore__regions_add(&plan->rows, t->key, index, t->name, t->place, bytes, plan->live[id]);
}

/* Adds the row that `first` and the next tensors share. Returns the first tensor after them. */
static uint32_t add_shared(struct shore_plan *plan, uint32_t first) {
    const struct shore_program *p = plan->program;
    const struct shore_tensor *of = &p->tensor[first];
    uint64_t bytes = 0;
    uint32_t end = first;
    for (; end < p->ntensors && p->tensor[end].key == of->key && p->tensor[end].index == of->index; end++) {
        struct shore__fate *fate = &plan->fate[end];
        if (fate->way != SHORE_WAY_KEEP) continue;
        fate->row = plan->rows.count;
        fate->at = bytes;
        bytes += fate->bytes * fate->count;
    }
    if (bytes) add_row(plan, first, of->index, bytes);
    return end;
}

/* Counts a tensor that its maker allocates. */
static void add_own(struct shore_plan *plan, const struct shore_tensor *t, const struct shore__fate *fate) {
    uint64_t bytes = fate->way == SHORE_WAY_KEEP ? fate->bytes * fate->count : 0;
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
        } else if (t->role == SHORE_ROLE_BUFFERS) {
            fate->row = fate->bytes && fate->count ? plan->rows.count : SHORE__NO_ROW;
            for (uint32_t b = 0; b < fate->count && fate->bytes; b++)
                add_row(plan, i, t->index + b, fate->bytes);
            i++;
        } else
            i = add_shared(plan, i);
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
