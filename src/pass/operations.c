#include "pass/operations.h"

#include "pass/pages.h"
#include "pass/row_keys.h"
#include "plan/plan.h"

/* Work for a parameter: operations for each row of the batch, and bytes of all drives. Attention and the head come on
 * top of it, and are not counted. */
static const struct work { uint64_t operations, read, written; } in_forward = {2, 2, 0}, in_backward = {6, 14, 12};

bool shore__operations_outlast_drives(const struct shore__facts *f) {
    return shore__rules_outlasts(f->batch.rows * (in_forward.operations + in_backward.operations),
                                 in_forward.read + in_backward.read + in_backward.written, f->operations_per_second,
                                 f->drive_bytes_per_second);
}

/* Divides work among the drives: equally, until somebody knows their speeds. */
static void add_to_drives(const struct shore__facts *f, struct shore_program *program, uint32_t op,
                          enum shore_lane lane, uint64_t work) {
    for (uint32_t n = f->drives.ndrives, d = 0; work && d < n; d++)
        shore_program_costs(program, op, lane, d, work / n + (d < work % n));
}

/* ---- operations ---- */

/* What an operation is, as bits. */
enum { EMBED = 1, FORWARD = 2, OUTPUT = 4, LOSS = 8, HEAD_BACKWARD = 16, BACKWARD = 32, LOOKUPS = 64, BETWEEN = 128 };

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

void shore__operations_describe(const struct shore__facts *f, struct shore_program *program) {
    uint32_t n = f->model->arch.n_layer;
    for (uint32_t i = 0; i <= shore__phase_between(n); i++) {
        struct operation o = operation_at(n, i);
        uint32_t op = shore_program_operation(program, o.name);
        if (!o.layer || o.what == OUTPUT) continue;
        uint64_t elems = f->model->layout->blocks[o.layer].elems;
        const struct work *w = o.what == FORWARD ? &in_forward : &in_backward;
        shore_program_costs(program, op, SHORE_LANE_COMPUTE, 0, f->batch.rows * elems * w->operations);
        add_to_drives(f, program, op, SHORE_LANE_DRIVE_READ, elems * w->read);
        add_to_drives(f, program, op, SHORE_LANE_DRIVE_WRITE, elems * w->written);
        if (o.what == FORWARD) continue;
        if (f->host_update)
            shore_program_costs(program, op, SHORE_LANE_HOST_UPDATE, 0, elems);
        else
            add_to_drives(f, program, op, SHORE_LANE_DRIVE_UPDATE, elems);
    }
}

/* ---- what they read ---- */

#define LAYERS (FORWARD | OUTPUT | BACKWARD)
#define HEAD (LOSS | HEAD_BACKWARD)
#define GRADIENTS (HEAD_BACKWARD | BACKWARD | LOOKUPS)

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
    if (id.kind == SHORE__PAGE_LAYER) return (struct reader){LAYERS | samples, id.block};
    unsigned what = id.block == 0 ? EMBED : 0;
    bool table = id.kind == SHORE__PAGE_SLICE && id.block == shore__model_table_block(f->model);
    if (table || id.block == shore__model_head(f->model)) what |= HEAD;
    return (struct reader){what | samples, 0};
}

/* Pieces of gradient: of the layers, of the final norm, of table slices in the order of their pages. */
static struct reader of_piece(const struct shore__facts *f, uint32_t number) {
    uint32_t n = f->model->arch.n_layer;
    if (number < n) return (struct reader){BACKWARD, number + 1};
    if (number == n || shore__page_at(f->model, number + 1).block) return (struct reader){HEAD_BACKWARD, 0};
    return (struct reader){LOOKUPS | (f->model->arch.tied ? HEAD_BACKWARD : 0), 0};
}

static struct reader who_reads(const struct shore__facts *f, const struct shore_tensor *t) {
    uint32_t n = f->model->arch.n_layer;
    switch (t->key) {
    case SHORE__ROW_PAGE:
        return of_page(f, t->index);
    case SHORE__ROW_GRADIENT:
        return t->role == SHORE_ROLE_BUFFERS ? (struct reader){GRADIENTS, 0} : of_piece(f, t->index);
    case SHORE__ROW_BOUNDARY:
        return t->index > n ? (struct reader){HEAD, 0} : (struct reader){FORWARD | BACKWARD, t->index};
    case SHORE__ROW_INNER_KEPT:
        return (struct reader){BACKWARD, t->index};
    default:
        return (struct reader){readers[t->key], 0};
    }
}

void shore__operations_read(const struct shore__facts *f, struct shore_program *program) {
    uint32_t n = f->model->arch.n_layer;
    for (uint32_t id = 0; id < program->ntensors; id++) {
        const struct shore_tensor *t = &program->tensor[id];
        struct reader by = who_reads(f, t);
        for (uint32_t op = 0; op < program->nops; op++) {
            struct operation o = operation_at(n, op);
            if (!(by.what & o.what) || (by.layer && o.layer && by.layer != o.layer)) continue;
            shore_program_reads(program, op, id);
            if (f->one_memory || o.what == BETWEEN || o.what == OUTPUT || t->role == SHORE_ROLE_BUFFERS) continue;
            if (t->key == SHORE__ROW_PAGE) shore_program_costs(program, op, SHORE_LANE_BUS_IN, 0, t->bytes);
            if (t->key == SHORE__ROW_GRADIENT) shore_program_costs(program, op, SHORE_LANE_BUS_OUT, 0, t->bytes);
        }
    }
}
