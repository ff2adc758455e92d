/* Making and querying a plan: its minimum, the budget as it is spent, and the refusal of one that is too
 * small. */
#include "plan/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/sized.h"
#include "base/units.h"
#include "plan/budget.h"
#include "plan/simulate.h"

static int open_plan(struct shore_plan *plan, struct shore_diag *diag) {
    const struct shore_program *p = plan->program;
    plan->live = calloc(p->ntensors + (size_t)1, sizeof *plan->live);
    plan->fate = calloc(p->ntensors + (size_t)1, sizeof *plan->fate);
    if (!plan->live || !plan->fate) return shore__fail(diag, -ENOMEM, "out of memory for a plan");
    int rc = shore__program_check(p, plan->live, diag);
    for (int k = 0; !rc && k < SHORE_PLACES; k++)
        if (plan->options.one_memory && plan->options.place_bytes[k])
            rc = shore__fail(diag, -EINVAL,
                             "device and host share memory, so no place has a budget of its own: give "
                             "all of it as memory_bytes");
    if (!rc && (unsigned)plan->options.policy >= SHORE_POLICIES) rc = shore__fail(diag, -EINVAL, "an unknown policy");
    if (rc) return rc;
    shore__regions_open(&plan->rows, p->nops ? p->nops : 1, plan->options.one_memory);
    rc = shore__simulation_open(p, plan->options.machine, plan->options.one_memory, &plan->simulation, diag);
    return rc ? rc : shore__classes_open(plan, diag);
}

static void grow_rows(struct shore_plan *plan) {
    for (uint32_t i = 0; i < plan->program->ntensors; i++) {
        uint32_t row = plan->fate[i].row;
        if (!plan->program->tensor[i].grows || row == SHORE__NO_ROW || !plan->options.one_memory) continue;
        shore__regions_grow(&plan->rows, &plan->rows.item[row]);
    }
}

static void make(struct shore_plan *plan) {
    shore__order_least(plan);
    plan->comfortable = shore__order_comfortable(plan);
    plan->limit.of[SHORE__SHARED] = plan->options.memory_bytes;
    memcpy(plan->limit.of, plan->options.place_bytes, sizeof plan->options.place_bytes);
    if (shore__plan_excess(plan)) return;
    if (plan->options.policy)
        shore__order_spend(plan, plan->options.policy,
                           plan->options.policy != SHORE_POLICY_ORDER || shore__plan_outlasts(plan));
    else if (!shore__search(plan))
        plan->rows.failed = true;
    shore__plan_excess(plan);
    if (plan->rows.failed) return;
    grow_rows(plan);
}

/* Names each budget that is below its minimum. */
static int too_little(const struct shore_plan *plan, struct shore_diag *diag) {
    static const char *const memory[] = {"device memory", "pinned memory", "host memory", "memory"};
    const char *what = plan->options.what ? plan->options.what : "this program";
    struct shore_diag said = {.text = ""}, one;
    int rc = 0;
    for (int b = SHORE__BUDGETS; b--;) {
        if (plan->minimum.of[b] <= plan->limit.of[b]) continue;
        rc = shore__budget_too_little(plan->limit.of[b], memory[b], what, plan->minimum.of[b], &one);
        shore__fail(&said, rc, "%s%s%s", said.text, *said.text ? "; " : "", one.text);
    }
    return rc ? shore__fail(diag, rc, "%s", said.text) : 0;
}

/* The search prefers plans that write less where a step has to wait. What is left is the work behind operations. */
static int writes_too_much(const struct shore_plan *plan, struct shore_diag *diag) {
    double most = plan->options.written_bytes_per_day_most;
    uint64_t written = plan->times.drive_write_bytes;
    if (!(most > 0) || (double)written <= most) return 0;
    return shore__fail(
        diag, SHORE_EBUDGET,
        "a step alone writes %s, and the drives may write %s a day: 8-bit moments write less, and so may "
        "more memory; a larger batch writes less for each token",
        shore__format_size_up(written).text, shore__format_size((uint64_t)most).text);
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
    shore__plan_simulate(plan);
    *out = plan;
    rc = too_little(plan, diag);
    return rc ? rc : writes_too_much(plan, diag);
}

int shore__plan_time(struct shore_plan *plan, struct shore_diag *diag) {
    shore__simulation_close(plan->simulation);
    int rc =
        shore__simulation_open(plan->program, plan->options.machine, plan->options.one_memory, &plan->simulation, diag);
    if (!rc) shore__plan_simulate(plan);
    return rc;
}

void shore_plan_close(struct shore_plan *plan) {
    if (!plan) return;
    shore__regions_close(&plan->rows);
    shore__simulation_close(plan->simulation);
    free(plan->live);
    free(plan->fate);
    free(plan->order);
    free(plan->spread);
    free(plan->class);
    free(plan->share);
    free(plan->least);
    free(plan->group);
    free(plan->group_of);
    free(plan);
}

void shore_plan_sums(const struct shore_plan *plan, struct shore_plan_sums *out) {
    struct shore_plan_sums sums = {
        .size = sizeof sums,
        .minimum_bytes = plan->minimum.of[SHORE__SHARED],
        .comfortable_bytes = plan->comfortable.of[SHORE__SHARED],
        .total_bytes = plan->total.of[SHORE__SHARED],
    };
    for (int k = 0; k < SHORE_PLACES; k++) {
        sums.placed_bytes += plan->rows.bytes[k];
        sums.place_minimum_bytes[k] = plan->place_minimum[k];
        sums.place_total_bytes[k] = plan->place_total[k];
    }
    for (int b = 0; b < SHORE__BUDGETS; b++)
        sums.too_little |= (uint64_t)(plan->minimum.of[b] > plan->limit.of[b]) << b;
    shore__sized_out(out, &sums, sizeof sums);
}

int shore_plan_times(const struct shore_plan *plan, struct shore_plan_times *out) {
    return shore__sized_out(out, &plan->times, sizeof plan->times);
}

int shore_plan_operation(const struct shore_plan *plan, uint32_t operation, double *begin, double *end) {
    if (operation >= plan->program->nops) return -EINVAL;
    shore__simulated(plan->simulation, operation, begin, end);
    return 0;
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
    if (fate->row != SHORE__NO_ROW) said.offset = plan->rows.item[fate->row].offset + fate->at;
    return shore__sized_out(out, &said, sizeof said);
}

int shore_plan_buffer(const struct shore_plan *plan, uint32_t tensor, uint64_t nth, uint64_t *offset) {
    const struct shore_program *p = plan->program;
    if (tensor >= p->ntensors || !p->tensor[tensor].buffers) return -EINVAL;
    const struct shore__fate *fate = &plan->fate[tensor];
    if (nth >= fate->count || fate->row == SHORE__NO_ROW) return -EINVAL;
    bool two = p->tensor[tensor].place == SHORE_PLACE_BOTH && !plan->options.one_memory; /* each buffer has two rows */
    *offset = plan->rows.item[fate->row + nth * (two ? 2 : 1)].offset;
    return 0;
}
