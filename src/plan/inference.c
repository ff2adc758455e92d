#include "plan/inference.h"

#include <errno.h>
#include <stdio.h>

#include "base/diag.h"
#include "plan/budget.h"

struct sizing {
    const struct shore__facts *f;
    uint64_t generation_bytes;
    struct shore__infer_plan *plan;
    struct shore__region_list *rows;
};

static uint64_t sum(void *ctx) {
    struct sizing *z = ctx;
    const struct shore__facts *f = z->f;
    const struct shore__model *m = f->model;
    size_t rows = z->generation_bytes ? 1 : f->batch.rows;
    shore__regions_clear(z->rows);
    shore__regions_add_always(z->rows, SHORE__ROW_WORKSPACE, 0, SHORE__REGION_DEVICE, f->workspace_bytes);
    shore__pages_add(m, f->mode, &z->plan->residency, z->rows);
    if (z->generation_bytes)
        shore__regions_add_always(z->rows, SHORE__ROW_GENERATION, 0, SHORE__REGION_BOTH, z->generation_bytes);
    else
        shore__batch_add(m, f->mode, &f->batch, z->rows);
    shore__regions_add_always(z->rows, SHORE__ROW_X, 0, SHORE__REGION_DEVICE, (uint64_t)rows * m->arch.d_model * 4);
    z->plan->buffers_bytes = shore__regions_lay_out(z->rows);
    return z->plan->buffers_bytes;
}

int shore__plan_inference(const struct shore__facts *f, uint64_t generation_bytes, uint64_t resident_bytes,
                          uint64_t budget, struct shore__infer_plan *out, struct shore__region_list *rows,
                          struct shore_diag *diag) {
    const struct shore__model *m = f->model;
    struct sizing z = {f, generation_bytes, out, rows};
    *out = (struct shore__infer_plan){.residency.buffers = 1,
                                      .reserve_bytes = shore__reserve_measured_bytes(resident_bytes)};
    shore__regions_open(rows, 1, f->one_memory);
    uint64_t least = sum(&z);
    if (rows->failed) return shore__fail(diag, -ENOMEM, "out of memory for the plan of a pass");
    if (budget < out->reserve_bytes + least) {
        char what[64];
        snprintf(what, sizeof what, "this model and %zu tokens", f->batch.sequences * f->batch.seq_len);
        /* the next process may begin with more */
        least += shore__reserve_measured_bytes(resident_bytes + SHORE__RESIDENT_VARIES_BYTES);
        return shore__budget_too_little(0, what, least, diag);
    }
    uint64_t room = budget - out->reserve_bytes;
    struct shore__residency *r = &out->residency;
    shore__raise(&r->buffers, 2, room, sum, &z);
    shore__raise(&r->table_slices, m->nslices, room, sum, &z);
    shore__raise(&r->layers, m->arch.n_layer, room, sum, &z);
    shore__raise(&r->input_slices, m->arch.tied ? 0 : m->nslices, room, sum, &z);
    sum(&z);
    return 0;
}
