#include "pass/costs.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "drive/chunk.h"
#include "drive/fleet/fleet.h"
#include "drive/layout.h"
#include "drive/probe/speed.h"
#include "machine/machine.h"
#include "pass/pages.h"
#include "storage/format.h"

/* An entry of a compressed gradient: its value as bf16, and how far it is from the one before. */
#define SPARSE_ENTRY_BYTES 3.1

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

/* Elements of a layer's adapters. */
static uint64_t adapter_elems(const struct shore__model *m, uint32_t layer) {
    uint32_t side = m->blocks[layer].side;
    return m->adapters.count && side ? m->layout->blocks[side].elems : 0;
}

uint32_t shore__trained_segments(const struct shore__facts *f, uint32_t block) {
    return shore__model_rests(f->model, block) ? 0 : f->model->layout->blocks[block].segments;
}

/* ---- lookups ----------------------------------------------------------------------------------------------------- */

uint64_t shore__rows_most(const struct shore__facts *f) {
    return f->batch.rows < f->model->arch.vocab ? f->batch.rows : f->model->arch.vocab;
}

/* Of so many things, how many are met if each of n draws meets `each` of them. */
static uint64_t met(double things, double each, uint64_t n) {
    return (uint64_t)ceil(things * (1 - pow(1 - each / things, (double)n)));
}

uint64_t shore__rows_expected(const struct shore__facts *f) {
    return met(f->model->arch.vocab, 1, f->batch.rows);
}

/* ---- computing --------------------------------------------------------------------------------------------------- */

static void compute(const struct shore__costing *c, uint32_t op, enum shore_work_kind kind, uint64_t work,
                    uint64_t rows) {
    const struct shore_computing computing = {
        .size = sizeof computing, .kind = kind, .precision = c->f->products, .work = work, .rows = rows};
    if (work) shore_program_computes(c->program, op, &computing);
}

/* Rows with which an operation of the layer that was measured does as much as this one. */
static uint64_t as_rows(uint64_t rows, uint64_t elems, uint64_t measured) {
    uint64_t as = elems < measured ? rows * elems / measured : rows;
    return as || !rows ? as : 1;
}

/* All rows of the batch, unit by unit, times so many matrices of so many elements together. */
static void product(const struct shore__costing *c, uint32_t op, enum shore_work_kind kind, uint32_t matrices,
                    uint64_t elems) {
    const struct shore__batch_shape *b = &c->f->batch;
    const uint64_t measured = (uint64_t)3 * SHORE__MEASURED_WIDTH * SHORE__MEASURED_WIDTH; /* of a matrix, on average */
    uint64_t left = b->rows % b->unit_rows;
    assert(matrices);
    compute(c, op, kind, 2 * (b->rows - left) * elems, as_rows(b->unit_rows, elems / matrices, measured));
    compute(c, op, kind, 2 * left * elems, as_rows(left, elems / matrices, measured));
}

/* Row operations that move so many elements of an activation for each row, and others of 4 bytes. */
static void rows(const struct shore__costing *c, uint32_t op, uint64_t elems, uint64_t fp32_bytes) {
    compute(c, op, SHORE_WORK_ROWS, c->f->batch.rows * (elems * shore__mode_bytes(c->f->mode) + fp32_bytes),
            as_rows(c->f->batch.unit_rows, c->f->model->arch.d_model, SHORE__MEASURED_WIDTH));
}

/* Memory that each unit reads or writes, however few rows it has. */
static void for_units(const struct shore__costing *c, uint32_t op, uint64_t bytes) {
    compute(c, op, SHORE_WORK_ROWS, c->f->batch.units * bytes, c->f->batch.unit_rows);
}

/* Pairs of a query with a key that it sees, over all heads and sequences. */
static uint64_t pairs(const struct shore__facts *f, uint32_t layer) {
    const struct shore__arch *a = &f->model->arch;
    uint64_t t = f->batch.seq_len, window = shore__layer_kind(a, layer)->window;
    if (!window || window > t) window = t;
    return f->batch.sequences * a->n_head * (window * (window + 1) / 2 + (t - window) * window);
}

void shore__costs_embed(const struct shore__costing *c, uint32_t op) {
    const struct shore__arch *a = &c->f->model->arch;
    rows(c, op, (uint64_t)a->d_model * (a->learned_positions ? 5 : 2), 0);
}

/* Work of some rows of a layer's table, for one row of activations. */
struct layer_work {
    uint32_t matrices;
    uint64_t products;  /* elements of weights */
    uint64_t elems;     /* that operations on rows move, in the mode's type */
    uint64_t exponents; /* elements of which an exponential is computed */
    uint64_t weights;   /* elements of all experts */
};

/* How often an operation on rows moves its input and its output, and of which it computes exponentials. Products move
 * none, attention's have a rate of their own, and ROPE turns a part of a row. */
struct moves {
    uint8_t in, out, exponents_in, exponents_out;
};
static const struct moves forward_moves[] = {
    [SHORE__OP_NORM] = {.in = 2},
    [SHORE__OP_HEAD_NORM] = {.in = 2},
    [SHORE__OP_ADD] = {.in = 3},
    [SHORE__OP_ACT] = {.in = 1, .out = 1, .exponents_out = 1},
    [SHORE__OP_ROUTE] = {.in = 1, .exponents_in = 1},
    [SHORE__OP_GATHER] = {.in = 1, .out = 1},
    [SHORE__OP_SCATTER] = {.in = 1, .out = 1},
};
static const struct moves backward_moves[] = {
    [SHORE__OP_NORM] = {.in = 4},
    [SHORE__OP_HEAD_NORM] = {.in = 4},
    [SHORE__OP_ACT] = {.in = 2, .out = 1, .exponents_out = 1},
    [SHORE__OP_ROUTE] = {.in = 2, .exponents_in = 1},
    [SHORE__OP_GATHER] = {.in = 1, .out = 1},
    [SHORE__OP_WEIGHTED] = {.in = 4},
    [SHORE__OP_SCATTER] = {.in = 1, .out = 1},
};

static void add_row(const struct shore__model *m, const struct shore__layer_row *row, bool backward,
                    struct layer_work *w) {
    const struct moves *moves = backward ? &backward_moves[row->op] : &forward_moves[row->op];
    uint64_t in = m->layer.width[row->in], out = m->layer.width[row->out], chosen = m->arch.experts_chosen;
    w->elems += moves->in * in + moves->out * out;
    w->exponents += moves->exponents_in * in + moves->exponents_out * out;
    if (row->op == SHORE__OP_ROPE) w->elems += 2 * ((uint64_t)m->attn_width + m->kv_width);
    if (row->op == SHORE__OP_LINEAR) {
        w->matrices++;
        w->products += in * out;
        if (backward && row->bias && m->blocks[1].of_role[row->bias] >= 0) w->elems += out;
    }
    if (row->op == SHORE__OP_EXPERTS || row->op == SHORE__OP_WEIGHTED) {
        /* a row's products are those of its own experts, but the weights of all are read for each unit */
        w->matrices += m->arch.experts_chosen;
        w->products += in * out / chosen;
        w->weights += in * out / chosen / chosen * m->arch.experts;
    }
}

/* Of forward: the rows that make a layer's output, or the others. */
static struct layer_work forward_work(const struct shore__model *m, bool output) {
    struct layer_work w = {0};
    for (uint32_t i = 0; i < m->layer.nrows; i++)
        if ((m->layer.rows[i].out == SHORE__OUT || m->layer.rows[i].out == m->layer.passing) == output)
            add_row(m, &m->layer.rows[i], false, &w);
    return w;
}

void shore__costs_forward(const struct shore__costing *c, uint32_t op, uint32_t layer) {
    const struct shore__model *m = c->f->model;
    const struct layer_work w = forward_work(m, false);
    product(c, op, SHORE_WORK_PRODUCT, w.matrices, w.products + adapter_elems(c->f->model, layer));
    compute(c, op, SHORE_WORK_ATTENTION, pairs(c->f, layer) * m->arch.head_dim * 4, c->f->batch.seq_len);
    rows(c, op, w.elems, w.exponents * SHORE__EXPONENTIAL_BYTES);
    for_units(c, op, w.weights * shore__mode_bytes(c->f->mode));
}

void shore__costs_output(const struct shore__costing *c, uint32_t op) {
    const struct layer_work w = forward_work(c->f->model, true);
    if (w.matrices) product(c, op, SHORE_WORK_PRODUCT, w.matrices, w.products);
    rows(c, op, w.elems, w.exponents * SHORE__EXPONENTIAL_BYTES);
    for_units(c, op, w.weights * shore__mode_bytes(c->f->mode));
}

void shore__costs_loss(const struct shore__costing *c, uint32_t op) {
    const struct shore__arch *a = &c->f->model->arch;
    product(c, op, SHORE_WORK_PRODUCT, 1, (uint64_t)a->d_model * a->vocab);
    rows(c, op, 2 * (uint64_t)a->d_model, (uint64_t)a->vocab * SHORE__EXPONENTIAL_BYTES);
}

void shore__costs_head(const struct shore__costing *c, uint32_t op) {
    const struct shore__arch *a = &c->f->model->arch;
    uint64_t d = a->d_model;
    product(c, op, SHORE_WORK_PRODUCT_INPUT, 1, d * a->vocab);
    if (!shore__model_rests(c->f->model, shore__model_table_block(c->f->model)))
        product(c, op, SHORE_WORK_PRODUCT_WEIGHT, 1, d * a->vocab);
    rows(c, op, a->vocab + 5 * d, (uint64_t)a->vocab * 4 + 2 * 4 * d);
}

/* Elements of a layer's matrices that are trained, and how many of these there are. */
static uint64_t trained_matrices(const struct shore__model *m, uint32_t layer, uint32_t *count) {
    uint64_t elems = 0, experts = 0; /* of all experts, of which each row has some */
    uint32_t expert_count = 0;
    *count = 0;
    for (uint32_t b = layer; b; b = b == layer ? m->blocks[b].side : 0)
        for (uint32_t t = 0; t < m->blocks[b].ntensors; t++) {
            const struct shore__model_tensor *tensor = &m->blocks[b].tensors[t];
            if (!tensor->matrix || tensor->rests) continue;
            *(tensor->expert ? &experts : &elems) += tensor->rows * tensor->cols;
            ++*(tensor->expert ? &expert_count : count);
        }
    if (!experts) return elems;
    *count += expert_count / m->arch.experts * m->arch.experts_chosen;
    return elems + experts / m->arch.experts * m->arch.experts_chosen;
}

void shore__costs_backward(const struct shore__costing *c, uint32_t op, uint32_t layer) {
    const struct shore__model *m = c->f->model;
    uint64_t adapters = adapter_elems(c->f->model, layer);
    struct layer_work w = {0};
    for (uint32_t i = 0; i < m->layer.nrows; i++)
        add_row(m, &m->layer.rows[i], true, &w);
    product(c, op, SHORE_WORK_PRODUCT_INPUT, w.matrices, w.products + adapters);
    uint32_t matrices;
    uint64_t trained = trained_matrices(m, layer, &matrices);
    if (matrices) product(c, op, SHORE_WORK_PRODUCT_WEIGHT, matrices, trained);
    compute(c, op, SHORE_WORK_ATTENTION_BACKWARD, pairs(c->f, layer) * m->arch.head_dim * 10, c->f->batch.seq_len);
    rows(c, op, w.elems, w.exponents * SHORE__EXPONENTIAL_BYTES);
    /* weights are read, and each unit adds to their gradients */
    for_units(c, op, w.weights * (shore__mode_bytes(c->f->mode) + 2 * sizeof(float)));
}

void shore__costs_lookups(const struct shore__costing *c, uint32_t op) {
    if (shore__model_trained(c->f->model, 0) == UINT32_MAX) return;
    const struct shore__arch *a = &c->f->model->arch;
    uint64_t d = (uint64_t)a->d_model * (a->learned_positions ? 2 : 1);
    rows(c, op, d, 8 * d);
}

/* ---- the drives -------------------------------------------------------------------------------------------------- */

/* Speeds of the drives, which decide their shares: as given, or as the machine's. All 0: equal shares. */
static int find_speeds(const struct shore__facts *f, uint64_t *speeds, struct shore_diag *diag) {
    uint32_t n = f->drives.ndrives;
    if (f->drives.drive_speeds) return shore__speeds_parse(f->drives.drive_speeds, n, speeds, diag);
    for (uint32_t d = 0; n > 1 && d < n; d++) {
        const struct shore__machine_drive *drive = f->machine ? shore__machine_drive(f->machine, d) : NULL;
        if (drive && !drive->shares) speeds[d] = shore__machine_update_speed(drive);
        if (!speeds[d]) { /* unknown, or on the device of another one */
            memset(speeds, 0, n * sizeof *speeds);
            return 0;
        }
    }
    return 0;
}

int shore__costing_open(struct shore__costing *c, const struct shore__facts *f, struct shore_program *program,
                        struct shore_diag *diag) {
    const struct shore_layout *layout = f->model->layout;
    uint32_t n = f->drives.ndrives;
    uint64_t *speeds = calloc(n + (size_t)1, sizeof *speeds);
    *c = (struct shore__costing){
        .f = f, .program = program, .ranges = calloc((size_t)layout->nblocks * n + 1, sizeof *c->ranges)};
    int rc = speeds && c->ranges ? 0 : shore__fail(diag, -ENOMEM, "out of memory for a plan");
    if (!rc) rc = find_speeds(f, speeds, diag);
    if (!rc) shore__placement_make(layout, speeds, n, c->ranges);
    free(speeds);
    return rc;
}

void shore__costing_close(struct shore__costing *c) {
    free(c->ranges);
    c->ranges = NULL;
}

/* Segments of [segment, segment + count) of a block that a drive has. */
static struct shore__range of_drive(const struct shore__costing *c, uint32_t d, uint32_t block, uint32_t segment,
                                    uint32_t count) {
    struct shore__range own = c->ranges[(size_t)block * c->f->drives.ndrives + d];
    uint32_t from = own.first > segment ? own.first : segment, end = own.first + own.count;
    if (end > segment + count) end = segment + count;
    return (struct shore__range){from, end > from ? end - from : 0};
}

double shore__costing_share(const struct shore__costing *c, uint32_t d) {
    double own = 0, all = 0;
    for (uint32_t b = 0; b < c->f->model->nblocks; b++) {
        uint32_t count = shore__trained_segments(c->f, b);
        own += of_drive(c, d, b, 0, count).count;
        all += count;
    }
    return own / all;
}

static void drive(const struct shore__costing *c, uint32_t op, enum shore_lane lane, uint32_t d, uint64_t work) {
    if (work) shore_program_costs(c->program, op, lane, d, work);
}

static void link(const struct shore__costing *c, uint32_t op, enum shore_lane lane, uint64_t bytes) {
    if (bytes) shore_program_costs(c->program, op, lane, 0, bytes);
}

static enum shore_gradient_form form_of(const struct shore__facts *f) {
    return f->gradient_bf16 ? SHORE_GRADIENT_BF16 : SHORE_GRADIENT_FP32;
}

/* Bytes of these segments' gradient on the link. */
static uint64_t gradient_bytes(const struct shore__facts *f, uint32_t block, uint32_t segment, uint32_t count) {
    const struct shore_layout *layout = f->model->layout;
    if (!block && shore__sends_rows(f)) { /* each with a head of 16 bytes */
        uint64_t row = f->model->arch.d_model * (uint64_t)(f->gradient_bf16 ? 2 : 4) + 16;
        return shore__rows_expected(f) * row * count / layout->blocks[0].segments;
    }
    if (f->compressed)
        return (uint64_t)(f->compress * (double)shore__layout_elems(layout, block, segment, count) *
                          SPARSE_ENTRY_BYTES);
    return shore__layout_bytes(layout, block, segment, count, shore__gradient_segment_bytes(form_of(f)));
}

bool shore__knows_least_ring(const struct shore__facts *f) {
    for (uint32_t d = 0; f->machine && d < f->drives.ndrives; d++) {
        const struct shore__machine_drive *drive = shore__machine_drive(f->machine, d);
        if (drive && drive->mixed_least > 0) return true;
    }
    return false;
}

/* With the least ring, an update takes the drive for longer, as if it moved so many bytes more. */
static uint64_t ring_lacks(const struct shore__costing *c, uint32_t d, uint64_t bytes) {
    const struct shore__machine_drive *drive = c->f->machine ? shore__machine_drive(c->f->machine, d) : NULL;
    if (!c->least_ring || !drive || !(drive->mixed_least > 0) || drive->mixed_least >= drive->mixed) return 0;
    return (uint64_t)((double)bytes * (drive->mixed / drive->mixed_least - 1));
}

void shore__costs_gradient(const struct shore__costing *c, uint32_t op, uint32_t block, uint32_t segment,
                           uint32_t count) {
    const struct shore__facts *f = c->f;
    struct shore__drive_config config = shore__fleet_config(f->model->layout, &f->drives, false);
    uint64_t elems = (uint64_t)count * SHORE_SEGMENT_ELEMS;
    /* its norm is added up, in double precision, and it is narrowed */
    compute(c, op, SHORE_WORK_ROWS, elems * (f->gradient_bf16 ? 10 : 8), 0);
    link(c, op, SHORE_LANE_LINK_IN, gradient_bytes(f, block, segment, count));
    if (f->drives.residual) { /* it comes, and goes back with the update */
        uint64_t bytes = shore__layout_elems(f->model->layout, block, segment, count) * 2;
        link(c, op, SHORE_LANE_LINK_OUT, bytes);
        link(c, op, SHORE_LANE_LINK_IN, bytes);
    }
    for (uint32_t d = 0; d < f->drives.ndrives; d++) {
        struct shore__range own = of_drive(c, d, block, segment, count);
        uint64_t read = shore__stored_range_bytes(&config, block, own.first, own.count, false) +
                        own.count * (uint64_t)config.plane_bytes[SHORE_PLANE_R],
                 written = shore__stored_range_bytes(&config, block, own.first, own.count, true);
        if (f->host_update) { /* until the norm is known, it waits there */
            drive(c, op, SHORE_LANE_DRIVE_WRITE, d, own.count * shore__gradient_segment_bytes(form_of(f)));
            continue;
        }
        drive(c, op, SHORE_LANE_DRIVE_READ, d, read);
        drive(c, op, SHORE_LANE_DRIVE_UPDATE, d, own.count * (uint64_t)SHORE_SEGMENT_ELEMS);
        drive(c, op, SHORE_LANE_DRIVE_WRITE, d, written);
        drive(c, op, SHORE_LANE_DRIVE_MIXED, d, ring_lacks(c, d, read + written));
    }
}

void shore__costs_spill(const struct shore__costing *c, uint32_t op, uint32_t last, uint32_t block, uint32_t segment,
                        uint32_t count) {
    for (uint32_t d = 0; d < c->f->drives.ndrives; d++) {
        uint64_t bytes =
            of_drive(c, d, block, segment, count).count * (uint64_t)shore__gradient_segment_bytes(form_of(c->f));
        drive(c, op, SHORE_LANE_DRIVE_WRITE, d, bytes);
        drive(c, last, SHORE_LANE_DRIVE_READ, d, bytes);
    }
}

/* All state comes to the host, with the gradients that waited, and goes back. */
static void host_update(const struct shore__costing *c, uint32_t op) {
    const struct shore__facts *f = c->f;
    const struct shore_layout *layout = f->model->layout;
    struct shore__drive_config config = shore__fleet_config(layout, &f->drives, false);
    uint64_t segments = 0;
    for (uint32_t b = 0; b < layout->nblocks; b++) {
        uint32_t count = shore__trained_segments(f, b);
        segments += count;
        link(c, op, SHORE_LANE_LINK_OUT, gradient_bytes(f, b, 0, count));
        for (uint32_t d = 0; d < f->drives.ndrives; d++) {
            struct shore__range own = of_drive(c, d, b, 0, count);
            uint64_t bytes = shore__stored_range_bytes(&config, b, own.first, own.count, true);
            drive(c, op, SHORE_LANE_DRIVE_READ, d,
                  bytes + own.count * (uint64_t)shore__gradient_segment_bytes(form_of(f)));
            drive(c, op, SHORE_LANE_DRIVE_WRITE, d, bytes);
        }
    }
    uint64_t state = segments * shore__state_segment_bytes(config.plane_bytes);
    link(c, op, SHORE_LANE_LINK_OUT, state);
    link(c, op, SHORE_LANE_LINK_IN, state);
    shore_program_costs(c->program, op, SHORE_LANE_HOST_UPDATE, 0, segments * SHORE_SEGMENT_ELEMS);
}

void shore__costs_end(const struct shore__costing *c, uint32_t op) {
    const struct shore__facts *f = c->f;
    uint64_t bytes = 0;
    if (f->host_update) host_update(c, op);
    for (uint32_t d = 0; d < f->drives.ndrives; d++) {
        uint64_t segments = 0;
        for (uint32_t b = 0; b < f->model->layout->nblocks; b++)
            segments += of_drive(c, d, b, 0, shore__trained_segments(f, b)).count;
        bytes += shore__round_up(segments * sizeof(struct shore__leaves), SHORE__PAGE_BYTES) + SHORE__PAGE_BYTES;
    }
    shore_program_costs(c->program, op, SHORE_LANE_COMMIT, 0, f->scratch ? bytes : 0);
}

void shore__costs_gather(const struct shore__costing *c, uint32_t op) {
    const struct shore__facts *f = c->f;
    uint64_t row = 2 * (uint64_t)f->model->arch.d_model, segments = f->model->layout->blocks[0].segments;
    uint64_t aligned = row & -row; /* rows begin at multiples of it */
    if (aligned > SHORE__PAGE_BYTES) aligned = SHORE__PAGE_BYTES;
    double pages = (double)(row + SHORE__PAGE_BYTES - aligned) / SHORE__PAGE_BYTES;
    const uint64_t all_pages = segments * SHORE_SEGMENT_ELEMS * 2 / SHORE__PAGE_BYTES;
    double all = (double)all_pages;
    uint64_t read = met(all > pages ? all : pages, pages, f->batch.rows) * SHORE__PAGE_BYTES;
    uint64_t sent = shore__rows_expected(f) * row, beside = read > sent ? read - sent : 0;
    for (uint32_t d = 0; d < f->drives.ndrives; d++)
        drive(c, op, SHORE_LANE_DRIVE_READ, d,
              beside * of_drive(c, d, 0, 0, (uint32_t)segments).count / segments * (f->mode == SHORE__F32 ? 2 : 1));
}

void shore__costs_tail(const struct shore__costing *c, uint32_t op, uint32_t block) {
    const struct shore__facts *f = c->f;
    uint32_t segment, count;
    size_t each = f->mode == SHORE__F32 ? 4 : 2;
    if (shore__model_rests(f->model, block)) return; /* its page stays as it is */
    shore__page_segments(f->model, (struct shore__page_id){SHORE__PAGE_TAIL, block, 0}, &segment, &count);
    link(c, op, SHORE_LANE_LINK_OUT, shore__layout_elems(f->model->layout, block, segment, count) * each);
    for (uint32_t d = 0; d < f->drives.ndrives; d++)
        drive(c, op, SHORE_LANE_DRIVE_READ, d,
              of_drive(c, d, block, segment, count).count * SHORE_SEGMENT_ELEMS * each);
}
