#include "pass/operations.h"

#include <math.h>

#include "pass/costs.h"
#include "pass/pieces.h"
#include "pass/row_keys.h"
#include "plan/plan.h"
#include "step/speculation.h"

/* ---- operations ---- */

/* What an operation is, as bits. */
enum { EMBED = 1, FORWARD = 2, OUTPUT = 4, LOSS = 8, HEAD_BACKWARD = 16, BACKWARD = 32, LOOKUPS = 64, BETWEEN = 128 };

#define LAYERS (FORWARD | OUTPUT | BACKWARD)
#define HEAD (LOSS | HEAD_BACKWARD)
#define GRADIENTS (HEAD_BACKWARD | BACKWARD | LOOKUPS)

struct operation {
    unsigned what;
    uint32_t layer; /* 0: of none */
    const char *name;
};

static struct operation operation_at(uint32_t n, uint32_t i) {
    if (i == shore__phase_forward(0)) return (struct operation){EMBED, 0, "embedding"};
    if (i < shore__phase_loss(n))
        return i % 2 ? (struct operation){FORWARD, (i + 1) / 2, "forward"}
                     : (struct operation){OUTPUT, i / 2, "output"};
    if (i == shore__phase_loss(n)) return (struct operation){LOSS, 0, "loss"};
    if (i == shore__phase_head(n)) return (struct operation){HEAD_BACKWARD, 0, "head"};
    if (i < shore__phase_backward(n, 0))
        return (struct operation){BACKWARD, shore__phase_backward(n, 0) - i, "backward"};
    if (i == shore__phase_backward(n, 0)) return (struct operation){LOOKUPS, 0, "lookups"};
    return (struct operation){BETWEEN, 0, "between steps"};
}

static bool wait_for_norm(const struct shore__facts *f) {
    return f->never_speculates && !f->host_update;
}

/* Of a tied table, the segments that no token of the batch looks up are complete once the head is done with them. So
 * many are expected if tokens are spread over the table. */
static uint32_t complete_early(const struct shore__facts *f) {
    uint32_t segments = shore__trained_segments(f, 0);
    if (!f->model->arch.tied || f->compressed || f->never_speculates || !segments) return 0;
    return (uint32_t)(segments * pow(1 - 1.0 / segments, (double)f->batch.rows));
}

/* The gradient of a block is updated behind it, or all are behind the last one, when the norm is known. */
static void cost_gradients(const struct shore__costing *c, uint32_t op, uint32_t block, bool last) {
    bool wait = wait_for_norm(c->f);
    uint32_t early = complete_early(c->f);
    if (block && !last && block == shore__model_head(c->f->model) && early) shore__costs_gradient(c, op, 0, 0, early);
    for (uint32_t b = 0; b < c->f->model->nblocks; b++)
        if (wait ? last : shore__model_main(c->f->model, b) == block)
            shore__costs_gradient(c, op, b, b ? 0 : early, shore__trained_segments(c->f, b) - (b ? 0 : early));
}

static void cost(const struct shore__costing *c, struct operation o, uint32_t op) {
    const struct shore__model *m = c->f->model;
    uint32_t head = shore__model_head(m), of = o.what == BACKWARD ? o.layer : o.what == HEAD_BACKWARD ? head : 0;
    if (o.what == EMBED) shore__costs_embed(c, op);
    if (o.what == EMBED && c->f->gathers) shore__costs_gather(c, op);
    if (o.what == FORWARD) shore__costs_forward(c, op, o.layer);
    if (o.what == OUTPUT) shore__costs_output(c, op);
    if (o.what == LOSS) shore__costs_loss(c, op);
    if (o.what == HEAD_BACKWARD) shore__costs_head(c, op);
    if (o.what == BACKWARD && o.layer >= m->lowest) shore__costs_backward(c, op, o.layer);
    if (o.what == LOOKUPS) shore__costs_lookups(c, op);
    if (o.what == EMBED || o.what == LOSS) shore__costs_tail(c, op, o.what == EMBED ? 0 : head);
    if (o.what & GRADIENTS) cost_gradients(c, op, of, o.what == LOOKUPS);
    if (o.what == LOOKUPS) shore__costs_end(c, op);
}

int shore__operations_describe(const struct shore__facts *f, bool least_ring, struct shore_program *program,
                               struct shore_diag *diag) {
    uint32_t n = f->model->arch.n_layer;
    struct shore__costing c;
    int rc = shore__costing_open(&c, f, program, diag);
    c.least_ring = least_ring;
    for (uint32_t i = 0; !rc && i <= shore__phase_between(n); i++) {
        struct operation o = operation_at(n, i);
        cost(&c, o, shore_program_operation(program, o.name));
    }
    shore__costing_close(&c);
    return rc;
}

/* ---- gradients that do not fit ---- */

/* The operation that completes the gradient of a block. */
static uint32_t completed_at(const struct shore__model *m, uint32_t block) {
    uint32_t n = m->arch.n_layer;
    return block == shore__model_head(m) ? shore__phase_head(n) : shore__phase_backward(n, block);
}

static void spill(const struct shore__costing *c, uint32_t buffers, bool table_stays) {
    const struct shore__model *m = c->f->model;
    uint32_t last = completed_at(m, 0), held = 0;
    for (uint32_t main = shore__model_head(m) + 1; main--;) { /* as backward completes them */
        uint32_t b = shore__model_trained(m, main);
        if (b == UINT32_MAX) continue;
        uint32_t pieces = shore__page_block_has_table(m, b) ? m->nslices : 1, end = shore__trained_segments(c->f, b);
        for (uint32_t i = 0, at = 0; end && !(table_stays && !b) && i < pieces; i++) {
            uint32_t to = i + 1 < pieces ? at + shore__model_slice(m, i).segments : end;
            if (held + SHORE__BUFFERS_TO_GO_ON < buffers)
                held++;
            else
                shore__costs_spill(c, completed_at(m, main), last, b, at, to - at);
            at = to;
        }
    }
}

int shore__operations_spill(const struct shore__facts *f, uint32_t buffers, bool table_stays,
                            struct shore_program *program, bool *spills, struct shore_diag *diag) {
    const struct shore__model *m = f->model;
    uint32_t tables = (m->arch.tied ? 1 : 2) - table_stays;
    struct shore__costing c;
    *spills = wait_for_norm(f) && !f->compressed && buffers < m->arch.n_layer + 1 + tables * m->nslices;
    if (!*spills) return 0;
    int rc = shore__costing_open(&c, f, program, diag);
    if (!rc) spill(&c, buffers, table_stays);
    shore__costing_close(&c);
    return rc;
}

/* ---- what they read ---- */

/* By key. */
static const unsigned readers[] = {
#define READERS(KEY, NAME, READ_BY, CLASS) READ_BY,
    SHORE__ROWS(READERS)
#undef READERS
};

struct reader {
    unsigned what;
    uint32_t layer; /* 0: any */
};

static struct reader of_page(const struct shore__facts *f, uint32_t number) {
    struct shore__page_id id = shore__page_at(f->model, number);
    unsigned samples = f->samples ? BETWEEN : 0;
    uint32_t block = shore__model_main(f->model, id.block), head = shore__model_head(f->model);
    if (block && block < head)
        return (struct reader){(block < f->model->lowest ? LAYERS & ~BACKWARD : LAYERS) | samples, block};
    if (f->gathers && id.kind == SHORE__PAGE_SLICE && !id.block) return (struct reader){BETWEEN, 0};
    unsigned what = block == 0 ? EMBED : 0;
    bool table = id.kind == SHORE__PAGE_SLICE && id.block == shore__model_table_block(f->model);
    if (table || block == head) what |= HEAD;
    return (struct reader){what | samples, 0};
}

static struct reader of_piece(const struct shore__facts *f, uint32_t number) {
    const struct shore__page_id page = shore__piece_at(f->model, number).page;
    uint32_t block = shore__model_main(f->model, page.block);
    if (block == shore__model_head(f->model)) return (struct reader){HEAD_BACKWARD, 0};
    if (block) return (struct reader){BACKWARD, block};
    bool of_head = page.kind == SHORE__PAGE_SLICE && f->model->arch.tied;
    return (struct reader){LOOKUPS | (of_head ? HEAD_BACKWARD : 0), 0};
}

static struct reader who_reads(const struct shore__facts *f, const struct shore_tensor *t) {
    uint32_t n = f->model->arch.n_layer;
    switch (t->key) {
    case SHORE__ROW_PAGE:
        return of_page(f, t->index);
    case SHORE__ROW_GRADIENT:
        return t->buffers ? (struct reader){GRADIENTS, 0} : of_piece(f, t->index);
    case SHORE__ROW_BOUNDARY:
        return t->index > n ? (struct reader){HEAD, 0} : (struct reader){FORWARD | BACKWARD, t->index};
    case SHORE__ROW_INNER_KEPT:
        return (struct reader){BACKWARD, t->index};
    default:
        return (struct reader){readers[t->key], 0};
    }
}

/* The operation behind which a page is updated. */
static uint32_t changed_at(const struct shore__facts *f, uint32_t number) {
    uint32_t n = f->model->arch.n_layer;
    struct shore__page_id id = shore__page_at(f->model, number);
    uint32_t block = shore__model_main(f->model, id.block);
    if (f->host_update || wait_for_norm(f) || block == 0) return shore__phase_backward(n, 0);
    return block < shore__model_head(f->model) ? shore__phase_backward(n, block) : shore__phase_head(n);
}

void shore__operations_read(const struct shore__facts *f, struct shore_program *program) {
    uint32_t n = f->model->arch.n_layer;
    for (uint32_t id = 0; id < program->ntensors; id++) {
        const struct shore_tensor *t = &program->tensor[id];
        struct reader by = who_reads(f, t);
        if (t->key == SHORE__ROW_GATHERED) shore_program_changes(program, shore__phase_backward(n, 0), id);
        if (t->key == SHORE__ROW_PAGE && !shore__model_rests(f->model, shore__page_at(f->model, t->index).block))
            shore_program_changes(program, changed_at(f, t->index), id);
        for (uint32_t op = 0; op < program->nops; op++) {
            struct operation o = operation_at(n, op);
            if (!(by.what & o.what) || (by.layer && o.layer && by.layer != o.layer)) continue;
            shore_program_reads(program, op, id);
            if (f->one_memory || o.what == BETWEEN || o.what == OUTPUT || t->buffers) continue;
            if (t->key == SHORE__ROW_GRADIENT || t->key == SHORE__ROW_ROW_GRADIENT)
                shore_program_costs(program, op, SHORE_LANE_BUS_OUT, 0, t->bytes);
        }
    }
}

double shore__operations_forward_seconds(const struct shore__facts *f, const struct shore_program *program) {
    double seconds = 0;
    for (uint32_t i = 0; i < program->ncomputes; i++)
        if (program->computes[i].operation < shore__phase_head(f->model->arch.n_layer))
            seconds += shore__computing_seconds(&program->computes[i].what, f->machine);
    return seconds;
}

double shore__operations_of_model(const struct shore_program *program) {
    double sum = 0;
    for (uint32_t i = 0; i < program->ncomputes; i++) {
        const struct shore_computing *c = &program->computes[i].what;
        /* one of the five products of attention's backward are scores that are computed again */
        if (c->kind <= SHORE_WORK_ATTENTION_BACKWARD)
            sum += (double)c->work * (c->kind == SHORE_WORK_ATTENTION_BACKWARD ? 0.8 : 1);
    }
    return sum;
}
