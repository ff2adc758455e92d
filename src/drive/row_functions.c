#include "drive/row_functions.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/diag.h"
#include "base/fields.h"
#include "base/units.h"
#include "drive/reach.h"
#include "near/row_pages.h"
#include "number/bf16.h"

#define PLANE_BYTES (SHORE_SEGMENT_ELEMS * 2u) /* of a segment */
#define WINDOW_PAGES 256u                      /* at most */

_Static_assert(SHORE__ROWS_PAGE == SHORE__IO_ALIGN && PLANE_BYTES % SHORE__ROWS_PAGE == 0, "pages are read alone");

static const struct shore__field argument_fields[] = {
    SHORE__FIELD(struct shore__rows_argument, first, 8),      SHORE__FIELD(struct shore__rows_argument, bytes, 4),
    SHORE__FIELD(struct shore__rows_argument, per_stripe, 4), SHORE__FIELD(struct shore__rows_argument, kind, 4),
    SHORE__FIELD(struct shore__rows_argument, stripe, 4),     SHORE__FIELDS_END,
};

void shore__rows_argument_put(unsigned char out[SHORE__ROWS_ARGUMENT_BYTES], const struct shore__rows_argument *a) {
    shore__fields_put(out, argument_fields, a);
}

uint64_t shore__rows_value_bytes(unsigned function, uint32_t kind, uint64_t bytes) {
    bool wider = (function == SHORE__GATHER && kind == SHORE_FETCH_MASTER) ||
                 (function == SHORE__SCATTER_ADD && kind == SHORE_DTYPE_BF16);
    return wider ? 2 * bytes : bytes;
}

static bool kind_fits(const struct shore__call *c, const struct shore__rows_argument *a) {
    if (c->function == SHORE__GATHER)
        return (a->kind == SHORE_FETCH_BF16 || a->kind == SHORE_FETCH_MASTER) && a->bytes % 2 == 0 && a->first % 2 == 0;
    if (c->function == SHORE__SCATTER_ADD)
        return (a->kind == SHORE_DTYPE_FP32 || a->kind == SHORE_DTYPE_BF16) && a->first % 4 == 0 &&
               a->bytes % (a->kind == SHORE_DTYPE_FP32 ? 4 : 2) == 0;
    return a->kind == 0;
}

static int check(const struct shore__call *c, const struct shore__volume_desc *desc, struct shore_diag *diag) {
    const unsigned char *at = c->argument;
    struct shore__rows_argument a;
    bool good = c->argument_bytes == SHORE__ROWS_ARGUMENT_BYTES &&
                shore__fields_get(at, at + c->argument_bytes, argument_fields, &a) && a.bytes &&
                a.bytes <= SHORE_TABLE_ROW_BYTES_MOST && a.first <= UINT64_C(1) << 62 && a.stripe <= 1u << 30 &&
                a.stripe % SHORE__ROWS_PAGE == 0 && kind_fits(c, &a) &&
                (!a.per_stripe || (c->function != SHORE__GATHER && (uint64_t)a.per_stripe * a.bytes <= a.stripe)) &&
                c->start % SHORE__ROWS_PAGE == 0 && c->bytes % SHORE__ROWS_PAGE == 0;
    const bool scatters = shore__rows_are_given(c->function);
    if (good && !scatters) good = c->in_bytes && c->in_bytes % 4 == 0 && c->in_bytes / 4 <= UINT32_MAX;
    if (good && scatters) good = c->in_bytes > 8 && !c->out_bytes;
    return good ? 0 : shore__fail(diag, -EINVAL, "the argument of a request for rows describes no table");
}

/* The pages of a window in memory. Those of the plane LO lie behind all of HI's. */
struct window {
    struct shore__rows_page page[WINDOW_PAGES];
    uint32_t pages;
    unsigned char *memory;
};

struct work {
    struct shore__reach *reach;
    const struct shore__call *call;
    struct shore__rows_argument a;
    struct shore__rows rows;
    uint32_t most; /* pages of a window */
    bool joins;    /* HI and LO */
    unsigned char *out;
    const unsigned char *values;
    struct window window[2];
};

static void move(struct work *k, bool write, uint64_t number, uint32_t pages, unsigned char *memory,
                 enum shore_plane plane) {
    const struct shore__call *c = k->call;
    struct shore__piece piece = {.bytes = pages * SHORE__ROWS_PAGE, .buffer = memory};
    piece.of = c->function == SHORE__GATHER ? SHORE__PIECE_PLANE : SHORE__PIECE_SCRATCH;
    piece.offset = number * SHORE__ROWS_PAGE;
    if (piece.of == SHORE__PIECE_PLANE) {
        piece.plane = plane;
        piece.block = c->block;
        piece.segment = (uint32_t)(piece.offset / PLANE_BYTES);
        piece.offset %= PLANE_BYTES;
    }
    k->reach->move(k->reach, write, &piece);
}

/* Whether a page has to be read: not if all of it is put. */
static bool is_read(const struct work *k, const struct shore__rows_page *page) {
    return k->call->function != SHORE__SCATTER || page->wanted < SHORE__ROWS_PAGE;
}

/* Moves the pages of a window; those that follow each other at once. */
static void move_pages(struct work *k, const struct window *w, bool write) {
    const uint32_t segment_pages = PLANE_BYTES / SHORE__ROWS_PAGE;
    for (uint32_t at = 0, n; at < w->pages; at += n) {
        const struct shore__rows_page *page = &w->page[at];
        uint32_t run = shore__rows_run(page, w->pages - at);
        if (k->call->function == SHORE__GATHER && run > segment_pages - page->number % segment_pages)
            run = (uint32_t)(segment_pages - page->number % segment_pages);
        for (n = 1; n < run && is_read(k, &page[n]) == is_read(k, page); n++) {
        }
        unsigned char *memory = w->memory + (size_t)at * SHORE__ROWS_PAGE;
        if (!write && !is_read(k, page)) continue;
        move(k, write, page->number, n, memory, SHORE_PLANE_HI);
        if (k->joins) move(k, write, page->number, n, memory + (size_t)k->most * SHORE__ROWS_PAGE, SHORE_PLANE_LO);
    }
}

static void gather_part(const struct work *k, const unsigned char *from, const struct shore__rows_part *p) {
    const uint16_t *hi = (const uint16_t *)(const void *)from;
    if (k->joins)
        shore__f32_join((float *)(void *)(k->out + 2 * p->offset), hi, hi + (size_t)k->most * SHORE__ROWS_PAGE / 2,
                        p->bytes / 2);
    else
        memcpy(k->out + p->offset, from, p->bytes);
}

static void scatter_part(const struct work *k, unsigned char *there, const struct shore__rows_part *p) {
    const void *values = k->values + shore__rows_value_bytes(k->call->function, k->a.kind, p->offset);
    if (k->call->function == SHORE__SCATTER)
        memcpy(there, values, p->bytes);
    else if (k->a.kind == SHORE_DTYPE_FP32)
        shore__rows_add_f32((float *)(void *)there, values, p->bytes / 4);
    else
        shore__rows_add_bf16((uint16_t *)(void *)there, values, p->bytes / 2);
}

/* While the rows of a window are worked on, the pages of the next are read, and those of the one before written. */
static int go_through(struct work *k, bool writes, struct shore_diag *diag) {
    struct window *now = &k->window[0], *next = &k->window[1];
    struct shore__rows_cursor ahead = {0}, cursor = {0};
    struct shore__rows_part part;
    now->pages = shore__rows_collect(&k->rows, &ahead, now->page, k->most);
    move_pages(k, now, false);
    int rc = k->reach->wait(k->reach, diag);
    while (!rc && now->pages) {
        next->pages = shore__rows_collect(&k->rows, &ahead, next->page, k->most);
        move_pages(k, next, false);
        while (shore__rows_part(&k->rows, &cursor, now->page, now->pages, &part))
            if (writes)
                scatter_part(k, now->memory + part.at, &part);
            else
                gather_part(k, now->memory + part.at, &part);
        if (writes) move_pages(k, now, true);
        rc = k->reach->wait(k->reach, diag);
        struct window *swap = now;
        now = next;
        next = swap;
    }
    return rc;
}

static int run(struct shore__reach *reach, const struct shore__call *c, struct shore_diag *diag) {
    struct work k = {.reach = reach, .call = c};
    const unsigned char *at = c->argument, *in = c->in;
    const bool scatters = shore__rows_are_given(c->function);
    shore__fields_get(at, at + SHORE__ROWS_ARGUMENT_BYTES, argument_fields, &k.a);
    uint64_t count = scatters ? shore__get_u64(in) : c->in_bytes / 4, head = scatters ? 8 : 0;
    bool good = count <= (c->in_bytes - head) / 4 && count <= UINT32_MAX;
    k.rows = (struct shore__rows){.first = k.a.first,
                                  .bytes = k.a.bytes,
                                  .per_stripe = k.a.per_stripe,
                                  .stripe = k.a.stripe,
                                  .from = c->start,
                                  .to = c->start + c->bytes,
                                  .row = (const uint32_t *)(const void *)(in + head),
                                  .count = (uint32_t)count};
    if (c->function == SHORE__GATHER) {
        k.rows.from = (uint64_t)c->segment * PLANE_BYTES;
        k.rows.to = k.rows.from + (uint64_t)c->count * PLANE_BYTES;
    }
    if (good) good = shore__rows_valid(k.rows.row, k.rows.count, UINT64_MAX);
    if (!good) return shore__fail(diag, -EINVAL, "the rows of a request are not ascending");
    uint64_t values = shore__rows_value_bytes(c->function, k.a.kind, shore__rows_bytes(&k.rows));
    if (values != (scatters ? c->in_bytes - head - 4 * count : c->out_bytes))
        return shore__fail(diag, -EINVAL, "the rows of a request are other bytes than it takes and gives");
    k.joins = c->function == SHORE__GATHER && k.a.kind == SHORE_FETCH_MASTER;
    k.most = (uint32_t)(reach->memory_bytes / 2 / SHORE__ROWS_PAGE / (k.joins ? 2 : 1));
    if (k.most > WINDOW_PAGES) k.most = WINDOW_PAGES;
    k.window[0].memory = reach->memory;
    k.window[1].memory = reach->memory + (size_t)k.most * SHORE__ROWS_PAGE * (k.joins ? 2 : 1);
    k.out = scatters ? NULL : c->out;
    k.values = scatters ? in + head + 4 * count : NULL;
    return go_through(&k, scatters, diag);
}

const struct shore__function shore__gather = {
    .name = "GATHER",
    .over = SHORE__OVER_SEGMENTS,
    .of_step = true,
    .repeats = true,
    .link_in = SHORE__COUNTER(link_control),
    .link_out = SHORE__COUNTER(link_out_params),
    .reads = SHORE__COUNTER(drive_read_fetch),
    .check = check,
    .run = run,
};

const struct shore__function shore__gather_scratch = {
    .name = "GATHER_SCRATCH",
    .over = SHORE__OVER_SCRATCH,
    .repeats = true,
    .link_in = SHORE__COUNTER(link_control),
    .link_out = SHORE__COUNTER(link_activations),
    .reads = SHORE__COUNTER(drive_read_scratch),
    .check = check,
    .run = run,
};

const struct shore__function shore__scatter = {
    .name = "SCATTER",
    .over = SHORE__OVER_SCRATCH,
    .repeats = true,
    .link_in = SHORE__COUNTER(link_activations),
    .reads = SHORE__COUNTER(drive_read_scratch),
    .writes = SHORE__COUNTER(drive_write_scratch),
    .check = check,
    .run = run,
};

const struct shore__function shore__scatter_add = {
    .name = "SCATTER_ADD",
    .over = SHORE__OVER_SCRATCH,
    .of_attempt = true,
    .link_in = SHORE__COUNTER(link_activations),
    .reads = SHORE__COUNTER(drive_read_scratch),
    .writes = SHORE__COUNTER(drive_write_scratch),
    .check = check,
    .run = run,
};
