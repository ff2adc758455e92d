/* The program of a pass that only reads, and its plan. */
#include <errno.h>
#include <stdio.h>

#include "base/diag.h"
#include "pass/describe.h"
#include "pass/row_tensor.h"
#include "plan/budget.h"

static void describe_reading(const struct shore__facts *f, uint64_t generation_bytes, uint64_t reserve_bytes,
                             struct shore_program *program) {
    const struct shore__model *m = f->model;
    size_t rows = generation_bytes ? 1 : f->batch.rows;
    shore_program_operation(program, "pass");
    shore__row_add(program, SHORE__ROW_WORKSPACE, 0, SHORE_PLACE_DEVICE, f->workspace_bytes);
    shore__pages_describe(f, program);
    if (generation_bytes)
        shore__row_add(program, SHORE__ROW_GENERATION, 0, SHORE_PLACE_BOTH, generation_bytes);
    else
        shore__batch_describe(m, f->mode, &f->batch, program);
    shore__row_add(program, SHORE__ROW_X, 0, SHORE_PLACE_DEVICE, (uint64_t)rows * m->arch.d_model * 4);
    const struct shore_tensor process = shore__row_own(SHORE__ROW_PROCESS, reserve_bytes);
    shore_program_tensor(program, &process);
    for (uint32_t id = 0; id < program->ntensors; id++)
        shore_program_reads(program, 0, id);
}

int shore__plan_reading(const struct shore__facts *f, uint64_t generation_bytes, uint64_t resident_bytes,
                        uint64_t budget, struct shore__infer_plan *out, struct shore_diag *diag) {
    const struct shore_plan_options options = {
        .size = sizeof options, .memory_bytes = budget, .one_memory = f->one_memory};
    *out = (struct shore__infer_plan){.program = shore_program_new(),
                                      .reserve_bytes = shore__reserve_measured_bytes(resident_bytes)};
    if (!out->program) return shore__fail(diag, -ENOMEM, "out of memory for a plan");
    describe_reading(f, generation_bytes, out->reserve_bytes, out->program);
    int rc = shore_plan_open(out->program, &options, &out->plan, diag);
    if (out->plan) out->buffers_bytes = out->plan->total.of[SHORE__SHARED] - out->reserve_bytes;
    if (rc != SHORE_EBUDGET) return rc;
    char what[64];
    snprintf(what, sizeof what, "this model and %zu tokens", f->batch.sequences * f->batch.seq_len);
    /* the next process may start with more */
    uint64_t reserve = shore__reserve_measured_bytes(resident_bytes + SHORE__RESIDENT_VARIES_BYTES);
    return shore__budget_too_little(0, "memory", what, out->buffers_bytes + reserve, diag);
}

void shore__infer_plan_close(struct shore__infer_plan *plan) {
    shore_plan_close(plan->plan);
    shore_program_free(plan->program);
    plan->plan = NULL;
    plan->program = NULL;
}
