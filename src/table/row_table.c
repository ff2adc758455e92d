/* A table lies in the scratch of a fleet whose state is one segment that rests. The identity of its volumes says what
 * it is. */
#include "longshore/table.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/fields.h"
#include "base/sized.h"
#include "base/units.h"
#include "drive/counters.h"
#include "drive/fleet/fleet_rows.h"
#include "drive/row_functions.h"

#define MAGIC 0x454C424154524853u /* "SHRTABLE" */
#define KEPT_BYTES 32u

struct kept {
    uint64_t rows;
    uint32_t columns, element_bytes, element;
};

struct shore_table {
    struct shore_fleet *fleet;
    struct kept is;
    bool read_only;
    pthread_mutex_t committing;
};

static const struct shore__field kept_fields[] = {
    SHORE__FIELD_FIXED((uint32_t)MAGIC, 4),
    SHORE__FIELD_FIXED((uint32_t)(MAGIC >> 32), 4),
    SHORE__FIELD(struct kept, rows, 8),
    SHORE__FIELD(struct kept, columns, 4),
    SHORE__FIELD(struct kept, element_bytes, 4),
    SHORE__FIELD(struct kept, element, 4),
    SHORE__FIELD_SPARE(4),
    SHORE__FIELDS_END,
};

static uint64_t row_bytes(const struct kept *k) {
    return (uint64_t)k->columns * k->element_bytes;
}

static uint64_t scratch_bytes(const struct kept *k) {
    uint64_t per = shore__rows_per_stripe((uint32_t)row_bytes(k));
    return (k->rows + per - 1) / per * SHORE__SCRATCH_STRIPE_BYTES;
}

static struct kept asked_for(const struct shore_table_options *o) {
    static const uint32_t bytes[] = {[SHORE_TABLE_BYTES] = 1, [SHORE_TABLE_FP32] = 4, [SHORE_TABLE_BF16] = 2};
    struct kept k = {o->rows, o->columns, o->element_bytes, o->element};
    if (o->element <= SHORE_TABLE_BF16 && (o->element != SHORE_TABLE_BYTES || !k.element_bytes))
        k.element_bytes = bytes[o->element];
    return k;
}

static bool is_table(const struct kept *k) {
    return k->rows && k->rows <= UINT32_MAX && k->element <= SHORE_TABLE_BF16 && row_bytes(k) &&
           row_bytes(k) <= SHORE_TABLE_ROW_BYTES_MOST;
}

/* ---- making and opening ------------------------------------------------------------------------------------------ */

static int layout_of(struct shore_layout **out, struct shore_diag *diag) {
    static const struct shore_tensor_spec tensor = {"nothing", SHORE_TENSOR_ALIGN_ELEMS, SHORE_GROUP_RESTS};
    static const struct shore_block_spec block = {"table", &tensor, 1};
    int rc = shore_layout_make(&block, 1, out);
    return rc ? shore__out_of_memory(diag) : 0;
}

static struct shore_fleet_options fleet_options(const struct shore_table_options *o) {
    return (struct shore_fleet_options){
        .size = sizeof(struct shore_fleet_options),
        .drives = o->drives,
        .ndrives = o->ndrives,
        .optimizer = SHORE_SGD,
        .ring_bytes = 1,
        .drive_speeds = o->drive_speeds,
        .io = o->io,
        .overwrite = o->overwrite,
        .read_only = o->read_only,
        .note = o->note,
        .note_ctx = o->note_ctx,
    };
}

static int fill(struct shore_fleet *f, struct shore_diag *diag) {
    float *zeros = shore__arena_alloc(NULL, SHORE_SEGMENT_ELEMS * sizeof *zeros);
    int rc = zeros ? shore_fleet_init_block(f, 0, 0, 1, zeros, NULL, NULL, diag) : shore__out_of_memory(diag);
    shore__arena_free(NULL, zeros);
    return rc ? rc : shore_fleet_seal(f, 0, diag);
}

/* Makes or opens the fleet of a table that is as asked for. */
typedef int starts(struct shore_table *t, const struct shore_layout *layout, struct shore_fleet_options *fleet,
                   struct shore_diag *diag);

static int table_new(const struct shore_table_options *given, starts *start, struct shore_table **out,
                     struct shore_diag *diag) {
    struct shore_table_options o;
    struct shore_layout *layout = NULL;
    *out = NULL;
    int rc = shore__sized_in(&o, sizeof o, given, "shore_table_options", diag);
    if (rc) return rc;
    struct shore_table *t = calloc(1, sizeof *t);
    if (!t) return shore__out_of_memory(diag);
    struct shore_fleet_options fleet = fleet_options(&o);
    t->read_only = o.read_only;
    t->is = asked_for(&o);
    pthread_mutex_init(&t->committing, NULL);
    rc = layout_of(&layout, diag);
    if (!rc) rc = start(t, layout, &fleet, diag);
    shore_layout_free(layout);
    if (rc)
        shore_table_close(t);
    else
        *out = t;
    return rc;
}

static int create(struct shore_table *t, const struct shore_layout *layout, struct shore_fleet_options *fleet,
                  struct shore_diag *diag) {
    unsigned char identity[KEPT_BYTES];
    if (t->is.element > SHORE_TABLE_BF16)
        return shore__fail(diag, -EINVAL, "rows are of BYTES, FP32 or BF16: there is no element %u", t->is.element);
    if (!is_table(&t->is))
        return shore__fail(diag, -EINVAL,
                           "a table has 1 to %u rows of 1 to %u bytes each, not %" PRIu64 " rows of %" PRIu64,
                           UINT32_MAX, SHORE_TABLE_ROW_BYTES_MOST, t->is.rows, row_bytes(&t->is));
    fleet->scratch_bytes = scratch_bytes(&t->is);
    fleet->identity = identity;
    fleet->identity_bytes = (uint32_t)(shore__fields_put(identity, kept_fields, &t->is) - identity);
    int rc = shore_fleet_create(layout, fleet, &t->fleet, diag);
    return rc ? rc : fill(t->fleet, diag);
}

int shore_table_create(const struct shore_table_options *options, struct shore_table **out, struct shore_diag *diag) {
    return table_new(options, create, out, diag);
}

/* What the volumes say that they hold. */
static int read_kept(struct shore_table *t, struct shore_diag *diag) {
    const struct shore__volume_desc *desc = t->fleet->drives[0]->desc;
    const unsigned char *at = desc->identity;
    struct kept found = {0}, asked = t->is;
    if (desc->identity_bytes != KEPT_BYTES || !shore__fields_get(at, at + KEPT_BYTES, kept_fields, &found) ||
        !is_table(&found))
        return shore__fail(diag, SHORE_EFORMAT, "%s holds no table", shore_fleet_drive_path(t->fleet, 0));
    t->is = found;
    bool other = (asked.rows && asked.rows != found.rows) || (asked.columns && asked.columns != found.columns) ||
                 (asked.columns && (asked.element != found.element || asked.element_bytes != found.element_bytes));
    if (other)
        return shore__fail(diag, SHORE_EMISMATCH,
                           "%s holds a table of %" PRIu64
                           " rows of %u elements of %u bytes, which is not the one asked for",
                           shore_fleet_drive_path(t->fleet, 0), found.rows, found.columns, found.element_bytes);
    struct shore_fleet_info info = shore__fleet_info(t->fleet);
    if (info.scratch_bytes >= scratch_bytes(&found)) return 0;
    return shore__fail(diag, SHORE_EFORMAT, "%s: the table does not fit its volumes: it takes %s, and they have %s",
                       shore_fleet_drive_path(t->fleet, 0), shore__format_size(scratch_bytes(&found)).text,
                       shore__format_size(info.scratch_bytes).text);
}

static int open_kept(struct shore_table *t, const struct shore_layout *layout, struct shore_fleet_options *fleet,
                     struct shore_diag *diag) {
    int rc = shore_fleet_open(layout, fleet, &t->fleet, diag);
    return rc ? rc : read_kept(t, diag);
}

int shore_table_open(const struct shore_table_options *options, struct shore_table **out, struct shore_diag *diag) {
    return table_new(options, open_kept, out, diag);
}

void shore_table_close(struct shore_table *t) {
    if (!t) return;
    shore_fleet_close(t->fleet);
    pthread_mutex_destroy(&t->committing);
    free(t);
}

int shore_table_info(const struct shore_table *t, struct shore_table_info *out) {
    const struct shore_fleet_info fleet = shore__fleet_info(t->fleet);
    const struct shore_table_info info = {.size = sizeof info,
                                          .rows = t->is.rows,
                                          .row_bytes = row_bytes(&t->is),
                                          .columns = t->is.columns,
                                          .element_bytes = t->is.element_bytes,
                                          .element = (enum shore_table_element)t->is.element,
                                          .disk_bytes = fleet.disk_bytes,
                                          .commits = fleet.step};
    return shore__sized_out(out, &info, sizeof info);
}

struct shore_fleet *shore_table_fleet(struct shore_table *t) {
    return t->fleet;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static int request(struct shore_table *t, unsigned function, const uint32_t *row, uint32_t count, const void *values,
                   struct shore_completion done) {
    struct shore_diag why;
    const uint32_t bytes = (uint32_t)row_bytes(&t->is);
    if (shore__rows_are_given(function) && t->read_only) return -EROFS;
    if (function == SHORE__SCATTER_ADD && t->is.element == SHORE_TABLE_BYTES) return -EINVAL;
    for (uint32_t i = 0; i < count; i++) {
        if (row[i] < t->is.rows) continue;
        shore__fail(&why, -EINVAL, "there is no row %u in a table of %" PRIu64 " rows", row[i], t->is.rows);
        done.fn(done.ctx, -EINVAL, &why);
        return 0;
    }
    const struct shore__scratch_rows rows = {
        .function = function,
        .bytes = bytes,
        .per_stripe = shore__rows_per_stripe(bytes),
        .kind = function != SHORE__SCATTER_ADD      ? 0
                : t->is.element == SHORE_TABLE_BF16 ? SHORE_DTYPE_BF16
                                                    : SHORE_DTYPE_FP32,
        .row = row,
        .count = count,
        .values = (void *)(uintptr_t)values,
    };
    return shore__fleet_scratch_rows(t->fleet, &rows, done);
}

int shore_table_gather(struct shore_table *t, const uint32_t *row, uint32_t count, void *values,
                       struct shore_completion done) {
    return request(t, SHORE__GATHER_SCRATCH, row, count, values, done);
}

int shore_table_put(struct shore_table *t, const uint32_t *row, uint32_t count, const void *values,
                    struct shore_completion done) {
    return request(t, SHORE__SCATTER, row, count, values, done);
}

int shore_table_scatter_add(struct shore_table *t, const uint32_t *row, uint32_t count, const float *values,
                            struct shore_completion done) {
    return request(t, SHORE__SCATTER_ADD, row, count, values, done);
}

int shore_table_commit(struct shore_table *t, struct shore_diag *diag) {
    struct shore_wait wait;
    if (t->read_only) return shore__fail(diag, -EROFS, "the table was opened to be read only");
    pthread_mutex_lock(&t->committing);
    shore_wait_init(&wait);
    const uint64_t step = shore__fleet_info(t->fleet).step;
    int rc = shore_fleet_commit(t->fleet, step, true, NULL, 0, shore_wait_completion(&wait));
    rc = rc ? shore__fail(diag, rc, "the commit of a table was refused: %s", shore_error_text(rc))
            : shore_wait(&wait, diag);
    pthread_mutex_unlock(&t->committing);
    return rc;
}
