#include "train/gradients.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "number/bf16.h"
#include "number/gather.h"
#include "pass/costs.h"
#include "train/host_update.h"
#include "train/resting.h"
#include "train/trainer.h"

/* What lands, apart from moments: a whole piece, for scratch. */
#define TO_SCRATCH (ALL_LOOKED_UP - 1)

struct gradients {
    struct piece *pieces; /* by number */
    uint32_t npieces;
    uint32_t *due; /* by segment of block 0: the number of units whose lookups its gradient waits for in this step */
    unsigned char *early;       /* by segment of block 0: complete before the last unit's lookups */
    struct shore__both rows;    /* of the embedding, if its gradient leaves as the rows that were looked up */
    struct shore_gather *items; /* where they lie */
    struct shore__both whole;   /* untied and compressed: the block of either table */
    void *host_update;          /* memory of --update host */
    struct shore_hyper *hyper;  /* groups of each block in turn */
};

/* ---- the pieces -------------------------------------------------------------------------------------------------- */

struct piece *shore__gradients_layer(struct trainer *t, uint32_t layer) {
    return &t->gradients->pieces[layer - 1];
}
struct piece *shore__gradients_tail(struct trainer *t, uint32_t block) {
    uint32_t number = shore__piece_of_tail(t->m, block);
    return number < t->gradients->npieces ? &t->gradients->pieces[number] : NULL;
}
struct piece *shore__gradients_slice(struct trainer *t, uint32_t block, uint32_t slice) {
    return &t->gradients->pieces[shore__piece_of_slice(t->m, block, slice)];
}

static bool held_in_table(const struct trainer *t, const struct piece *p) {
    return t->table_gradient && p->page.kind == SHORE__PAGE_SLICE && p->page.block == 0;
}

/* Whether the piece lies in a whole untied table, which is selected from at once. The two tables take turns. */
static bool held_whole(const struct trainer *t, const struct piece *p) {
    return t->compressing && t->gradients->whole.host && p->page.kind == SHORE__PAGE_SLICE;
}

/* Whether the piece leaves as the rows that were looked up. They stay until the step is over. */
static bool is_rows(const struct trainer *t, const struct piece *p) {
    return t->gradients->items && p->page.kind == SHORE__PAGE_SLICE && p->page.block == 0;
}

static void name_pieces(struct trainer *t) {
    struct gradients *g = t->gradients;
    for (uint32_t i = 0; i < g->npieces; i++) {
        struct shore__piece is = shore__piece_at(t->m, i);
        g->pieces[i] = (struct piece){.unit = i, .page = is.page, .segment = is.segment, .count = is.count};
    }
}

/* The unit of a piece. */
static struct shore_step_unit unit_of(const struct shore__model *m, const struct piece *p) {
    struct shore_step_unit u = {.block = p->page.block, .segment = p->segment, .count = p->count, .nparts = 1};
    if (!p->count) return (struct shore_step_unit){0};
    u.part[0] = (struct shore_step_part){shore__page_number(m, p->page), 0, 0};
    shore__page_range(m, p->page, &u.part[0].segment, &u.part[0].count);
    if (p->page.kind != SHORE__PAGE_SLICE || p->page.slice + 1 < m->nslices) return u;
    const struct shore__page_id tail = {SHORE__PAGE_TAIL, p->page.block, 0};
    struct shore_step_part part = {shore__page_number(m, tail), 0, 0};
    shore__page_range(m, tail, &part.segment, &part.count);
    if (part.count) u.part[u.nparts++] = part;
    return u;
}

static void leave(void *ctx, uint32_t page) {
    struct trainer *t = ctx;
    shore__parameters_release_page(t->pass.parameters, page);
}

/* The rows of a slice. */
static uint32_t rows_of(const struct trainer *t, const struct piece *p, const struct shore_gather **items) {
    const struct shore__gather_list all = {t->gradients->items, t->lookups.count};
    struct shore__slice s = shore__model_slice(t->m, p->page.slice);
    uint64_t d = t->m->arch.d_model;
    uint32_t first = shore__gather_first(&all, s.first * d);
    *items = all.item + first;
    return shore__gather_first(&all, (s.first + (uint64_t)s.rows) * d) - first;
}

/* Encodes a segment of a compressed step, or says which rows are sent. */
static int encode(void *ctx, uint32_t unit, uint32_t segment, struct shore_update *update, struct shore_diag *diag) {
    struct trainer *t = ctx;
    (void)diag;
    if (is_rows(t, &t->gradients->pieces[unit])) {
        update->form = SHORE_GRADIENT_ROWS;
        update->ngather = rows_of(t, &t->gradients->pieces[unit], &update->gather);
        return 0;
    }
    if (!t->compressing) return SHORE_STEP_WHOLE;
    update->form = SHORE_GRADIENT_SPARSE;
    shore__compress_fill(t, t->gradients->pieces[unit].page.block, segment, update);
    return 0;
}

static int landed(void *ctx, uint32_t unit, uint64_t looked_up, struct shore_diag *diag);

static int open_step(struct trainer *t, struct shore_diag *diag) {
    static const enum shore_step_speculate speculate[] = {
        [SHORE__AUTO] = SHORE_SPECULATE_AUTO, [SHORE__ON] = SHORE_SPECULATE_ON, [SHORE__OFF] = SHORE_SPECULATE_OFF};
    struct gradients *g = t->gradients;
    struct shore_step_unit *units =
        calloc(g->npieces + (size_t)shore__resting_units(t->m, NULL), sizeof *units); /* the pieces, then what rests */
    uint32_t pooled = 0;
    if (!units) return shore__fail(diag, -ENOMEM, "out of memory for gradients");
    for (uint32_t i = 0; i < g->npieces; i++) {
        units[i] = unit_of(t->m, &g->pieces[i]);
        pooled += g->pieces[i].count && !held_in_table(t, &g->pieces[i]) && !is_rows(t, &g->pieces[i]);
    }
    const struct shore_step_options options = {
        .size = sizeof options,
        .units = units,
        .nunits = g->npieces + shore__resting_units(t->m, units + g->npieces),
        .clip = t->s->clip,
        .speculate = speculate[t->s->speculate],
        .form = t->s->gradient_bf16 ? SHORE_GRADIENT_BF16 : SHORE_GRADIENT_FP32,
        .host_update = t->s->host_update,
        .computes_again = true,
        .all_fit = t->plan.gradient_buffers >= pooled,
        .nbuffers = t->plan.gradient_buffers,
        .sums = shore__memory_host(&t->memory, SHORE__ROW_PARTIAL_SUMS, 0),
        .leave = leave,
        .encode = encode,
        .ctx = t,
        .device = &t->c->device,
        .landed = landed,
    };
    int rc = shore_step_open(t->fleet, t->pass.pages, &options, &t->step, diag);
    free(units);
    return rc;
}

int shore__gradients_open(struct trainer *t, struct shore_diag *diag) {
    const struct shore__model *m = t->m;
    struct gradients *g = t->gradients = calloc(1, sizeof *g);
    if (!g) return shore__fail(diag, -ENOMEM, "out of memory for gradients");
    g->npieces = shore__pieces_count(m);
    g->pieces = calloc(g->npieces, sizeof *g->pieces);
    g->due = calloc(m->layout->blocks[0].segments, sizeof *g->due);
    g->early = calloc(m->layout->blocks[0].segments, 1);
    g->hyper = calloc((size_t)m->nblocks * m->ngroups, sizeof *g->hyper);
    if (!g->pieces || !g->due || !g->early || !g->hyper)
        return shore__fail(diag, -ENOMEM, "out of memory for gradients");
    g->whole = shore__memory_both(&t->memory, SHORE__ROW_WHOLE_GRADIENT, 0);
    g->host_update = shore__memory_host(&t->memory, SHORE__ROW_HOST_UPDATE, 0);
    g->rows = shore__memory_both(&t->memory, SHORE__ROW_ROW_GRADIENT, 0);
    if (g->rows.host && !(g->items = calloc(shore__rows_most(&t->facts), sizeof *g->items)))
        return shore__out_of_memory(diag);
    name_pieces(t);
    return open_step(t, diag);
}

void shore__gradients_close(struct gradients *g) {
    if (!g) return;
    free(g->pieces);
    free(g->due);
    free(g->early);
    free(g->items);
    free(g->hyper);
    free(g);
}

/* Marks when each segment is complete. Segments behind the table (learned positions) change with every unit. */
static void mark_lookups(struct trainer *t) {
    size_t d = t->m->arch.d_model, rows = shore__pass_rows(&t->pass), unit = shore__pass_unit(&t->pass);
    uint32_t *due = t->gradients->due;
    size_t behind = (size_t)t->m->arch.vocab * d / SHORE_SEGMENT_ELEMS;
    const int32_t *tokens = t->pass.tokens.host;
    memset(due, 0, behind * sizeof *due);
    for (size_t s = behind; s < t->m->layout->blocks[0].segments; s++)
        due[s] = (uint32_t)shore__pass_units(&t->pass);
    for (size_t i = 0; i < rows; i++) {
        if (tokens[i] < 0 || tokens[i] == t->m->arch.padding) continue;
        size_t first = (size_t)tokens[i] * d;
        for (size_t s = first / SHORE_SEGMENT_ELEMS; s <= (first + d - 1) / SHORE_SEGMENT_ELEMS; s++)
            if (s < behind) due[s] = (uint32_t)(i / unit) + 1;
    }
}

static void set_hypers(struct trainer *t) {
    const struct shore__settings *s = t->s;
    const uint32_t n = t->m->ngroups;
    struct shore_hyper *all = t->gradients->hyper;
    for (uint32_t g = 0; g < SHORE__MODEL_GROUPS; g++) {
        struct shore_hyper *h = &all[g];
        *h = (struct shore_hyper){
            .lr = (float)shore__learning_rate(s, t->base_step + 1),
            .beta1 = (float)s->beta1,
            .beta2 = (float)s->beta2,
            .eps = (float)s->eps,
            .momentum = (float)s->momentum,
            .weight_decay = g == 0 ? (float)s->weight_decay : 0,
        };
        shore_hyper_at_step(h, s->optimizer, s->updates_before + t->base_step + 1);
    }
    for (uint32_t b = t->m->nblocks; --b > 0;) {
        memcpy(all + (size_t)b * n, all, SHORE__MODEL_GROUPS * sizeof *all);
        uint32_t layer = shore__model_main(t->m, b);
        if (layer >= 1 && layer <= t->m->arch.n_layer) shore__experts_groups(t, layer, all + (size_t)b * n);
    }
}

int shore__gradients_begin_step(struct trainer *t, struct shore_diag *diag) {
    struct gradients *g = t->gradients;
    memset(g->early, 0, t->m->layout->blocks[0].segments);
    mark_lookups(t);
    int rc = shore__compress_begin_step(t, diag);
    set_hypers(t);
    shore_step_begin(t->step, t->base_step, t->again);
    for (uint32_t i = 0; i < g->npieces; i++) {
        struct piece *p = &g->pieces[i];
        p->gradient = NULL;
        p->in_buffer = false;
        const struct shore_hyper *groups = g->hyper + (size_t)p->page.block * t->m->ngroups;
        int failed = shore_step_groups(t->step, i, groups, t->m->ngroups);
        if (!rc && failed) rc = shore__fail(diag, failed, "out of memory for gradients");
    }
    return rc;
}

static uint64_t bytes_of(const struct piece *p) {
    return (uint64_t)p->count * SHORE_SEGMENT_ELEMS * sizeof(float);
}

/* Frees the memory of a piece before it is complete. */
static void give_back(struct trainer *t, struct piece *p) {
    if (p->in_buffer) shore_step_give_back(t->step, p->unit);
    p->in_buffer = false;
    p->gradient = NULL;
}

/* ---- what is complete -------------------------------------------------------------------------------------------- */

static bool is_new(const struct trainer *t, const struct piece *p, uint32_t segment, uint32_t looked_up) {
    const struct gradients *g = t->gradients;
    return !held_in_table(t, p) || shore__segment_is_new(g->due[segment], g->early[segment], looked_up);
}

/* Next run of segments of the piece, from *segment on, that are complete since this moment; 0: none. */
static uint32_t next_new(const struct trainer *t, const struct piece *p, uint32_t looked_up, uint32_t *segment) {
    uint32_t end = p->segment + p->count, n = 0;
    while (*segment < end && !is_new(t, p, *segment, looked_up))
        ++*segment;
    while (*segment + n < end && is_new(t, p, *segment + n, looked_up))
        n++;
    return n;
}

static int complete(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    enum shore_step_way way;
    return shore_step_complete(t->step, p->unit, 0, &way, diag);
}

/* Ends a piece of a compressed step. The last piece of a block selects from all of it, and hands it over or leaves it
 * in memory. */
static int end_compressed(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    uint32_t block = p->page.block;
    bool slice = p->page.kind == SHORE__PAGE_SLICE;
    int rc = shore__compress_add(t, p, diag);
    if (rc || (slice && p->page.slice + 1 < t->m->nslices)) return rc;
    shore__compress_block(t, block, p->gradient - (size_t)p->segment * SHORE_SEGMENT_ELEMS);
    give_back(t, p);
    rc = shore_step_failed(t->step, diag);
    if (rc || !slice) return rc ? rc : complete(t, p, diag);
    for (uint32_t i = 0; !rc && i < t->m->nslices; i++)
        rc = complete(t, shore__gradients_slice(t, block, i), diag);
    return rc;
}

/* ---- rows of the embedding --------------------------------------------------------------------------------------- */

static void list_rows(struct trainer *t, enum shore_dtype dtype) {
    size_t d = t->m->arch.d_model, bytes = d * (dtype == SHORE_DTYPE_FP32 ? 4 : 2);
    for (uint32_t i = 0; i < t->lookups.count; i++)
        t->gradients->items[i] = (struct shore_gather){(char *)t->gradients->rows.host + i * bytes,
                                                       t->lookups.row[i] * (uint64_t)d, d, dtype};
}

/* Rounds all rows in place, from their start. */
static void narrow_rows(struct trainer *t) {
    uint16_t stretch[4096], *to = t->gradients->rows.host;
    const float *from = t->gradients->rows.host;
    size_t elems = (size_t)t->lookups.count * t->m->arch.d_model;
    for (size_t i = 0, n; i < elems; i += n) {
        n = elems - i < sizeof stretch / sizeof *stretch ? elems - i : sizeof stretch / sizeof *stretch;
        shore__bf16_from_f32(stretch, from + i, n);
        memcpy(to + i, stretch, n * sizeof *stretch);
    }
    list_rows(t, SHORE_DTYPE_BF16);
}

/* Adds the rows of a slice. The last one hands over all. */
static int end_rows(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    struct shore_step_gradient g = {.size = sizeof g, .stays = true};
    if (p->page.slice == 0) list_rows(t, SHORE_DTYPE_FP32);
    g.ngather = rows_of(t, p, &g.gather);
    int rc = shore_step_add(t->step, p->unit, &g, diag);
    if (rc || p->page.slice + 1 < t->m->nslices) return rc;
    if (t->s->gradient_bf16) narrow_rows(t);
    for (uint32_t i = 0; !rc && i < t->m->nslices; i++)
        rc = complete(t, shore__gradients_slice(t, 0, i), diag);
    return rc;
}

int shore__gradients_rows(struct trainer *t, struct shore_diag *diag) {
    struct gradients *g = t->gradients;
    size_t rows = shore__pass_rows(&t->pass), d = t->m->arch.d_model, bytes = t->lookups.count * d * sizeof(float);
    int rc = t->c->ops->zero(t->c, t->pass.stream, g->rows.device, bytes);
    if (!rc)
        rc = t->c->ops->embed_backward(t->c, t->pass.stream, g->rows.device, t->dx, t->lookups.index.device, rows, d, 0,
                                       t->lookups.count);
    if (!rc) rc = shore__get(t->c, t->pass.stream, g->rows.host, g->rows.device, bytes);
    rc = shore__op_failed(diag, rc);
    const struct shore_step_landing l = {.size = sizeof l, .until = shore__record(t->c, t->pass.stream)};
    for (uint32_t i = 0; !rc && i < t->m->nslices; i++)
        rc = shore_step_land(t->step, shore__gradients_slice(t, 0, i)->unit, &l, diag);
    return rc;
}

/* ---- from the device --------------------------------------------------------------------------------------------- */

static int landed(void *ctx, uint32_t unit, uint64_t looked_up, struct shore_diag *diag) {
    struct trainer *t = ctx;
    struct piece *p = &t->gradients->pieces[unit];
    int rc;
    assert(p->gradient || is_rows(t, p));
    if (is_rows(t, p)) {
        rc = end_rows(t, p, diag);
    } else if (looked_up == TO_SCRATCH) {
        rc = shore__train_scratch_move(t, p->page.slice, true, p->gradient, bytes_of(p), diag);
        if (!rc) give_back(t, p);
    } else if (t->compressing) {
        rc = end_compressed(t, p, diag);
    } else {
        return 0;
    }
    return rc ? rc : SHORE_STEP_TAKEN;
}

/* Lands the runs of segments that are complete since this moment; the last one ends a piece that is complete. */
static int land(struct trainer *t, struct piece *p, uint32_t looked_up, struct shore_diag *diag) {
    struct shore_step_landing l = {.size = sizeof l, .until = shore__record(t->c, t->pass.stream), .tag = looked_up};
    struct shore_step_gradient g = {.size = sizeof g, .stays = held_in_table(t, p)};
    bool ends = looked_up == ALL_LOOKED_UP;
    if (looked_up == TO_SCRATCH || t->compressing) return shore_step_land(t->step, p->unit, &l, diag);
    int rc = 0;
    uint32_t s = p->segment, n = next_new(t, p, looked_up, &s);
    while (!rc && (n || ends)) {
        uint32_t next = s + n, nnext = next_new(t, p, looked_up, &next);
        g.segment = s;
        g.count = n;
        g.gradient = p->gradient + (size_t)(s - p->segment) * SHORE_SEGMENT_ELEMS;
        if (t->s->gradient_bf16)
            g.narrow = g.stays ? t->table_narrow + (size_t)s * SHORE_SEGMENT_ELEMS : (uint16_t *)(void *)g.gradient;
        l.gradient = n ? &g : NULL;
        l.ends = ends && !nnext;
        rc = shore_step_land(t->step, p->unit, &l, diag);
        ends &= !l.ends;
        s = next;
        n = nnext;
    }
    return rc;
}

static int bring(struct trainer *t, struct piece *p, uint32_t looked_up, struct shore_diag *diag) {
    int rc = 0;
    for (uint32_t s = p->segment, n; !rc && (n = next_new(t, p, looked_up, &s)); s += n) {
        size_t at = (size_t)(s - p->segment) * SHORE_SEGMENT_ELEMS;
        rc = shore__get(t->c, t->pass.stream, p->gradient + at, shore__at(p->there, at * sizeof(float)),
                        (size_t)n * SHORE_SEGMENT_ELEMS * sizeof(float));
    }
    return rc ? shore__op_failed(diag, rc) : land(t, p, looked_up, diag);
}

static int take_buffer(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    uint32_t buffer;
    int rc = shore_step_take(t->step, p->unit, &buffer, diag);
    if (rc) return rc;
    struct shore__both held = shore__memory_both(&t->memory, SHORE__ROW_GRADIENT, buffer);
    p->in_buffer = true;
    p->gradient = held.host;
    p->there = held.device;
    return 0;
}

int shore__gradients_begin(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    size_t at = (size_t)p->segment * SHORE_SEGMENT_ELEMS;
    /* select from a block before its memory is reused for the next one */
    int rc = t->compressing && p->segment == 0 ? shore_step_land_all(t->step, diag) : 0;
    if (!rc && p->segment == 0) rc = shore__compress_want(t, p->page.block, diag);
    if (rc) return rc;
    struct shore__both held = t->gradients->whole;
    if (held_in_table(t, p))
        held = (struct shore__both){t->table_gradient, t->table_there};
    else if (!held_whole(t, p))
        return take_buffer(t, p, diag);
    p->gradient = (float *)held.host + at;
    p->there = shore__at(held.device, at * sizeof(float));
    return 0;
}

int shore__gradients_early(struct trainer *t, struct piece *p, uint32_t looked_up, struct shore_diag *diag) {
    struct gradients *g = t->gradients;
    if (!shore_step_speculates(t->step) || t->compressing) return 0;
    for (uint32_t s = p->segment; s < p->segment + p->count; s++)
        g->early[s] |= g->due[s] == looked_up;
    return bring(t, p, looked_up, diag);
}

int shore__gradients_end(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    assert(p->gradient);
    return bring(t, p, ALL_LOOKED_UP, diag);
}

int shore__gradients_to_scratch(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    return bring(t, p, TO_SCRATCH, diag);
}

int shore__gradients_from_scratch(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    uint64_t bytes = bytes_of(p);
    int rc = shore__train_scratch_move(t, p->page.slice, false, p->gradient, bytes, diag);
    return rc ? rc : shore__op_failed(diag, shore__put(t->c, t->pass.stream, p->there, p->gradient, bytes));
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static void *params_at(void *ctx, uint32_t block, uint32_t segment) {
    return shore__pages_params(ctx, block, segment);
}

static int host_update(struct trainer *t, float coefficient, struct shore_diag *diag) {
    const struct shore__host_update how = {
        .base_step = t->base_step,
        .attempt = shore_fleet_attempt(t->fleet),
        .form = t->s->gradient_bf16 ? SHORE_GRADIENT_BF16 : SHORE_GRADIENT_FP32,
        .coefficient = coefficient,
        .groups = t->gradients->hyper,
        .ngroups = t->m->ngroups,
        .stride = t->m->ngroups,
        .params_at = params_at,
        .ctx = t->pass.pages,
        .buffers = t->plan.host_buffers,
        .chunk_segments = t->plan.host_segments,
        .memory = t->gradients->host_update,
    };
    shore__parameters_release(t->pass.parameters);
    shore__pages_hold(t->pass.pages, SHORE__NO_STEP);
    int rc = shore__host_update_run(t->fleet, &how, diag);
    if (!rc) rc = shore__resting_carry(t, diag);
    if (!rc) shore__pages_hold(t->pass.pages, t->base_step + 1);
    return rc;
}

int shore__gradients_finish(struct trainer *t, bool *finite, bool *replay, struct shore_diag *diag) {
    struct shore_clipping clipping = shore_step_decide(t->step);
    t->norm = clipping.norm;
    *finite = clipping.finite;
    int rc = shore_step_make(t->step, diag);
    *replay = rc == SHORE_STEP_AGAIN;
    if (*replay || !*finite) return 0;
    shore__resting_tails(t);
    if (!rc) rc = shore_step_failed(t->step, diag);
    return rc || !t->s->host_update ? rc : host_update(t, clipping.coefficient, diag);
}
