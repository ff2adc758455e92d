#include "pass/describe.h"

#include <errno.h>
#include <stdio.h>

#include "base/diag.h"
#include "drive/planes.h"
#include "pass/operations.h"
#include "pass/row_tensor.h"
#include "plan/budget.h"

#define SEGMENT_BYTES ((uint64_t)SHORE_SEGMENT_ELEMS * 4)
#define RING_BYTES_EACH (16u << 20)
#define HOLE_BYTES (UINT64_C(32) << 20)

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static uint64_t kept_pair_bytes(const struct shore__facts *f, bool cheap_too) {
    return shore__arena_round(shore__inner_bytes(f->model, shore__stored_mode(f->mode), f->batch.unit_rows, cheap_too));
}

uint64_t shore__plan_offload_bytes(const struct shore__facts *f) {
    return kept_pair_bytes(f, false);
}

uint64_t shore__plan_boundary_bytes(const struct shore__facts *f) {
    return shore__arena_round(f->batch.rows * f->model->arch.d_model * shore__mode_bytes(shore__stored_mode(f->mode)));
}

static uint64_t state_bytes(const struct shore__facts *f) {
    uint32_t plane_bytes[SHORE_PLANE_COUNT];
    shore__planes_make(f->model->layout, &f->drives, plane_bytes);
    return shore__state_segment_bytes(plane_bytes);
}

/* Bytes of the larger untied table: a compressed block is selected from as a whole. */
static uint64_t larger_table_bytes(const struct shore__model *m) {
    uint64_t elems = m->layout->blocks[0].padded_elems, head = m->layout->blocks[m->nblocks - 1].padded_elems;
    return (head > elems ? head : elems) * 4;
}

/* Bytes of slice i of a table. The last one includes the rest of its block, in the larger of both blocks. */
static uint64_t slice_piece_bytes(const struct shore__model *m, uint32_t i) {
    struct shore__slice s = shore__model_slice(m, i);
    uint32_t segments = s.segments;
    for (uint32_t block = 0; i + 1 == m->nslices && block < m->nblocks; block += m->nblocks - 1) {
        uint32_t to_end = m->layout->blocks[block].segments - s.segment;
        if (shore__page_block_has_table(m, block) && to_end > segments) segments = to_end;
    }
    return segments * SEGMENT_BYTES;
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

/* The largest size: 4 bytes an element in any precision. */
static uint64_t boundary_room(const struct shore__facts *f) {
    return shore__arena_round((uint64_t)f->batch.rows * f->model->arch.d_model * 4);
}

uint64_t shore__plan_scratch_slice(const struct shore__facts *f, uint32_t slice) {
    return boundary_room(f) * f->model->arch.n_layer + shore__model_slice(f->model, slice).segment * SEGMENT_BYTES;
}

uint64_t shore__plan_scratch_inner(const struct shore__facts *f, size_t nth) {
    const struct shore__model *m = f->model;
    uint64_t slices = m->arch.tied ? m->layout->blocks[0].padded_elems * 4 : 0;
    return boundary_room(f) * m->arch.n_layer + slices + nth * shore__plan_offload_bytes(f);
}

/* Largest number of pairs whose inner activations get room in scratch: all pairs, but at most 12 bytes per parameter,
 * which fp32 parameters and moments take. By default none, if moving them takes longer than recomputing them. */
static size_t offloaded_most(const struct shore__facts *f) {
    size_t pairs = f->model->arch.n_layer * f->batch.units;
    uint64_t most = f->model->layout->segments * SHORE_SEGMENT_ELEMS * 12 / shore__plan_offload_bytes(f);
    bool costly = !shore__operations_outlast_drives(f) || f->remote || f->emulated;
    if (!f->scratch || f->offload == SHORE__OFF || (f->offload == SHORE__AUTO && costly)) return 0;
    if (pairs < most) most = pairs;
    return most > SHORE__OFFLOAD_SLOTS ? most : 0;
}

void shore__plan_fleet_options(const struct shore__facts *f, const struct shore__train_plan *plan,
                               struct shore_fleet_options *out) {
    *out = f->drives;
    out->scratch_bytes = f->scratch ? shore__plan_scratch_inner(f, offloaded_most(f)) : 0;
    out->spill = f->scratch || f->host_update; /* memory that stands in for a drive is no place to save memory */
    if (plan) out->ring_bytes = plan->ring_bytes;
}

uint64_t shore__plan_disk_bytes(const struct shore__facts *f) {
    struct shore_fleet_options options;
    shore__plan_fleet_options(f, NULL, &options);
    return shore_fleet_disk_bytes(f->model->layout, &options);
}

enum shore__when shore__plan_offload_within(const struct shore__facts *f, uint64_t room_bytes) {
    return f->offload == SHORE__AUTO && shore__plan_disk_bytes(f) > room_bytes ? SHORE__OFF : f->offload;
}

/* ---- a training step --------------------------------------------------------------------------------------------- */

struct description {
    const struct shore__facts *f;
    struct shore__train_plan *plan; /* the plan being described */
    struct shore_program *program;
};

static uint64_t ring_bytes(const struct shore__facts *f) {
    uint64_t bytes = (uint64_t)RING_BYTES_EACH * f->drives.ndrives;
    return f->ring_bytes_most && bytes > f->ring_bytes_most ? f->ring_bytes_most : bytes;
}

/* Adds a tensor that lives from one operation to another. */
static uint32_t add_between(const struct description *d, const struct shore_tensor *t, uint32_t from, uint32_t to) {
    uint32_t id = shore_program_tensor(d->program, t);
    shore_program_makes(d->program, from, id);
    shore_program_frees(d->program, to, id);
    return id;
}

/* Adds a tensor that lives from the first lookups to the end of the step, and not between steps. Updates read such
 * memory too. */
static uint32_t in_step(const struct description *d, const struct shore_tensor *t) {
    return add_between(d, t, shore__phase_forward(0), shore__phase_backward(d->f->model->arch.n_layer, 0));
}

static uint32_t row_in_step(const struct description *d, enum shore__row key, enum shore_place place, uint64_t bytes) {
    struct shore_tensor row = shore__row_tensor(key, 0, place, bytes);
    return in_step(d, &row);
}

static void add_buffers(const struct description *d, enum shore__row key, uint32_t group, uint32_t least,
                        uint32_t most) {
    struct shore_tensor buffers = shore__row_tensor(key, 0, SHORE_PLACE_BOTH, 0);
    buffers.role = SHORE_ROLE_BUFFERS;
    buffers.group = group;
    buffers.least = least;
    buffers.most = most;
    if (group == SHORE__GROUP_PIECES)
        in_step(d, &buffers);
    else
        shore_program_tensor(d->program, &buffers);
}

/* Adds the pieces of gradient: of layers, of table slices and of tails. held: 1 + the tensor that holds all slices of a
 * tied table's gradient, if it stays in memory; 0: none. */
static void add_pieces(const struct description *d, uint32_t held) {
    const struct shore__facts *f = d->f;
    const struct shore__model *m = f->model;
    struct shore_tensor piece = shore__row_tensor(SHORE__ROW_GRADIENT, 0, SHORE_PLACE_BOTH, 0);
    uint32_t slices = m->nslices * (m->arch.tied ? 1 : 2), made = m->arch.n_layer + slices + 1;
    piece.role = SHORE_ROLE_PIECE;
    piece.ways = SHORE_WAY_MOVE;
    piece.group = SHORE__GROUP_PIECES;
    for (uint32_t i = 0; i < made; i++) {
        uint32_t slice = i - m->arch.n_layer - 1;
        piece.index = i;
        piece.bytes = i < m->arch.n_layer ? m->layout->blocks[i + 1].segments * SEGMENT_BYTES : 0;
        piece.without = 0;
        if (i > m->arch.n_layer) {
            piece.bytes = slice_piece_bytes(m, slice % m->nslices);
            piece.without = held;
        }
        shore_program_tensor(d->program, &piece);
    }
    if (!f->scratch && held) made -= slices;
    add_buffers(d, SHORE__ROW_GRADIENT, SHORE__GROUP_PIECES, f->scratch ? 1 : made, made);
}

static void describe_backward(const struct description *d) {
    const struct shore__facts *f = d->f;
    const struct shore__model *m = f->model;
    size_t e = shore__mode_bytes(f->mode), width = m->arch.d_model;
    uint64_t elems = m->layout->blocks[0].padded_elems;
    uint32_t held = 0;
    row_in_step(d, SHORE__ROW_DX, SHORE_PLACE_DEVICE, f->batch.rows * width * e);
    row_in_step(d, SHORE__ROW_DX_FP32, SHORE_PLACE_DEVICE, f->batch.rows * width * 4);
    row_in_step(d, SHORE__ROW_DLOGITS, SHORE_PLACE_DEVICE, f->batch.unit_rows * m->slice_rows * e);
    row_in_step(d, SHORE__ROW_BACKWARD_SCRATCH, SHORE_PLACE_DEVICE,
                shore__backward_scratch_bytes(m, f->mode, f->batch.unit_rows));
    if (m->arch.tied) {
        struct shore_tensor table = shore__row_tensor(SHORE__ROW_TABLE_GRADIENT, 0, SHORE_PLACE_BOTH, elems * 4);
        table.role = SHORE__ROLE_HELD;
        table.ways = SHORE_WAY_KEEP | (f->compressed || !f->scratch ? 0 : SHORE_WAY_MOVE);
        held = 1 + in_step(d, &table);
        table = shore__row_tensor(SHORE__ROW_TABLE_GRADIENT_BF16, 0, SHORE_PLACE_PINNED, elems * 2);
        table.with = held;
        if (f->gradient_bf16) in_step(d, &table);
    } else if (f->compressed)
        row_in_step(d, SHORE__ROW_WHOLE_GRADIENT, SHORE_PLACE_BOTH, larger_table_bytes(m));
    add_pieces(d, held);
    if (f->host_update) {
        struct shore_tensor host =
            shore__row_tensor(SHORE__ROW_HOST_UPDATE, 0, SHORE_PLACE_PINNED, state_bytes(f) + SEGMENT_BYTES);
        host.role = SHORE_ROLE_HOST;
        host.most = f->host_buffers_most;
        in_step(d, &host);
    }
}

static void describe_inner(const struct description *d) {
    const struct shore__facts *f = d->f;
    uint32_t n = f->model->arch.n_layer;
    for (uint32_t l = n; l >= 1; l--) { /* backward needs the last layers first */
        struct shore_tensor inner =
            shore__row_tensor(SHORE__ROW_INNER_KEPT, l, SHORE_PLACE_DEVICE, kept_pair_bytes(f, false));
        inner.role = SHORE_ROLE_INNER;
        inner.ways = SHORE_WAY_KEEP | SHORE_WAY_AGAIN | (f->scratch ? SHORE_WAY_MOVE : 0);
        inner.group = SHORE__GROUP_INNER;
        inner.full_bytes = kept_pair_bytes(f, true);
        inner.again = f->model->layout->blocks[1].elems * f->batch.unit_rows;
        for (size_t u = 0; u < f->batch.units; u++) {
            uint32_t id = add_between(d, &inner, shore__phase_forward(l), shore__phase_backward(n, l));
            if (l == n && u == 0) d->plan->inner = id;
        }
    }
    add_buffers(d, SHORE__ROW_INNER_PASSING, SHORE__GROUP_INNER, 0, SHORE__OFFLOAD_SLOTS);
}

/* Adds the activations that forward leaves for backward. */
static void describe_activations(const struct description *d) {
    const struct shore__facts *f = d->f;
    uint32_t n = f->model->arch.n_layer;
    add_buffers(d, SHORE__ROW_PASSING_BOUNDARY, SHORE__GROUP_INPUTS, 0, 2);
    for (uint32_t l = 1; l <= n + 1; l++) {
        bool last = l == n + 1;
        struct shore_tensor input =
            shore__row_tensor(SHORE__ROW_BOUNDARY, l, SHORE_PLACE_DEVICE, shore__plan_boundary_bytes(f));
        if (last) input.bytes = f->batch.rows * f->model->arch.d_model * shore__mode_bytes(f->mode);
        input.role = SHORE_ROLE_INPUT;
        input.ways = SHORE_WAY_KEEP | (last || !f->scratch ? 0 : SHORE_WAY_MOVE);
        input.group = SHORE__GROUP_INPUTS;
        uint32_t id = shore_program_tensor(d->program, &input);
        if (l == 1) d->plan->input = id;
    }
    describe_inner(d);
}

static void describe_logits(const struct description *d) {
    const struct shore__facts *f = d->f;
    const struct shore__model *m = f->model;
    struct shore_tensor logits =
        shore__row_tensor(SHORE__ROW_LOGITS_KEPT, 0, SHORE_PLACE_DEVICE, f->batch.unit_rows * m->slice_rows * 4);
    logits.role = SHORE__ROLE_LOGITS;
    logits.ways = SHORE_WAY_KEEP | SHORE_WAY_AGAIN;
    logits.again = f->batch.unit_rows * m->slice_rows * m->arch.d_model;
    logits.most = (uint32_t)(m->nslices * f->batch.units);
    add_between(d, &logits, shore__phase_loss(m->arch.n_layer), shore__phase_head(m->arch.n_layer));
}

/* Adds the trainer's own memory, by name: the drives, the process and its reserve. */
static void describe_own(const struct description *d) {
    const struct shore__facts *f = d->f;
    struct shore_fleet_options options;
    shore__plan_fleet_options(f, NULL, &options);
    options.ring_bytes = 0;
    struct shore_tensor own =
        shore__row_own(SHORE__ROW_DRIVES, shore_fleet_memory_least_bytes(f->model->layout, &options));
    own.role = SHORE_ROLE_DRIVES;
    options.ring_bytes = ring_bytes(f);
    own.full_bytes = shore_fleet_memory_bytes(f->model->layout, &options);
    shore_program_tensor(d->program, &own);
    own = shore__row_own(SHORE__ROW_PROCESS, shore__reserve_bytes(f->model->nblocks, f->model->arch.vocab,
                                                                  (uint32_t)f->threads, f->drives.ndrives));
    shore_program_tensor(d->program, &own);
    own = shore__row_own(SHORE__ROW_HOLES, HOLE_BYTES);
    own.role = SHORE_ROLE_HOLES;
    shore_program_tensor(d->program, &own);
}

static int describe(const struct description *d, struct shore_diag *diag) {
    const struct shore__facts *f = d->f;
    const struct shore__model *m = f->model;
    uint32_t between = shore__phase_between(m->arch.n_layer);
    struct shore_tensor workspace = shore__row_tensor(SHORE__ROW_WORKSPACE, 0, SHORE_PLACE_DEVICE, f->workspace_bytes);
    workspace.role = SHORE_ROLE_WORKSPACE;
    workspace.full_bytes = f->workspace_bytes + f->packed_bytes;
    int rc = shore__operations_describe(f, d->program, diag);
    shore_program_tensor(d->program, &workspace);
    shore__batch_describe(m, f->mode, &f->batch, d->program);
    shore__pages_describe(m, f->mode, f->one_memory, d->program);
    describe_backward(d); /* samples take these first; activations are idle then, so parameters may use them too */
    struct shore_tensor sample = shore__row_tensor(SHORE__ROW_SAMPLE, 0, SHORE_PLACE_BOTH,
                                                   f->samples ? shore__generate_bytes(m, f->mode, 1) : 0);
    sample.grows = true;
    add_between(d, &sample, between, between);
    describe_logits(d);
    describe_activations(d);
    shore__row_add(d->program, SHORE__ROW_PARTIAL_SUMS, 0, SHORE_PLACE_PLAIN, m->layout->segments * sizeof(double));
    shore__row_add(d->program, SHORE__ROW_COMPRESSION, 0, SHORE_PLACE_PLAIN, f->compression_bytes);
    describe_own(d);
    shore__operations_read(f, d->program);
    return rc;
}

/* ---- its plan ---------------------------------------------------------------------------------------------------- */

static uint64_t bytes_of_drives(const struct shore__train_plan *plan) {
    uint32_t i = 0;
    while (plan->program->tensor[i].role != SHORE_ROLE_DRIVES)
        i++;
    return plan->plan->fate[i].bytes;
}

static void fill_plan(const struct shore__facts *f, struct shore__train_plan *out) {
    const struct shore_plan *plan = out->plan;
    const struct shore__choice *c = &plan->choice;
    out->units = f->batch.units;
    out->hold_table_gradient = c->held || !f->scratch;
    out->ring_bytes = c->drives ? ring_bytes(f) : 0;
    out->workspace_bytes = f->workspace_bytes + (c->workspace ? f->packed_bytes : 0);
    out->fleet_bytes = bytes_of_drives(out);
    out->hole_bytes = c->holes ? HOLE_BYTES : 0;
}

int shore__plan_training(const struct shore__facts *f, uint64_t budget, struct shore__train_plan *out,
                         struct shore__needs *needs, struct shore_diag *diag) {
    const struct shore__model *m = f->model;
    *out = (struct shore__train_plan){.program = shore_program_new()};
    if (!out->program) return shore__fail(diag, -ENOMEM, "out of memory for a plan");
    struct description d = {f, out, out->program};
    const struct shore_plan_options options = {
        .size = sizeof options,
        .memory_bytes = budget,
        .what = "this model, batch and sequence length",
        .one_memory = f->one_memory,
        .operations_per_second = f->operations_per_second,
        .drive_bytes_per_second = f->drive_bytes_per_second,
    };
    const struct shore__head head = {
        .units = (uint32_t)f->batch.units,
        /* Head apart, each unit walks the whole table again, which may be too slow over a network. With compression, a
         * loss that is not finite must be seen before the residual is asked for. */
        .apart = !f->remote && m->arch.tied && !f->compressed,
        .moved_most = offloaded_most(f),
    };
    int rc = describe(&d, diag);
    if (!rc) rc = shore__plan_open(out->program, &options, &head, &out->plan, diag);
    if (!out->plan) return rc;
    fill_plan(f, out);
    if (!needs) return rc;
    *needs = (struct shore__needs){
        .minimum_bytes = out->plan->minimum.of[SHORE__SHARED],
        .comfortable_bytes = out->plan->comfortable.of[SHORE__SHARED],
        .disk_bytes = shore__plan_disk_bytes(f),
        .pairs = m->arch.n_layer * f->batch.units,
        .kept_pairs = out->plan->choice.inner,
        .offloaded_pairs = out->plan->choice.moved_inner,
    };
    return 0;
}

void shore__train_plan_close(struct shore__train_plan *plan) {
    shore_plan_close(plan->plan);
    shore_program_free(plan->program);
    *plan = (struct shore__train_plan){.units = 0};
}

const struct shore__fate *shore__plan_input(const struct shore__train_plan *plan, uint32_t layer) {
    return &plan->plan->fate[plan->input + layer - 1];
}

const struct shore__fate *shore__plan_inner(const struct shore__facts *f, const struct shore__train_plan *plan,
                                            uint32_t layer, size_t unit) {
    return &plan->plan->fate[plan->inner + (f->model->arch.n_layer - layer) * plan->units + unit];
}

/* ---- passes that only read --------------------------------------------------------------------------------------- */

static void describe_reading(const struct shore__facts *f, uint64_t generation_bytes, uint64_t reserve_bytes,
                             struct shore_program *program) {
    const struct shore__model *m = f->model;
    size_t rows = generation_bytes ? 1 : f->batch.rows;
    shore_program_operation(program, "pass");
    shore__row_add(program, SHORE__ROW_WORKSPACE, 0, SHORE_PLACE_DEVICE, f->workspace_bytes);
    shore__pages_describe(m, f->mode, f->one_memory, program);
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
    int rc = shore__plan_open(out->program, &options, &(struct shore__head){.units = 0}, &out->plan, diag);
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
