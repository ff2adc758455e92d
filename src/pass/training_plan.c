/* The plan of a training step: of the ways to describe it, the one whose step is shortest. */
#include "base/diag.h"
#include "pass/costs.h"
#include "pass/describe.h"
#include "pass/operations.h"
#include "plan/budget.h"

/* Gradients go to the drives as far as the plan has no buffers for them, which is known only now. */
static int spill(const struct shore__facts *f, struct shore__train_plan *out, struct shore_diag *diag) {
    bool spills, table_stays = (out->table != UINT32_MAX && out->hold_table_gradient) || shore__sends_rows(f);
    int rc = shore__operations_spill(f, out->gradient_buffers, table_stays, out->program, &spills, diag);
    return rc || !spills ? rc : shore__plan_time(out->plan, diag);
}

static int plan_with(const struct shore__facts *facts, uint64_t budget, struct shore__step_way how,
                     struct shore__train_plan *out, struct shore_diag *diag) {
    struct shore__facts so = *facts, *f = &so;
    so.gathers = how.gathers;
    const struct shore_plan_options options = {
        .size = sizeof options,
        .memory_bytes = budget,
        .what = "this model, batch and sequence length",
        .place_bytes = {f->place_bytes[SHORE_PLACE_DEVICE], f->place_bytes[SHORE_PLACE_PINNED]},
        .one_memory = f->one_memory,
        .machine = f->machine,
        .policy = f->policy,
        .written_bytes_per_day_most = (double)f->written_per_day_most,
    };
    int rc = shore__step_describe(f, how, out, diag);
    if (!rc) rc = shore_plan_open(out->program, &options, &out->plan, diag);
    if (out->plan) shore__step_read_fates(f, how, out);
    return rc ? rc : spill(f, out, diag);
}

/* Whether units may go through the head one by one, so that only one unit's logits are kept: each then walks the whole
 * table again, which may be too slow over a network. The table's gradient must be held in memory, where units can add
 * to it. With compression, a loss that is not finite must be seen before the residual is asked for. */
static bool may_go_one_by_one(const struct shore__facts *f) {
    return f->batch.units > 1 && !f->remote && f->model->arch.tied && !f->compressed;
}

static void fill_needs(const struct shore__facts *f, const struct shore_plan *plan, struct shore__needs *needs) {
    *needs = (struct shore__needs){
        .minimum_bytes = plan->minimum.of[SHORE__SHARED],
        .comfortable_bytes = plan->comfortable.of[SHORE__SHARED],
        .disk_bytes = shore__plan_disk_bytes(f),
        .pairs = shore__plan_pairs(f),
    };
}

static void count_pairs(const struct shore__train_plan *plan, struct shore__needs *needs) {
    for (uint64_t i = 0; i < needs->pairs; i++) {
        needs->kept_pairs += plan->plan->fate[plan->inner + i].way == SHORE_WAY_KEEP;
        needs->offloaded_pairs += plan->plan->fate[plan->inner + i].way == SHORE_WAY_MOVE;
    }
}

/* Takes another description of the step if it fits; unless it is wanted anyway, if the step is shorter then. */
static int try_other(const struct shore__facts *f, uint64_t budget, struct shore__step_way how, bool wanted,
                     struct shore__train_plan *out, struct shore_diag *diag) {
    struct shore__train_plan other, had = *out;
    int rc = plan_with(f, budget, how, &other, diag);
    if (!rc && (wanted || shore__plan_is_shorter(other.plan, out->plan))) {
        *out = other;
        other = had;
    }
    shore__train_plan_close(&other);
    return rc == SHORE_EBUDGET ? 0 : rc;
}

/* Plans with the buffers that drives want, or with the least if these do not fit, or if so much memory saves more
 * elsewhere. needs: of the plan with the least. */
static int plan_rings(const struct shore__facts *f, uint64_t budget, struct shore__step_way *how,
                      struct shore__train_plan *out, struct shore__needs *needs, struct shore_diag *diag) {
    struct shore__train_plan wanted;
    how->ring = shore__knows_least_ring(f) ? SHORE__RING_LEAST : SHORE__RING_IF_LEFT;
    int rc = plan_with(f, budget, *how, out, diag);
    if (!out->plan) return rc;
    if (needs) fill_needs(f, out->plan, needs);
    if (rc || how->ring == SHORE__RING_IF_LEFT) return rc;
    how->ring = SHORE__RING_WANTED;
    rc = plan_with(f, budget, *how, &wanted, diag);
    if (needs && wanted.plan) needs->comfortable_bytes = wanted.plan->comfortable.of[SHORE__SHARED];
    bool taken = !rc && !shore__plan_is_shorter(out->plan, wanted.plan);
    if (!taken) how->ring = SHORE__RING_LEAST;
    if (taken) {
        struct shore__train_plan had = *out;
        *out = wanted;
        wanted = had;
    }
    shore__train_plan_close(&wanted);
    return rc == SHORE_EBUDGET ? 0 : rc;
}

int shore__plan_training(const struct shore__facts *f, uint64_t budget, struct shore__train_plan *out,
                         struct shore__needs *needs, struct shore_diag *diag) {
    bool may_gather = shore__may_gather(f);
    struct shore__step_way how = {.head_units = f->batch.units, .gathers = may_gather && f->gather == SHORE__ON};
    int rc = plan_rings(f, budget, &how, out, needs, diag);
    if (!out->plan) return rc;
    if (rc) return needs && rc == SHORE_EBUDGET && budget < needs->minimum_bytes ? 0 : rc;
    if (may_gather && !how.gathers) {
        how.gathers = true;
        rc = try_other(f, budget, how, false, out, diag);
        how.gathers = out->gathers;
    }
    how.moves = f->offload == SHORE__ON && f->scratch;
    if (!rc && how.moves) rc = try_other(f, budget, how, true, out, diag);
    how.head_units = 1;
    if (!rc && may_go_one_by_one(f)) rc = try_other(f, budget, how, false, out, diag);
    if (needs) count_pairs(out, needs);
    return rc;
}

void shore__train_plan_close(struct shore__train_plan *plan) {
    shore_plan_close(plan->plan);
    shore_program_free(plan->program);
    *plan = (struct shore__train_plan){.units = 0};
}

const struct shore__fate *shore__plan_input(const struct shore__train_plan *plan, uint32_t layer) {
    return &plan->plan->fate[plan->input + layer - plan->lowest];
}

const struct shore__fate *shore__plan_inner(const struct shore__facts *f, const struct shore__train_plan *plan,
                                            uint32_t layer, size_t unit) {
    return &plan->plan->fate[plan->inner + (f->model->arch.n_layer - layer) * plan->units + unit];
}
