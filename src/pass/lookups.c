#include "pass/lookups.h"

#include <stdlib.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/counters.h"
#include "pass/costs.h"
#include "pass/operations.h"
#include "pass/pages.h"
#include "pass/row_tensor.h"

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

static uint64_t row_bytes(const struct shore__model *m, enum shore__mode mode) {
    return (uint64_t)m->arch.d_model * (mode == SHORE__F32 ? 4 : 2);
}

/* Adds what a batch's lookups need, and those of a validation between two steps. */
static void add_until_looked_up(const struct shore__facts *f, const struct shore_tensor *t,
                                struct shore_program *program) {
    uint32_t id = shore_program_tensor(program, t);
    shore_program_makes(program, shore__phase_between(f->model->arch.n_layer), id);
    shore_program_frees(program, shore__phase_forward(0), id);
}

void shore__lookups_describe(const struct shore__facts *f, struct shore_program *program) {
    if (!f->gathers) return;
    uint64_t most = shore__rows_most(f), bytes = row_bytes(f->model, f->mode);
    struct shore_tensor rows = shore__row_tensor(SHORE__ROW_GATHERED, 0, SHORE_PLACE_PINNED, most * bytes);
    rows.ways = SHORE_WAY_MOVE;
    rows.group = SHORE__GROUP_ROWS;
    rows.moved_bytes = shore__rows_expected(f) * bytes;
    shore_program_tensor(program, &rows);
    struct shore_tensor buffer = shore__row_tensor(SHORE__ROW_GATHERED_BUFFER, 0, SHORE_PLACE_BOTH, 0);
    buffer.buffers = true;
    buffer.group = SHORE__GROUP_ROWS;
    buffer.least = buffer.most = 1;
    add_until_looked_up(f, &buffer, program);
    bool widens = f->mode == SHORE__BF16_IN_F32;
    const struct shore_tensor prepared =
        shore__row_tensor(SHORE__ROW_PREPARED_ROWS, 0, SHORE_PLACE_DEVICE, widens ? 2 * most * bytes : 0);
    add_until_looked_up(f, &prepared, program);
    shore__row_add(program, SHORE__ROW_LOOKUP, 0, SHORE_PLACE_BOTH, f->batch.rows * sizeof(int32_t));
    /* row; and lists of gradients: the trainer's, those of two steps, and one that is sent */
    const struct shore_tensor lists = shore__row_own(
        SHORE__ROW_LOOKUP_LISTS, f->batch.rows * sizeof(uint32_t) + 4 * most * sizeof(struct shore_gather));
    shore_program_tensor(program, &lists);
    uint64_t gradient = shore__sends_rows(f) ? most * f->model->arch.d_model * sizeof(float) : 0;
    uint32_t id = shore__row_add(program, SHORE__ROW_ROW_GRADIENT, 0, SHORE_PLACE_BOTH, gradient);
    shore_program_makes(program, shore__phase_forward(0), id); /* as long as updates may read it */
    shore_program_frees(program, shore__phase_backward(f->model->arch.n_layer, 0), id);
}

/* ---- the rows of a batch ----------------------------------------------------------------------------------------- */

int shore__lookups_open(struct shore__lookups *l, const struct shore__facts *f, const struct shore__memory *memory,
                        struct shore_diag *diag) {
    l->table = shore__memory_both(memory, SHORE__ROW_GATHERED_BUFFER, 0);
    l->prepared = shore__memory_at(memory, SHORE__ROW_PREPARED_ROWS, 0);
    l->index = shore__memory_both(memory, SHORE__ROW_LOOKUP, 0);
    l->row = malloc(f->batch.rows * sizeof *l->row);
    return l->row ? 0 : shore__out_of_memory(diag);
}

void shore__lookups_close(struct shore__lookups *l) {
    free(l->row);
    l->row = NULL;
}

/* Fills row and count with the tokens, and the index. */
static void find_rows(struct shore__lookups *l, const int32_t *tokens, size_t count) {
    int32_t *index = l->index.host;
    uint32_t n = 0;
    for (size_t i = 0; i < count; i++)
        if ((uint32_t)tokens[i] < l->m->arch.vocab) l->row[n++] = (uint32_t)tokens[i];
    l->count = shore__sort_once(l->row, n);
    for (size_t i = 0; i < count; i++) {
        const uint32_t *found = shore__find_sorted(l->row, l->count, (uint32_t)tokens[i]);
        index[i] = found ? (int32_t)(found - l->row) : -1;
    }
}

int shore__lookups_want(struct shore__lookups *l, const int32_t *tokens, size_t count, struct shore_diag *diag) {
    struct shore_rows rows = {
        .size = sizeof rows,
        .kind = l->c->mode == SHORE__F32 ? SHORE_FETCH_MASTER : SHORE_FETCH_BF16,
        .columns = l->m->arch.d_model,
        .row = l->row,
        .dst = l->table.host,
    };
    int rc = shore_device_wait(&l->c->device, l->put, diag);
    if (!rc) find_rows(l, tokens, count);
    rows.count = l->count;
    for (uint32_t i = 0, next = 0; !rc && i < l->count; i++) {
        if (l->row[i] < next) continue; /* of the slice before */
        struct shore__page_id id = {SHORE__PAGE_SLICE, 0, l->row[i] / l->m->slice_rows};
        next = (id.slice + 1) * l->m->slice_rows;
        rc = shore__pages_await(l->pages, shore__page_number(l->m, id), &rows.step, diag);
    }
    if (rc) return rc;
    shore_wait_init(&l->coming);
    rc = shore_fleet_gather(l->fleet, &rows, shore_wait_completion(&l->coming));
    return rc ? shore__fail(diag, rc, "rows of the embedding cannot be gathered: %s", shore_error_text(rc)) : 0;
}

static int put_index(struct shore__lookups *l, size_t tokens, struct shore_diag *diag) {
    int rc = shore__put(l->c, l->stream, l->index.device, l->index.host, tokens * sizeof(int32_t));
    l->put = shore__record(l->c, l->stream);
    return shore__op_failed(diag, rc);
}

int shore__lookups_take(struct shore__lookups *l, size_t tokens, shore__buf *out, struct shore_diag *diag) {
    int rc = shore__fleet_wait(l->fleet, SHORE_LANE_DRIVE_READ, &l->coming, diag);
    if (rc) return rc;
    rc = shore__put(l->c, l->stream, l->table.device, l->table.host, l->count * row_bytes(l->m, l->c->mode));
    if (!rc) rc = shore__slice_prepare(l->m, l->c, l->stream, l->count, l->table.device, l->prepared, out);
    return rc ? shore__op_failed(diag, rc) : put_index(l, tokens, diag);
}

int shore__lookups_forget(struct shore__lookups *l, const int32_t *tokens, size_t count, struct shore_diag *diag) {
    int32_t *index = l->index.host;
    int rc = shore_device_wait(&l->c->device, l->put, diag);
    for (size_t i = 0; !rc && i < count; i++)
        if (tokens[i] < 0) index[i] = -1;
    return rc ? rc : put_index(l, count, diag);
}
