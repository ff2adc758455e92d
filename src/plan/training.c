#include "plan/training.h"

#include <errno.h>
#include <string.h>

#include "base/diag.h"
#include "drive/planes.h"
#include "plan/budget.h"
#include "plan/training_sum.h"

#define SEGMENT_BYTES ((uint64_t)SHORE_SEGMENT_ELEMS * 4)

/* ---- sizes ---------------------------------------------------------------------------------------------------------
 */

static uint64_t kept_pair_bytes(const struct shore__facts *f, bool cheap_too) {
    return shore__arena_round(shore__inner_bytes(f->model, shore__stored_mode(f->mode), f->batch.unit_rows, cheap_too));
}

uint64_t shore__plan_kept_bytes(const struct shore__facts *f, const struct shore__train_plan *plan, size_t pairs) {
    size_t full = pairs < plan->full_inner ? pairs : plan->full_inner;
    return full * kept_pair_bytes(f, true) + (pairs - full) * kept_pair_bytes(f, false);
}

uint64_t shore__plan_offload_bytes(const struct shore__facts *f) {
    return kept_pair_bytes(f, false);
}

uint64_t shore__plan_boundary_bytes(const struct shore__facts *f) {
    return shore__arena_round(f->batch.rows * f->model->arch.d_model * shore__mode_bytes(shore__stored_mode(f->mode)));
}

static uint64_t piece_bytes(const struct shore__facts *f, bool hold_table_gradient) {
    const struct shore__model *m = f->model;
    bool table_slices = !(m->arch.tied && hold_table_gradient);
    uint32_t segments = 0;
    for (uint32_t l = 1; l <= m->arch.n_layer; l++)
        if (m->layout->blocks[l].segments > segments) segments = m->layout->blocks[l].segments;
    for (uint32_t i = 0; table_slices && i < m->nslices; i++) {
        struct shore__slice s = shore__model_slice(m, i);
        if (s.segments > segments) segments = s.segments;
        for (uint32_t block = 0; i + 1 == m->nslices && block < m->nblocks; block += m->nblocks - 1) {
            uint32_t to_end = m->layout->blocks[block].segments - s.segment;
            if (shore__page_block_has_table(m, block) && to_end > segments) segments = to_end;
        }
    }
    return segments * SEGMENT_BYTES;
}

uint32_t shore__plan_pieces(const struct shore__facts *f, bool hold_table_gradient) {
    const struct shore__model *m = f->model;
    uint32_t pooled = m->arch.tied ? hold_table_gradient ? 0 : m->nslices : 2 * m->nslices;
    return m->arch.n_layer + pooled + 1;
}

/* A compressed block is selected from as a whole: that needs room for the larger one of untied tables. */
static uint64_t larger_table_bytes(const struct shore__model *m) {
    uint64_t elems = m->layout->blocks[0].padded_elems, head = m->layout->blocks[m->nblocks - 1].padded_elems;
    return (head > elems ? head : elems) * 4;
}

uint64_t shore__plan_later_bytes(const struct shore__facts *f) {
    return shore__arena_round(shore__later_bytes(f->model, f->mode, f->batch.unit_rows));
}

uint64_t shore__plan_state_bytes(const struct shore__facts *f) {
    uint32_t plane_bytes[SHORE_PLANE_COUNT];
    shore__planes_make(f->model->layout, &f->drives, plane_bytes);
    return shore__state_segment_bytes(plane_bytes);
}

/* ---- scratch -------------------------------------------------------------------------------------------------------
 */

/* 4 bytes an element are the most, whatever the precision. */
static uint64_t boundary_room(const struct shore__facts *f) {
    return shore__arena_round((uint64_t)f->batch.rows * f->model->arch.d_model * 4);
}

uint64_t shore__plan_scratch_boundary(const struct shore__facts *f, uint32_t layer) {
    return boundary_room(f) * (layer - 1);
}

uint64_t shore__plan_scratch_slice(const struct shore__facts *f, uint32_t slice) {
    return boundary_room(f) * f->model->arch.n_layer + shore__model_slice(f->model, slice).segment * SEGMENT_BYTES;
}

uint64_t shore__plan_scratch_inner(const struct shore__facts *f, size_t nth) {
    const struct shore__model *m = f->model;
    uint64_t slices = m->arch.tied ? m->layout->blocks[0].padded_elems * 4 : 0;
    return boundary_room(f) * m->arch.n_layer + slices + nth * shore__plan_offload_bytes(f);
}

void shore__plan_fleet_options(const struct shore__facts *f, const struct shore__train_plan *plan,
                               struct shore_fleet_options *out) {
    *out = f->drives;
    out->scratch_bytes = f->scratch ? shore__plan_scratch_inner(f, shore__plan_offloaded_most(f)) : 0;
    out->spill = f->scratch || f->host_update; /* memory that stands in for a drive is no place to save memory */
    if (plan) out->ring_bytes = plan->ring_bytes;
}

uint64_t shore__plan_disk_bytes(const struct shore__facts *f) {
    struct shore_fleet_options options;
    shore__plan_fleet_options(f, NULL, &options);
    return shore_fleet_disk_bytes(f->model->layout, &options);
}

/* ---- rows ----------------------------------------------------------------------------------------------------------
 */

static void always(const struct shore__sizing *z, enum shore__row key, uint32_t index, enum shore__region_kind kind,
                   uint64_t bytes) {
    shore__regions_add_always(z->rows, key, index, kind, bytes);
}

/* From the first lookups on; but not between two steps. What updates read is such memory, too. */
static void in_step(const struct shore__sizing *z, enum shore__row key, uint32_t index, enum shore__region_kind kind,
                    uint64_t bytes) {
    uint32_t n = z->f->model->arch.n_layer;
    shore__regions_add(z->rows, key, index, kind, bytes,
                       (struct shore__lifetime){shore__phase_forward(0), shore__phase_backward(n, 0)});
}

/* What forward leaves for backward. */
static void add_activations(const struct shore__sizing *z) {
    const struct shore__train_plan *plan = z->plan;
    const struct shore__facts *f = z->f;
    uint32_t layers = f->model->arch.n_layer, ring = plan->kept_boundaries == layers + 1 ? 0 : 2;
    uint64_t boundary = shore__plan_boundary_bytes(f);
    for (uint32_t i = 0; i < ring; i++)
        always(z, SHORE__ROW_PASSING_BOUNDARY, i, SHORE__REGION_BOTH, boundary);
    for (uint32_t l = layers + 2 - (uint32_t)plan->kept_boundaries; l <= layers; l++)
        always(z, SHORE__ROW_BOUNDARY, l, SHORE__REGION_DEVICE, boundary);
    always(z, SHORE__ROW_BOUNDARY, layers + 1, SHORE__REGION_DEVICE,
           f->batch.rows * f->model->arch.d_model * shore__mode_bytes(f->mode));
    for (uint32_t l = layers; l >= 1; l--) { /* the last layers first: they are needed first */
        size_t first = (size_t)(layers - l) * plan->units, end = first + plan->units;
        if (first > plan->kept_inner) first = plan->kept_inner;
        if (end > plan->kept_inner) end = plan->kept_inner;
        shore__regions_add(z->rows, SHORE__ROW_INNER_KEPT, l, SHORE__REGION_DEVICE,
                           shore__plan_kept_bytes(f, plan, end) - shore__plan_kept_bytes(f, plan, first),
                           (struct shore__lifetime){shore__phase_forward(l), shore__phase_backward(layers, l)});
    }
    for (uint32_t i = 0; plan->offloaded_inner && i < SHORE__OFFLOAD_SLOTS; i++)
        always(z, SHORE__ROW_INNER_PASSING, i, SHORE__REGION_BOTH, shore__plan_offload_bytes(f));
}

static void add_backward(const struct shore__sizing *z) {
    const struct shore__train_plan *plan = z->plan;
    const struct shore__facts *f = z->f;
    const struct shore__model *m = f->model;
    size_t e = shore__mode_bytes(f->mode), d = m->arch.d_model;
    in_step(z, SHORE__ROW_DX, 0, SHORE__REGION_DEVICE, f->batch.rows * d * e);
    in_step(z, SHORE__ROW_DX_FP32, 0, SHORE__REGION_DEVICE, f->batch.rows * d * 4);
    in_step(z, SHORE__ROW_DLOGITS, 0, SHORE__REGION_DEVICE, f->batch.unit_rows * m->slice_rows * e);
    in_step(z, SHORE__ROW_BACKWARD_SCRATCH, 0, SHORE__REGION_DEVICE,
            shore__backward_scratch_bytes(m, f->mode, f->batch.unit_rows));
    if (m->arch.tied && plan->hold_table_gradient) {
        uint64_t elems = m->layout->blocks[0].padded_elems;
        in_step(z, SHORE__ROW_TABLE_GRADIENT, 0, SHORE__REGION_BOTH, elems * 4);
        if (f->gradient_bf16) in_step(z, SHORE__ROW_TABLE_GRADIENT_BF16, 0, SHORE__REGION_PINNED, elems * 2);
    }
    if (!m->arch.tied && f->compressed)
        in_step(z, SHORE__ROW_WHOLE_GRADIENT, 0, SHORE__REGION_BOTH, larger_table_bytes(m));
    uint64_t piece = piece_bytes(f, plan->hold_table_gradient);
    for (uint32_t i = 0; i < plan->gradient_buffers; i++)
        in_step(z, SHORE__ROW_GRADIENT, i, SHORE__REGION_BOTH, piece);
    in_step(z, SHORE__ROW_HOST_UPDATE, 0, SHORE__REGION_PINNED,
            plan->host_buffers * plan->host_segments * (shore__plan_state_bytes(f) + SEGMENT_BYTES));
}

static void add_rows(const struct shore__sizing *z) {
    const struct shore__train_plan *plan = z->plan;
    const struct shore__facts *f = z->f;
    const struct shore__model *m = f->model;
    uint32_t between = shore__phase_between(m->arch.n_layer), head = shore__phase_head(m->arch.n_layer);
    shore__regions_clear(z->rows);
    always(z, SHORE__ROW_WORKSPACE, 0, SHORE__REGION_DEVICE, plan->workspace_bytes);
    shore__batch_add(m, f->mode, &f->batch, z->rows);
    shore__pages_add(m, f->mode, &plan->residency, z->rows);
    add_backward(z); /* what samples take first; activations are idle for parameters, too */
    shore__regions_add(z->rows, SHORE__ROW_SAMPLE, 0, SHORE__REGION_BOTH,
                       f->samples ? shore__generate_bytes(m, f->mode, 1) : 0,
                       (struct shore__lifetime){between, between});
    shore__regions_add(z->rows, SHORE__ROW_LOGITS_KEPT, 0, SHORE__REGION_DEVICE,
                       plan->kept_logits * f->batch.unit_rows * m->slice_rows * 4,
                       (struct shore__lifetime){head, head});
    add_activations(z);
    always(z, SHORE__ROW_PARTIAL_SUMS, 0, SHORE__REGION_PLAIN, m->layout->segments * sizeof(double));
    always(z, SHORE__ROW_COMPRESSION, 0, SHORE__REGION_PLAIN, f->compression_bytes);
}

uint64_t shore__plan_sum(void *ctx) {
    struct shore__sizing *z = ctx;
    struct shore__train_plan *plan = z->plan;
    const struct shore__facts *f = z->f;
    struct shore_fleet_options options;
    shore__plan_fleet_options(f, plan, &options);
    add_rows(z);
    plan->buffers_bytes = shore__regions_lay_out(z->rows);
    plan->fleet_bytes = plan->ring_bytes ? shore_fleet_memory_bytes(f->model->layout, &options)
                                         : shore_fleet_memory_least_bytes(f->model->layout, &options);
    plan->reserve_bytes = shore__reserve_bytes(f->model, (uint32_t)f->threads, options.ndrives);
    plan->total_bytes = plan->buffers_bytes + plan->fleet_bytes + plan->reserve_bytes + plan->hole_bytes;
    return plan->total_bytes;
}

/* ---- the plan ------------------------------------------------------------------------------------------------------
 */

static void fill_needs(struct shore__sizing *z, const struct shore__train_plan *least, struct shore__needs *out) {
    const struct shore__facts *f = z->f;
    *out = (struct shore__needs){
        .minimum_bytes = least->total_bytes,
        .comfortable_bytes = shore__plan_comfortable(z, least),
        .disk_bytes = shore__plan_disk_bytes(f),
        .pairs = f->model->arch.n_layer * f->batch.units,
    };
}

int shore__plan_training(const struct shore__facts *f, uint64_t budget, struct shore__train_plan *out,
                         struct shore__region_list *rows, struct shore__needs *needs, struct shore_diag *diag) {
    struct shore__sizing z = {f, out, rows};
    struct shore__train_plan least;
    shore__regions_open(rows, shore__phases(f->model->arch.n_layer), f->one_memory);
    shore__plan_least(&z, &least);
    uint64_t minimum = least.total_bytes;
    if (needs) fill_needs(&z, &least, needs);
    *out = least;
    if (budget >= minimum) {
        shore__plan_spend(&z, out, budget);
        z.plan = out;
        shore__plan_sum(&z);
        if (!rows->failed) {
            shore__plan_lend(&z);
            if (f->one_memory) shore__regions_grow(rows, shore__regions_find(rows, SHORE__ROW_SAMPLE, 0));
        }
        if (needs) {
            needs->kept_pairs = out->kept_inner;
            needs->offloaded_pairs = out->offloaded_inner;
        }
    }
    if (rows->failed) return shore__fail(diag, -ENOMEM, "out of memory for the plan of a step");
    if (budget >= minimum || needs) return 0;
    return shore__budget_too_little(budget, "this model, batch and sequence length", minimum, diag);
}
