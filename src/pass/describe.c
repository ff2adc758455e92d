#include "pass/describe.h"

#include <errno.h>

#include "base/diag.h"
#include "drive/address.h"
#include "drive/fleet/fleet.h"
#include "drive/planes.h"
#include "pass/costs.h"
#include "pass/lookups.h"
#include "pass/operations.h"
#include "pass/pieces.h"
#include "pass/row_tensor.h"
#include "plan/budget.h"

#define SEGMENT_BYTES ((uint64_t)SHORE_SEGMENT_ELEMS * 4)

/* A budget this far above the minimum leaves room for holes in the heap: more than they were seen to take. The room is
 * worth 5 % of a step of 256 tokens with AVX2, and less of longer steps, so memory that activations need more comes
 * first. */
#define HOLE_BYTES (UINT64_C(32) << 20)
#define HOLES_FROM_BYTES (UINT64_C(256) << 20)

/* Buffers of updates on the host: one chunk is computed, one read, one written. Chunks are large, for large
 * requests. */
#define HOST_BUFFERS 3u
#define HOST_BUFFERS_LEAST 2u
#define HOST_SEGMENTS 32u

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

/* Bytes of the logits of a unit and a slice. */
static uint64_t tile_bytes(const struct shore__facts *f) {
    return f->batch.unit_rows * f->model->slice_rows * 4;
}

/* Of updates on the host: buffers, and bytes of each for a segment. */
static uint64_t host_buffers(const struct shore__facts *f, uint32_t wanted) {
    return f->host_buffers_most && wanted > f->host_buffers_most ? f->host_buffers_most : wanted;
}
static uint64_t host_bytes(const struct shore__facts *f) {
    return state_bytes(f) + SEGMENT_BYTES;
}

/* Bytes of the larger untied table: a compressed block is selected from as a whole. */
static uint64_t larger_table_bytes(const struct shore__facts *f) {
    uint32_t input = shore__trained_segments(f, 0), output = shore__trained_segments(f, shore__model_head(f->model));
    return (output > input ? output : input) * SEGMENT_BYTES;
}

/* Bytes of slice i of a table. The last one includes the rest of its block, in the larger of both blocks. */
static uint64_t slice_piece_bytes(const struct shore__model *m, uint32_t i) {
    struct shore__slice s = shore__model_slice(m, i);
    uint32_t segments = s.segments;
    for (uint32_t block = 0; i + 1 == m->nslices && block <= shore__model_head(m); block += shore__model_head(m)) {
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

uint64_t shore__plan_pairs(const struct shore__facts *f) {
    return (f->model->arch.n_layer + 1 - f->model->lowest) * f->batch.units;
}

/* Number of pairs whose inner activations have room in scratch: all pairs, but at most 12 bytes per parameter, which
 * fp32 parameters and moments take. */
static size_t pairs_with_room(const struct shore__facts *f) {
    size_t pairs = shore__plan_pairs(f);
    uint64_t most = f->model->layout->segments * SHORE_SEGMENT_ELEMS * 12 / shore__plan_offload_bytes(f);
    if (!f->scratch || f->offload == SHORE__OFF) return 0;
    if (pairs < most) most = pairs;
    return most > SHORE__OFFLOAD_SLOTS ? most : 0;
}

void shore__plan_fleet_options(const struct shore__facts *f, const struct shore__train_plan *plan,
                               struct shore_fleet_options *out) {
    *out = f->drives;
    out->scratch_bytes = f->scratch ? shore__plan_scratch_inner(f, pairs_with_room(f)) : 0;
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
    struct shore__step_way how;
};

static uint64_t ring_bytes(const struct shore__facts *f) {
    uint64_t bytes = SHORE__RING_BYTES * f->drives.ndrives;
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
    buffers.buffers = true;
    buffers.group = group;
    buffers.least = least;
    buffers.most = most;
    if (group == SHORE__GROUP_PIECES)
        d->plan->pieces = in_step(d, &buffers);
    else
        shore_program_tensor(d->program, &buffers);
}

/* The operation that makes a piece: of a layer, of a tail, of a table's slice. Slices of a tied table go to scratch
 * from there, and come back for its lookups. */
static uint32_t made_at(const struct shore__model *m, struct shore__page_id page) {
    uint32_t n = m->arch.n_layer, block = shore__model_main(m, page.block);
    if (block == shore__model_head(m) || (page.kind == SHORE__PAGE_SLICE && m->arch.tied)) return shore__phase_head(n);
    return shore__phase_backward(n, block);
}

/* Adds the pieces of gradient: of layers, of table slices and of tails. held: 1 + the tensor that holds all slices of a
 * tied table's gradient, if it stays in memory; 0: none. */
static void add_pieces(const struct description *d, uint32_t held) {
    const struct shore__facts *f = d->f;
    const struct shore__model *m = f->model;
    struct shore_tensor piece = shore__row_tensor(SHORE__ROW_GRADIENT, 0, SHORE_PLACE_BOTH, 0);
    uint32_t made = 0;
    piece.ways = SHORE_WAY_MOVE;
    piece.group = SHORE__GROUP_PIECES;
    for (uint32_t i = 0; i < shore__pieces_count(m); i++) {
        const struct shore__piece is = shore__piece_at(m, i);
        const bool slice = is.page.kind == SHORE__PAGE_SLICE, rows = slice && !is.page.block && shore__sends_rows(f);
        if (shore__model_rests(m, is.page.block)) continue;
        piece.index = i;
        piece.bytes =
            slice ? slice_piece_bytes(m, is.page.slice) : shore__trained_segments(f, is.page.block) * SEGMENT_BYTES;
        if (!is.count) piece.bytes = 0; /* it comes with a slice */
        if (rows) piece.bytes = 0;
        piece.without = slice ? held : 0;
        made += f->scratch || !piece.without;
        shore_program_makes(d->program, made_at(m, is.page), shore_program_tensor(d->program, &piece));
    }
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
    if (m->arch.experts) { /* how often each was chosen, and the sums of its probabilities; what balances them */
        row_in_step(d, SHORE__ROW_EXPERTS_LOAD, SHORE_PLACE_BOTH, (uint64_t)m->arch.n_layer * 2 * m->arch.experts * 8);
        row_in_step(d, SHORE__ROW_EXPERTS_BALANCE, SHORE_PLACE_BOTH, (uint64_t)m->arch.experts * 4);
    }
    row_in_step(d, SHORE__ROW_DLOGITS, SHORE_PLACE_DEVICE, f->batch.unit_rows * m->slice_rows * e);
    row_in_step(d, SHORE__ROW_BACKWARD_SCRATCH, SHORE_PLACE_DEVICE,
                shore__backward_scratch_bytes(m, f->mode, f->batch.unit_rows));
    if (m->arch.tied && !shore__model_rests(m, 0)) {
        struct shore_tensor table = shore__row_tensor(SHORE__ROW_TABLE_GRADIENT, 0, SHORE_PLACE_BOTH, elems * 4);
        bool stays = f->compressed || !f->scratch || d->how.head_units < f->batch.units;
        table.ways = SHORE_WAY_KEEP | (stays ? 0 : SHORE_WAY_MOVE);
        table.moved_bytes = UINT64_MAX; /* its pieces move */
        d->plan->table = in_step(d, &table);
        table.moved_bytes = 0;
        held = 1 + d->plan->table;
        table = shore__row_tensor(SHORE__ROW_TABLE_GRADIENT_BF16, 0, SHORE_PLACE_PINNED, elems * 2);
        table.with = held;
        if (f->gradient_bf16) in_step(d, &table);
    } else if (f->compressed)
        row_in_step(d, SHORE__ROW_WHOLE_GRADIENT, SHORE_PLACE_BOTH, larger_table_bytes(f));
    add_pieces(d, held);
    if (f->host_update) {
        struct shore_tensor host = shore__row_tensor(SHORE__ROW_HOST_UPDATE, 0, SHORE_PLACE_PINNED,
                                                     host_buffers(f, HOST_BUFFERS_LEAST) * host_bytes(f));
        host.full_bytes = host_buffers(f, HOST_BUFFERS) * HOST_SEGMENTS * host_bytes(f);
        d->plan->host = in_step(d, &host);
    }
}

static void describe_inner(const struct description *d) {
    const struct shore__facts *f = d->f;
    uint32_t n = f->model->arch.n_layer;
    size_t movable = pairs_with_room(f);
    for (uint32_t l = n; l >= f->model->lowest; l--) { /* backward needs the last layers first */
        struct shore_tensor inner =
            shore__row_tensor(SHORE__ROW_INNER_KEPT, l, SHORE_PLACE_DEVICE, kept_pair_bytes(f, false));
        inner.group = SHORE__GROUP_INNER;
        inner.full_bytes = kept_pair_bytes(f, true);
        inner.again = 1 + shore__phase_forward(l);
        inner.again_parts = (uint32_t)f->batch.units;
        for (size_t u = 0; u < f->batch.units; u++) {
            unsigned moves = movable ? SHORE_WAY_MOVE : 0, again = moves && d->how.moves ? 0 : SHORE_WAY_AGAIN;
            inner.ways = SHORE_WAY_KEEP | again | moves;
            movable -= movable > 0;
            uint32_t id = add_between(d, &inner, shore__phase_forward(l), shore__phase_backward(n, l));
            if (l == n && u == 0) d->plan->inner = id;
        }
    }
    add_buffers(d, SHORE__ROW_INNER_PASSING, SHORE__GROUP_INNER, SHORE__OFFLOAD_SLOTS, SHORE__OFFLOAD_SLOTS);
}

/* Adds the activations that forward leaves for backward. */
static void describe_activations(const struct description *d) {
    const struct shore__facts *f = d->f;
    uint32_t n = f->model->arch.n_layer, lowest = f->model->lowest;
    add_buffers(d, SHORE__ROW_PASSING_BOUNDARY, SHORE__GROUP_INPUTS, 2, 2);
    for (uint32_t l = lowest; l <= n + 1; l++) { /* layers before it compute in place in its input */
        bool last = l == n + 1;
        struct shore_tensor input =
            shore__row_tensor(SHORE__ROW_BOUNDARY, l, SHORE_PLACE_DEVICE, shore__plan_boundary_bytes(f));
        if (last) input.bytes = f->batch.rows * f->model->arch.d_model * shore__mode_bytes(f->mode);
        input.ways = SHORE_WAY_KEEP | (last || !f->scratch ? 0 : SHORE_WAY_MOVE);
        input.group = SHORE__GROUP_INPUTS;
        uint32_t id = shore_program_tensor(d->program, &input);
        /* layers may compute in the last one, in place */
        shore_program_makes(d->program, last || l == lowest ? shore__phase_forward(0) : shore__phase_output(l - 1), id);
        if (l == lowest) d->plan->input = id;
    }
    describe_inner(d);
}

static void describe_logits(const struct description *d) {
    const struct shore__facts *f = d->f;
    const struct shore__model *m = f->model;
    struct shore_tensor logits = shore__row_tensor(SHORE__ROW_LOGITS_KEPT, 0, SHORE_PLACE_DEVICE, 0);
    logits.full_bytes = m->nslices * d->how.head_units * tile_bytes(f);
    logits.again = 1 + shore__phase_loss(m->arch.n_layer);
    d->plan->logits = add_between(d, &logits, shore__phase_loss(m->arch.n_layer), shore__phase_head(m->arch.n_layer));
}

struct shore__process shore__facts_process(const struct shore__facts *f) {
    return (struct shore__process){.blocks = f->model->nblocks,
                                   .tokens = f->model->arch.vocab,
                                   .threads = (uint32_t)f->threads,
                                   .ndrives = f->drives.ndrives,
                                   .heap_bytes = f->heap_bytes,
                                   .trace_bytes = f->trace_bytes,
                                   .opencl =
                                       shore__kinds_have(f->drives.drives, f->drives.ndrives, SHORE__KIND_OPENCL)};
}

/* Adds the trainer's own memory, by name: the drives, the process and its reserve. */
static void describe_own(const struct description *d) {
    const struct shore__facts *f = d->f;
    struct shore_fleet_options options;
    shore__plan_fleet_options(f, NULL, &options);
    options.ring_bytes = 0;
    struct shore_tensor own =
        shore__row_own(SHORE__ROW_DRIVES, shore_fleet_memory_least_bytes(f->model->layout, &options));
    own.whole = true;
    options.ring_bytes = ring_bytes(f);
    if (d->how.ring == SHORE__RING_IF_LEFT) own.full_bytes = shore_fleet_memory_bytes(f->model->layout, &options);
    if (d->how.ring == SHORE__RING_WANTED) own.bytes = shore_fleet_memory_bytes(f->model->layout, &options);
    d->plan->drives = shore_program_tensor(d->program, &own);
    const struct shore__process process = shore__facts_process(f);
    own = shore__row_own(SHORE__ROW_PROCESS, shore__reserve_bytes(&process));
    shore_program_tensor(d->program, &own);
    own = shore__row_own(SHORE__ROW_HOLES, 0);
    own.full_bytes = f->products_allocate ? HOLE_BYTES : 0;
    own.whole = true;
    own.margin = HOLES_FROM_BYTES;
    d->plan->holes = shore_program_tensor(d->program, &own);
}

int shore__step_describe(const struct shore__facts *f, struct shore__step_way how, struct shore__train_plan *out,
                         struct shore_diag *diag) {
    const struct description description = {f, out, shore_program_new(), how}, *d = &description;
    const struct shore__model *m = f->model;
    *out = (struct shore__train_plan){
        .program = d->program, .lowest = f->model->lowest, .table = UINT32_MAX, .host = UINT32_MAX};
    if (!out->program) return shore__fail(diag, -ENOMEM, "out of memory for a plan");
    uint32_t between = shore__phase_between(m->arch.n_layer);
    struct shore_tensor workspace = shore__row_tensor(SHORE__ROW_WORKSPACE, 0, SHORE_PLACE_DEVICE, f->workspace_bytes);
    workspace.whole = true;
    if (f->batch.units > 1) workspace.full_bytes = f->workspace_bytes + f->packed_bytes; /* packed for the next unit */
    int rc = shore__operations_describe(f, d->how.ring == SHORE__RING_LEAST, d->program, diag);
    d->plan->workspace = shore_program_tensor(d->program, &workspace);
    shore__batch_describe(m, f->mode, &f->batch, d->program);
    shore__pages_describe(f, d->program);
    shore__lookups_describe(f, d->program);
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

static struct shore__fate fate_of(const struct shore__train_plan *plan, uint32_t tensor) {
    return tensor == UINT32_MAX ? (struct shore__fate){.way = SHORE_WAY_NONE} : plan->plan->fate[tensor];
}

static void fill_host(const struct shore__facts *f, struct shore__train_plan *out) {
    uint64_t segments = fate_of(out, out->host).bytes / host_bytes(f), most = host_buffers(f, HOST_BUFFERS);
    uint64_t at_once = segments / host_buffers(f, HOST_BUFFERS_LEAST);
    if (!f->host_update || !at_once) return;
    out->host_segments = at_once < HOST_SEGMENTS ? (uint32_t)at_once : HOST_SEGMENTS;
    out->host_buffers = (uint32_t)(segments / out->host_segments < most ? segments / out->host_segments : most);
}

void shore__step_read_fates(const struct shore__facts *f, struct shore__step_way how, struct shore__train_plan *out) {
    out->units = f->batch.units;
    out->head_units = how.head_units;
    out->gathers = f->gathers;
    out->kept_logits = fate_of(out, out->logits).bytes / tile_bytes(f);
    out->gradient_buffers = (uint32_t)fate_of(out, out->pieces).count;
    out->hold_table_gradient = fate_of(out, out->table).way == SHORE_WAY_KEEP || !f->scratch;
    out->ring_bytes = how.ring == SHORE__RING_WANTED || fate_of(out, out->drives).full ? ring_bytes(f) : 0;
    out->workspace_bytes = fate_of(out, out->workspace).bytes;
    out->fleet_bytes = fate_of(out, out->drives).bytes;
    out->hole_bytes = fate_of(out, out->holes).bytes;
    fill_host(f, out);
}
