/* plan_of() over the src/plan of this commit: see plan_case.h. */
#include <string.h>

#include "machine/machine.h"
#include "pass/describe.h"
#include "tools/plan_case.h"

static struct shore__facts facts_of(const struct plan_case *x, const struct shore__model *m,
                                    const struct shore_machine *machine) {
    static const enum shore__when when[] = {SHORE__OFF, SHORE__ON, SHORE__AUTO};
    return (struct shore__facts){
        .model = m,
        .machine = machine,
        .policy = SHORE_POLICY_ORDER,
        .batch = shore__batch_shape(x->sequences, x->seq_len),
        .mode = x->mode,
        .threads = x->threads,
        .workspace_bytes = x->workspace_bytes,
        .packed_bytes = x->packed_bytes,
        .one_memory = x->one_memory,
        .drives = {.size = sizeof(struct shore_fleet_options),
                   .drives = x->drives,
                   .ndrives = x->ndrives,
                   .optimizer = x->optimizer,
                   .moments = x->moments,
                   .fp32_params = x->mode == SHORE__F32,
                   .residual = x->compressed},
        .scratch = !x->in_ram,
        .remote = x->remote,
        .ring_bytes_most = x->ring_bytes_most,
        .host_buffers_most = x->host_buffers_most,
        .compressed = x->compressed,
        .gradient_bf16 = x->gradient_bf16,
        .host_update = x->host_update,
        .samples = x->samples,
        .offload = when[x->offload],
        .gather = SHORE__OFF,
        .compression_bytes = x->compression_bytes,
    };
}

static void say_rows(const struct shore_plan *plan, void (*row)(void *ctx, const struct plan_row *row), void *ctx) {
    for (uint32_t i = 0; i < plan->rows.count; i++) {
        const struct shore__region *r = &plan->rows.item[i];
        struct plan_row one = {r->name, r->index, (uint32_t)r->place, r->bytes, r->live.from, r->live.to, r->offset};
        row(ctx, &one);
    }
}

static int read_rows(const struct shore__facts *f, const struct plan_case *x, uint64_t budget, struct plan_sums *sums,
                     void (*row)(void *ctx, const struct plan_row *row), void *ctx) {
    struct shore__infer_plan plan;
    uint64_t generation = x->positions ? shore__generate_bytes(f->model, x->mode, x->positions) : 0;
    int rc = shore__plan_reading(f, generation, x->resident_bytes, budget, &plan, NULL);
    if (!rc) {
        sums->buffers = plan.buffers_bytes;
        sums->reserve = plan.reserve_bytes;
        say_rows(plan.plan, row, ctx);
    }
    shore__infer_plan_close(&plan);
    return rc;
}

static uint64_t reserve_of(const struct shore__train_plan *plan) {
    uint32_t i = 0;
    while (plan->program->tensor[i].key != SHORE__ROW_PROCESS)
        i++;
    return plan->plan->fate[i].bytes;
}

static int train_rows(const struct shore__facts *f, uint64_t budget, struct plan_sums *sums,
                      void (*row)(void *ctx, const struct plan_row *row), void *ctx) {
    struct shore__train_plan plan;
    struct shore__needs needs;
    int rc = shore__plan_training(f, budget, &plan, &needs, NULL);
    if (rc) return rc;
    sums->minimum = needs.minimum_bytes;
    sums->comfortable = needs.comfortable_bytes;
    sums->disk = needs.disk_bytes;
    sums->pairs = needs.pairs;
    if (budget >= needs.minimum_bytes) {
        sums->kept_pairs = needs.kept_pairs;
        sums->offloaded_pairs = needs.offloaded_pairs;
        sums->rings = plan.ring_bytes;
        sums->fleet = plan.fleet_bytes;
        sums->reserve = reserve_of(&plan);
        for (int k = 0; k < SHORE_PLACES; k++)
            sums->buffers += plan.plan->rows.bytes[k];
        sums->holes = plan.hole_bytes;
        sums->workspace = plan.workspace_bytes;
        say_rows(plan.plan, row, ctx);
    }
    shore__train_plan_close(&plan);
    return budget < needs.minimum_bytes ? SHORE_EBUDGET : 0;
}

int plan_of(const struct plan_case *x, uint64_t budget, struct plan_sums *sums,
            void (*row)(void *ctx, const struct plan_row *row), void *ctx) {
    struct shore__model *m = NULL;
    memset(sums, 0, sizeof *sums);
    int rc = shore__model_make(&x->arch, &m, NULL);
    if (rc) return rc;
    struct shore_machine machine = *shore__machine_assumed();
    machine.rate[SHORE_WORK_PRODUCT][SHORE_PRECISION_FP32].at[0].per_second = x->operations_per_second;
    machine.drive[0].mixed = x->drive_bytes_per_second;
    struct shore__facts f = facts_of(x, m, &machine);
    rc = x->reading ? read_rows(&f, x, budget, sums, row, ctx) : train_rows(&f, budget, sums, row, ctx);
    shore__model_free(m);
    return rc;
}
