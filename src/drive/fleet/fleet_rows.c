/* Rows of a table: of a plane of the state, or of a table in scratch. Rows that are asked for in any order are sorted,
 * and each is asked for once; what came is put in the order of the request. */
#include "drive/fleet/fleet_rows.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/sized.h"
#include "base/units.h"
#include "drive/fleet/join.h"
#include "drive/remote/remote.h"
#include "drive/row_functions.h"
#include "near/row_pages.h"

#define CALL_BYTES ((1u << 20) - 3 * SHORE__IO_ALIGN) /* what surely fits a slot of a server, in and out */

/* ---- what is wanted ---------------------------------------------------------------------------------------------- */

struct wanted {
    const uint32_t *row; /* ascending, each once */
    uint32_t distinct;
    uint64_t *key; /* by row and place in the request; NULL: row[] is the request's own */
    uint32_t *own;
};

static int by_key(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int want(struct wanted *w, const uint32_t *row, uint32_t count) {
    *w = (struct wanted){.row = row, .distinct = count};
    if (shore__rows_valid(row, count, UINT64_MAX)) return 0;
    w->key = malloc(count * sizeof *w->key);
    w->row = w->own = malloc(count * sizeof *w->own);
    if (!w->key || !w->own) return -ENOMEM;
    for (uint32_t i = 0; i < count; i++)
        w->key[i] = (uint64_t)row[i] << 32 | i;
    qsort(w->key, count, sizeof *w->key, by_key);
    w->distinct = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!i || w->key[i] >> 32 != w->key[i - 1] >> 32) w->own[w->distinct++] = (uint32_t)(w->key[i] >> 32);
    return 0;
}

/* Place in the request of item i in sorted order; *j: its number among distinct rows. Begin with *j = UINT32_MAX. */
static uint32_t wanted_at(const struct wanted *w, uint32_t i, uint32_t *j) {
    if (!w->key) return *j = i;
    if (!i || w->key[i] >> 32 != w->key[i - 1] >> 32) ++*j;
    return (uint32_t)w->key[i];
}

static void want_no_more(struct wanted *w) {
    free(w->key);
    free(w->own);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* Lies in the join's tail. */
struct request {
    unsigned char argument[SHORE__ROWS_ARGUMENT_BYTES];
    struct shore__scratch_rows rows;
    struct wanted wanted;
    unsigned char *memory; /* what travels; NULL: the caller's is used */
    unsigned char **place; /* by distinct row: its values in memory */
};

static struct request *request_of(struct shore__join *join) {
    return (struct request *)(void *)join->tail;
}

static void give_back(struct request *q) {
    want_no_more(&q->wanted);
    free(q->place);
    shore__arena_free(NULL, q->memory);
}

/* Puts what came in the order of the request. */
static void ended(struct shore__join *join) {
    struct request *q = request_of(join);
    const struct shore__scratch_rows *r = &q->rows;
    const uint64_t bytes = shore__rows_value_bytes(r->function, r->kind, r->bytes);
    const bool came = !join->rc && q->memory && !shore__rows_are_given(r->function);
    for (uint32_t i = 0, j = UINT32_MAX; came && i < r->count; i++) {
        uint32_t at = wanted_at(&q->wanted, i, &j);
        const unsigned char *from = q->place ? q->place[j] : q->memory + j * bytes;
        memcpy((unsigned char *)r->values + at * bytes, from, bytes);
    }
    give_back(q);
    shore__join_complete(join);
}

static struct shore__join *request_new(struct shore_fleet *f, const struct shore__scratch_rows *rows,
                                       const struct shore__rows_argument *a, struct shore_completion done) {
    struct shore__join *join = shore__join_new(f, SHORE__JOIN_CALL, sizeof(struct request), done);
    if (!join) return NULL;
    struct request *q = request_of(join);
    q->rows = *rows;
    join->ended = ended;
    shore__rows_argument_put(q->argument, a);
    if (want(&q->wanted, rows->row, rows->count)) {
        give_back(q);
        shore__join_free(join);
        return NULL;
    }
    return join;
}

static int give_up(struct shore__join *join) {
    give_back(request_of(join));
    shore__join_free(join);
    return -ENOMEM;
}

/* The most rows of so many bytes, number and values, in one call of a drive. */
static uint32_t rows_most(const struct shore_fleet *f, uint32_t d, uint64_t bytes) {
    return shore__is_remote(f->drives[d]) ? (uint32_t)(CALL_BYTES / bytes) : UINT32_MAX;
}

/* ---- rows of a plane --------------------------------------------------------------------------------------------- */

/* The first element of a row within its block. */
static uint64_t begin_of(const struct shore_rows *r, uint32_t row) {
    return r->offset_elems + row * (uint64_t)r->columns;
}

/* Asks drive d for its part of the rows: those that lie in elements [begin, end) of the block, or reach into them. */
static void gather_from(struct shore__join *join, const struct shore_rows *r, uint32_t d, struct shore__range range,
                        unsigned char **out) {
    struct request *q = request_of(join);
    const uint64_t each = r->kind == SHORE_FETCH_BF16 ? 2 : 4;
    const uint64_t begin = (uint64_t)range.first * SHORE_SEGMENT_ELEMS,
                   end = begin + range.count * (uint64_t)SHORE_SEGMENT_ELEMS;
    uint32_t first = 0, most = rows_most(join->fleet, d, 4 + r->columns * each);
    while (first < q->wanted.distinct && begin_of(r, q->wanted.row[first]) + r->columns <= begin)
        first++;
    while (first < q->wanted.distinct && begin_of(r, q->wanted.row[first]) < end) {
        uint32_t n = 0;
        uint64_t bytes = 0;
        for (; n < most && first + n < q->wanted.distinct; n++) {
            const uint64_t at = begin_of(r, q->wanted.row[first + n]);
            if (at >= end) break;
            uint64_t from = at > begin ? at : begin, to = at + r->columns < end ? at + r->columns : end;
            bytes += (to - from) * each;
        }
        struct shore__call call = {.function = SHORE__GATHER,
                                   .block = r->block,
                                   .segment = range.first,
                                   .count = range.count,
                                   .step = r->step,
                                   .argument = q->argument,
                                   .argument_bytes = sizeof q->argument,
                                   .in = q->wanted.row + first,
                                   .in_bytes = 4 * (uint64_t)n,
                                   .out = *out,
                                   .out_bytes = bytes};
        shore__join_call(join, d, &call);
        *out += bytes;
        first += n;
    }
}

static const char *wrong_with(const struct shore_fleet *f, const struct shore_rows *r, struct shore_diag *diag) {
    if (r->block >= f->layout->nblocks) return "there is no such block";
    if (r->kind != SHORE_FETCH_BF16 && r->kind != SHORE_FETCH_MASTER) return "rows are of kind BF16 or MASTER";
    if (!r->columns || r->columns > SHORE_TABLE_ROW_BYTES_MOST / 2) return "a row has 1 to 131,072 elements";
    uint64_t elems = f->layout->blocks[r->block].elems;
    uint64_t rows = r->offset_elems < elems ? (elems - r->offset_elems) / r->columns : 0;
    for (uint32_t i = 0; i < r->count; i++) {
        if (r->row[i] < rows) continue;
        shore__fail(diag, -EINVAL, "row %u was asked for of a table that has %" PRIu64 " in its block", r->row[i],
                    rows);
        return diag->text;
    }
    return NULL;
}

int shore_fleet_gather(struct shore_fleet *f, const struct shore_rows *given, struct shore_completion done) {
    struct shore_rows known, *r = &known;
    struct shore_diag why, what;
    int rc = shore__sized_in(r, sizeof *r, given, "shore_rows", &why);
    if (rc) return shore__join_refuse(done, rc, &why);
    if (!shore__fleet_is_ready(f)) return -EINVAL;
    const char *wrong = wrong_with(f, r, &what);
    if (wrong) return shore__join_refuse(done, shore__fail(&why, -EINVAL, "shore_fleet_gather: %s", wrong), &why);
    const struct shore__scratch_rows rows = {.function = SHORE__GATHER,
                                             .bytes = 2 * r->columns,
                                             .kind = r->kind,
                                             .row = r->row,
                                             .count = r->count,
                                             .values = r->dst};
    const struct shore__rows_argument a = {.first = 2 * r->offset_elems, .bytes = rows.bytes, .kind = r->kind};
    struct shore__join *join = request_new(f, &rows, &a, done);
    if (!join) return -ENOMEM;
    struct request *q = request_of(join);
    if (q->wanted.key) { /* else what comes is in the order of the request, and the drives' parts follow each other */
        q->memory = shore__arena_alloc(NULL, q->wanted.distinct * (uint64_t)r->columns * 4);
        if (!q->memory) return give_up(join);
    }
    unsigned char *out = q->memory ? q->memory : r->dst;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        struct shore__range range;
        if (shore__fleet_intersect(f, r->block, d, 0, f->layout->blocks[r->block].segments, &range))
            gather_from(join, r, d, range, &out);
    }
    shore__join_share_done(join, 0, NULL);
    return 0;
}

/* ---- rows of scratch --------------------------------------------------------------------------------------------- */

/* What goes to one drive and comes from it: calls behind each other in memory, each with the count of its rows, their
 * numbers there, and their values. */
struct lot {
    unsigned char *at;
    uint32_t rows, most; /* of all; of a call */
    uint32_t placed;
};

static uint64_t call_bytes(uint64_t rows, uint64_t value_bytes) {
    return (8 + rows * (4 + value_bytes) + 7) / 8 * 8;
}

static uint64_t lot_bytes(const struct lot *lot, uint64_t value_bytes) {
    uint32_t rest = lot->rows % lot->most;
    return lot->rows / lot->most * call_bytes(lot->most, value_bytes) + (rest ? call_bytes(rest, value_bytes) : 0);
}

/* Call k of the lot, and the number of its rows; NULL: there is none. */
static unsigned char *call_of(const struct lot *lot, uint64_t k, uint64_t value_bytes, uint32_t *rows) {
    if (k * lot->most >= lot->rows) return NULL;
    *rows = lot->rows - k * lot->most < lot->most ? (uint32_t)(lot->rows - k * lot->most) : lot->most;
    return lot->at + k * call_bytes(lot->most, value_bytes);
}

static uint32_t drive_of(const struct shore_fleet *f, const struct shore__scratch_rows *r, uint32_t row,
                         uint32_t *there) {
    uint64_t local;
    uint32_t d = shore__stripes_find(&f->stripes, row / r->per_stripe, &local);
    *there = (uint32_t)(local * r->per_stripe + row % r->per_stripe);
    return d;
}

/* Divides the rows among drives and calls. */
static int place_rows(struct shore_fleet *f, struct request *q, struct lot *lots, uint64_t value_bytes) {
    uint64_t bytes = 0;
    uint32_t there, rows;
    for (uint32_t j = 0; j < q->wanted.distinct; j++)
        lots[drive_of(f, &q->rows, q->wanted.row[j], &there)].rows++;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        lots[d].most = rows_most(f, d, 4 + value_bytes);
        bytes += lot_bytes(&lots[d], value_bytes);
    }
    q->memory = shore__arena_alloc(NULL, bytes);
    q->place = malloc(q->wanted.distinct * sizeof *q->place);
    if (!q->memory || !q->place) return -ENOMEM;
    lots[0].at = q->memory;
    for (uint32_t d = 1; d < f->ndrives; d++)
        lots[d].at = lots[d - 1].at + lot_bytes(&lots[d - 1], value_bytes);
    for (uint32_t j = 0; j < q->wanted.distinct; j++) {
        struct lot *lot = &lots[drive_of(f, &q->rows, q->wanted.row[j], &there)];
        uint32_t within = lot->placed % lot->most;
        unsigned char *call = call_of(lot, lot->placed++ / lot->most, value_bytes, &rows);
        assert(call);
        shore__put_u64(call, rows);
        shore__put_u32(call + 8 + 4 * (size_t)within, there);
        q->place[j] = call + 8 + 4 * (size_t)rows + within * value_bytes;
    }
    return 0;
}

/* The last of repeated rows is put; their sum, in the order of the request, is added. */
static void fill(struct request *q, uint64_t value_bytes) {
    const struct shore__scratch_rows *r = &q->rows;
    for (uint32_t i = 0, j = UINT32_MAX, before = j; i < r->count; i++, before = j) {
        const unsigned char *from = (const unsigned char *)r->values + wanted_at(&q->wanted, i, &j) * value_bytes;
        if (j == before && r->function == SHORE__SCATTER_ADD)
            shore__rows_add_f32((float *)(void *)q->place[j], (const float *)(const void *)from, value_bytes / 4);
        else
            memcpy(q->place[j], from, value_bytes);
    }
}

static void send_lot(struct shore__join *join, uint32_t d, const struct lot *lot, uint64_t value_bytes) {
    struct shore_fleet *f = join->fleet;
    struct request *q = request_of(join);
    const bool scatters = shore__rows_are_given(q->rows.function);
    unsigned char *at;
    uint32_t rows;
    for (uint64_t k = 0; (at = call_of(lot, k, value_bytes, &rows)); k++) {
        struct shore__call call = {.function = q->rows.function,
                                   .bytes = f->drives[d]->desc->scratch_bytes,
                                   .attempt = scatters ? shore_fleet_attempt(f) : 0,
                                   .argument = q->argument,
                                   .argument_bytes = sizeof q->argument,
                                   .in = scatters ? at : at + 8,
                                   .in_bytes = scatters ? 8 + rows * (4 + value_bytes) : 4 * (uint64_t)rows};
        if (!scatters) {
            call.out = at + 8 + 4 * (size_t)rows;
            call.out_bytes = rows * value_bytes;
        }
        shore__join_call(join, d, &call);
    }
}

int shore__fleet_scratch_rows(struct shore_fleet *f, const struct shore__scratch_rows *r,
                              struct shore_completion done) {
    const struct shore__rows_argument a = {
        .bytes = r->bytes, .per_stripe = r->per_stripe, .kind = r->kind, .stripe = SHORE__SCRATCH_STRIPE_BYTES};
    const uint64_t value_bytes = shore__rows_value_bytes(r->function, r->kind, r->bytes);
    if (!shore__fleet_is_ready(f)) return -EINVAL;
    struct lot *lots = calloc(f->ndrives, sizeof *lots);
    struct shore__join *join = lots ? request_new(f, r, &a, done) : NULL;
    struct request *q = join ? request_of(join) : NULL;
    int rc = !q ? -ENOMEM : r->count ? place_rows(f, q, lots, value_bytes) : 0;
    if (!rc && shore__rows_are_given(r->function)) fill(q, value_bytes);
    for (uint32_t d = 0; !rc && d < f->ndrives; d++)
        send_lot(join, d, &lots[d], value_bytes);
    free(lots);
    if (rc && join) give_up(join);
    if (!rc) shore__join_share_done(join, 0, NULL);
    return rc;
}
