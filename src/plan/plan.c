/* Rows of what was chosen, their sums, and what is said of a budget that is too little. */
#include "plan/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/sized.h"
#include "plan/budget.h"

#define NO_ROW UINT32_MAX

uint64_t shore__tensor_bytes(const struct shore_tensor *t, bool full) {
    return full && t->full_bytes ? t->full_bytes : t->bytes;
}

const struct shore_tensor *shore__plan_nth(const struct shore_plan *plan, enum shore_role role, size_t nth) {
    const struct shore_program *p = plan->program;
    for (uint32_t i = 0; i < p->ntensors; i++)
        if (p->tensor[i].role == role && nth-- == 0) return &p->tensor[i];
    return NULL;
}

/* ---- what becomes of each tensor -----------------------------------------------------------------------------------
 */

static enum shore_way stays(bool so) {
    return so ? SHORE_WAY_KEEP : SHORE_WAY_MOVE;
}

static struct shore__fate of_parameters(const struct shore_plan *plan, const struct shore_tensor *t, size_t nth) {
    const struct shore__choice *c = &plan->choice;
    size_t kept = t->role == SHORE_ROLE_LAYER ? c->layers : t->role == SHORE_ROLE_TABLE ? c->tables : c->lookups;
    return (struct shore__fate){.way = stays(nth < kept), .count = 1};
}

static struct shore__fate of_activation(const struct shore_plan *plan, const struct shore_tensor *t, size_t nth) {
    const struct shore__choice *c = &plan->choice;
    if (t->role == SHORE_ROLE_INPUT)
        return (struct shore__fate){.way = stays(plan->count[SHORE_ROLE_INPUT] - nth <= c->inputs), .count = 1};
    struct shore__fate fate = {.way = SHORE_WAY_KEEP, .full = nth < c->full_inner, .count = 1};
    if (nth >= c->inner) fate.way = nth - c->inner < c->moved_inner ? SHORE_WAY_MOVE : SHORE_WAY_AGAIN;
    return fate;
}

/* Of what is there in an amount: so many, or so many bytes more than the least. */
static struct shore__fate of_amount(const struct shore_plan *plan, const struct shore_tensor *t) {
    const struct shore__choice *c = &plan->choice;
    struct shore__fate fate = {.way = SHORE_WAY_KEEP, .count = 1};
    uint64_t more = 0;
    if (t->role == SHORE_ROLE_LOGITS) fate.count = c->logits;
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
    switch (t->role) {
    case SHORE_ROLE_LAYER:
    case SHORE_ROLE_TABLE:
    case SHORE_ROLE_LOOKUP:
        return of_parameters(plan, t, nth);
    case SHORE_ROLE_INPUT:
    case SHORE_ROLE_INNER:
        return of_activation(plan, t, nth);
    case SHORE_ROLE_HELD:
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

/* How many buffers, if any tensor passes through them. */
static size_t buffers_of(const struct shore_plan *plan, enum shore_role role, const struct shore_tensor *buffers) {
    switch (role) {
    case SHORE_ROLE_LAYER:
    case SHORE_ROLE_TABLE:
    case SHORE_ROLE_LOOKUP:
        return plan->choice.page_buffers;
    case SHORE_ROLE_PIECE:
        return plan->choice.piece_buffers;
    default:
        return buffers->most;
    }
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
        /* while the rules raise what stays of inner tensors, any of them may still be one that moves */
        bool passes = t->role == SHORE_ROLE_INNER ? plan->choice.moved_inner > 0 : of->way == SHORE_WAY_MOVE;
        if (!passes && !buffers->there) continue;
        fate->count = buffers_of(plan, t->role, buffers);
        if (buffers->there) fate->count = fate->count > buffers->index;
        if (t->bytes > fate->bytes) fate->bytes = t->bytes;
    }
}

static void choose(struct shore_plan *plan) {
    const struct shore_program *p = plan->program;
    size_t nth[SHORE_ROLES] = {0};
    for (uint32_t i = 0; i < p->ntensors; i++) {
        const struct shore_tensor *t = &p->tensor[i];
        plan->fate[i] = fate_of(plan, t, nth[t->role]++);
    }
}

/* What follows from what was chosen: sizes, what goes with others, and the buffers that what moves passes through. */
static void derive(struct shore_plan *plan) {
    const struct shore_program *p = plan->program;
    size_t moved[SHORE_ROLES] = {0};
    for (uint32_t i = 0; i < p->ntensors; i++) {
        struct shore__fate *fate = &plan->fate[i];
        fate->row = NO_ROW;
        if (!fate->bytes) fate->bytes = shore__tensor_bytes(&p->tensor[i], fate->full);
        if (!is_there(plan, &p->tensor[i])) *fate = (struct shore__fate){.row = NO_ROW, .bytes = fate->bytes};
        if (fate->way == SHORE_WAY_MOVE) fate->moved = moved[p->tensor[i].role]++;
    }
    for (uint32_t i = 0; i < p->ntensors; i++)
        if (p->tensor[i].role == SHORE_ROLE_BUFFERS) fill_buffers(plan, i);
}

/* ---- rows ----------------------------------------------------------------------------------------------------------
 */

static enum shore__region_kind kind_of(enum shore_place place) {
    static const enum shore__region_kind kinds[] = {
        [SHORE_PLACE_DEVICE] = SHORE__REGION_DEVICE,
        [SHORE_PLACE_PINNED] = SHORE__REGION_PINNED,
        [SHORE_PLACE_PLAIN] = SHORE__REGION_PLAIN,
        [SHORE_PLACE_BOTH] = SHORE__REGION_BOTH,
    };
    return kinds[place];
}

static uint32_t add_row(struct shore_plan *plan, uint32_t id, uint32_t index, uint64_t bytes) {
    const struct shore_tensor *t = &plan->program->tensor[id];
    uint32_t row = plan->rows.count;
    shore__regions_add(&plan->rows, t->key, index, kind_of(t->place), bytes, plan->live[id]);
    for (uint32_t i = row; i < plan->rows.count; i++)
        plan->rows.item[i].name = t->name;
    return row;
}

/* Tensors from `first` on that share its row; returns where the next one begins. */
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

/* Adds rows; returns the sum of what has no place here. */
static uint64_t add_rows(struct shore_plan *plan) {
    const struct shore_program *p = plan->program;
    uint64_t own = 0;
    shore__regions_clear(&plan->rows);
    for (uint32_t i = 0; i < p->ntensors;) {
        const struct shore_tensor *t = &p->tensor[i];
        struct shore__fate *fate = &plan->fate[i];
        if (t->place == SHORE_PLACE_OWN) {
            if (fate->way == SHORE_WAY_KEEP) own += fate->bytes * fate->count;
            i++;
        } else if (t->role == SHORE_ROLE_BUFFERS) {
            fate->row = fate->bytes && fate->count ? plan->rows.count : NO_ROW;
            for (uint32_t b = 0; b < fate->count && fate->bytes; b++)
                add_row(plan, i, t->index + b, fate->bytes);
            i++;
        } else
            i = add_shared(plan, i);
    }
    return own;
}

uint64_t shore__plan_sum(void *ctx) {
    struct shore_plan *plan = ctx;
    choose(plan);
    return shore__plan_lay_out(plan);
}

uint64_t shore__plan_lay_out(struct shore_plan *plan) {
    derive(plan);
    uint64_t own = add_rows(plan);
    plan->total_bytes = own + shore__regions_lay_out(&plan->rows);
    return plan->total_bytes;
}

void shore__plan_set(struct shore_plan *plan, uint32_t tensor, enum shore_way way, bool full) {
    struct shore__fate *fate = &plan->fate[tensor];
    bool inner = plan->program->tensor[tensor].role == SHORE_ROLE_INNER;
    plan->choice.moved_inner += inner && way == SHORE_WAY_MOVE;
    plan->choice.moved_inner -= inner && fate->way == SHORE_WAY_MOVE;
    *fate = (struct shore__fate){.way = way, .full = full, .count = 1};
}

/* ---- the plan ------------------------------------------------------------------------------------------------------
 */

static int open_plan(struct shore_plan *plan, struct shore_diag *diag) {
    const struct shore_program *p = plan->program;
    plan->live = calloc(p->ntensors + (size_t)1, sizeof *plan->live);
    plan->fate = calloc(p->ntensors + (size_t)1, sizeof *plan->fate);
    if (!plan->live || !plan->fate) return shore__fail(diag, -ENOMEM, "out of memory for a plan");
    int rc = shore__program_check(p, plan->live, diag);
    if (rc) return rc;
    for (uint32_t i = 0; i < p->ntensors; i++)
        plan->count[p->tensor[i].role]++;
    shore__regions_open(&plan->rows, p->nops ? p->nops : 1, plan->options.one_memory);
    return 0;
}

static void grow_rows(struct shore_plan *plan) {
    for (uint32_t i = 0; i < plan->program->ntensors; i++) {
        uint32_t row = plan->fate[i].row;
        if (!plan->program->tensor[i].grows || row == NO_ROW || !plan->options.one_memory) continue;
        shore__regions_grow(&plan->rows, &plan->rows.item[row]);
    }
}

static void make(struct shore_plan *plan) {
    shore__rules_least(plan);
    plan->minimum_bytes = plan->total_bytes;
    plan->comfortable_bytes = shore__rules_comfortable(plan);
    if (plan->options.memory_bytes < plan->minimum_bytes) return;
    shore__rules_spend(plan, plan->options.memory_bytes);
    shore__plan_sum(plan);
    if (plan->rows.failed) return;
    grow_rows(plan);
}

int shore_plan_open(const struct shore_program *program, const struct shore_plan_options *options,
                    struct shore_plan **out, struct shore_diag *diag) {
    struct shore_plan *plan = *out = NULL;
    struct shore_plan_options ours;
    int rc = shore__sized_in(&ours, sizeof ours, options, "shore_plan_options", diag);
    if (!rc && !(plan = calloc(1, sizeof *plan))) rc = shore__fail(diag, -ENOMEM, "out of memory for a plan");
    if (rc) return rc;
    plan->program = program;
    plan->options = ours;
    rc = open_plan(plan, diag);
    if (!rc) make(plan);
    if (!rc && plan->rows.failed) rc = shore__fail(diag, -ENOMEM, "out of memory for a plan");
    if (rc) {
        shore_plan_close(plan);
        return rc;
    }
    *out = plan;
    if (ours.memory_bytes >= plan->minimum_bytes) return 0;
    return shore__budget_too_little(ours.memory_bytes, ours.what ? ours.what : "this program", plan->minimum_bytes,
                                    diag);
}

void shore_plan_close(struct shore_plan *plan) {
    if (!plan) return;
    shore__regions_close(&plan->rows);
    free(plan->live);
    free(plan->fate);
    free(plan);
}

void shore_plan_sums(const struct shore_plan *plan, struct shore_plan_sums *out) {
    uint64_t placed = 0;
    for (int k = 0; k < SHORE__REGION_KINDS; k++)
        placed += plan->rows.bytes[k];
    const struct shore_plan_sums sums = {sizeof sums, plan->minimum_bytes, plan->comfortable_bytes, plan->total_bytes,
                                         placed};
    shore__sized_out(out, &sums, sizeof sums);
}

int shore_plan_tensor(const struct shore_plan *plan, uint32_t tensor, struct shore_fate *out) {
    if (tensor >= plan->program->ntensors) return -EINVAL;
    const struct shore__fate *fate = &plan->fate[tensor];
    struct shore_fate said = {
        .size = sizeof said,
        .way = fate->way,
        .full = fate->full,
        .bytes = fate->bytes,
        .count = fate->count,
        .place = plan->program->tensor[tensor].place,
        .first = plan->live[tensor].from,
        .last = plan->live[tensor].to,
        .moved = fate->moved,
    };
    if (fate->row != NO_ROW) said.offset = plan->rows.item[fate->row].offset + fate->at;
    return shore__sized_out(out, &said, sizeof said);
}

int shore_plan_buffer(const struct shore_plan *plan, uint32_t tensor, uint64_t nth, uint64_t *offset) {
    const struct shore_program *p = plan->program;
    if (tensor >= p->ntensors || p->tensor[tensor].role != SHORE_ROLE_BUFFERS) return -EINVAL;
    const struct shore__fate *fate = &plan->fate[tensor];
    if (nth >= fate->count || fate->row == NO_ROW) return -EINVAL;
    bool two = p->tensor[tensor].place == SHORE_PLACE_BOTH && !plan->options.one_memory; /* rows of each */
    *offset = plan->rows.item[fate->row + nth * (two ? 2 : 1)].offset;
    return 0;
}
