#include "train/gradients.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "number/bf16.h"
#include "train/gradient_way.h"
#include "train/host_update.h"
#include "train/trainer.h"

struct gradients {
    struct gradient_pool *pool;
    struct piece *pieces; /* layers, the tied head's tail, then slices */
    uint32_t npieces, first_slice;
    uint32_t *due;            /* by segment of block 0: units of this step whose lookups its gradient waits for */
    unsigned char *early;     /* the same: was handed over before the last unit's lookups */
    bool all_fit;             /* every piece has memory of its own */
    struct shore__both whole; /* untied and compressed: either table's block */
    double *partial;          /* of clip: sum of squares of each segment of the model */
    void *host_update;        /* memory of --update host */
    struct shore_hyper hyper[SHORE__MODEL_GROUPS];
};

/* ---- the pieces ----------------------------------------------------------------------------------------------------
 */

struct piece *shore__gradients_layer(struct trainer *t, uint32_t layer) {
    return &t->gradients->pieces[layer - 1];
}
struct piece *shore__gradients_tail(struct trainer *t) {
    return &t->gradients->pieces[t->m->arch.n_layer];
}
struct piece *shore__gradients_slice(struct trainer *t, uint32_t block, uint32_t slice) {
    return &t->gradients->pieces[t->gradients->first_slice + (block ? t->m->nslices : 0) + slice];
}

static bool held_in_table(const struct trainer *t, const struct piece *p) {
    return t->table_gradient && p->page.kind == SHORE__PAGE_SLICE && p->page.block == 0;
}

/* An untied table is selected from as a whole, one after the other. */
static bool held_whole(const struct trainer *t, const struct piece *p) {
    return t->compressing && t->gradients->whole.host && p->page.kind == SHORE__PAGE_SLICE;
}

static void name_pieces(struct trainer *t) {
    const struct shore__model *m = t->m;
    struct gradients *g = t->gradients;
    for (uint32_t l = 1; l <= m->arch.n_layer; l++)
        shore__gradients_layer(t, l)->page = (struct shore__page_id){SHORE__PAGE_LAYER, l, 0};
    shore__gradients_tail(t)->page = (struct shore__page_id){SHORE__PAGE_TAIL, shore__model_head(m), 0};
    for (uint32_t block = 0; block == 0 || (block == shore__model_head(m) && !m->arch.tied);
         block += shore__model_head(m))
        for (uint32_t i = 0; i < m->nslices; i++)
            shore__gradients_slice(t, block, i)->page = (struct shore__page_id){SHORE__PAGE_SLICE, block, i};
    for (uint32_t i = 0; i < g->npieces; i++) {
        struct piece *p = &g->pieces[i];
        p->pool = g->pool;
        shore__page_range(m, p->page, &p->segment, &p->count);
        if (p->page.kind == SHORE__PAGE_SLICE && p->page.slice + 1 == m->nslices)
            p->count = m->layout->blocks[p->page.block].segments - p->segment;
    }
}

int shore__gradients_open(struct trainer *t, struct shore_diag *diag) {
    const struct shore__model *m = t->m;
    struct gradients *g = t->gradients = calloc(1, sizeof *g);
    uint32_t buffers = (uint32_t)t->plan.gradient_buffers, pooled = 0;
    if (!g) return shore__fail(diag, -ENOMEM, "out of memory for gradients");
    /* an untied model's tail piece stays unused: its tail comes with the last slice */
    g->first_slice = m->arch.n_layer + 1;
    g->npieces = g->first_slice + m->nslices * (m->arch.tied ? 1 : 2);
    g->pieces = calloc(g->npieces, sizeof *g->pieces);
    g->due = calloc(m->layout->blocks[0].segments, sizeof *g->due);
    g->early = calloc(m->layout->blocks[0].segments, 1);
    if (!g->pieces || !g->due || !g->early) return shore__fail(diag, -ENOMEM, "out of memory for gradients");
    g->whole = shore__memory_both(&t->memory, SHORE__ROW_WHOLE_GRADIENT, 0);
    g->partial = shore__memory_host(&t->memory, SHORE__ROW_PARTIAL_SUMS, 0);
    g->host_update = shore__memory_host(&t->memory, SHORE__ROW_HOST_UPDATE, 0);
    int rc = shore__gradient_pool_open(buffers, &t->memory, &g->pool, diag);
    if (rc) return rc;
    name_pieces(t);
    for (uint32_t i = 0; i < g->npieces; i++)
        pooled += !held_in_table(t, &g->pieces[i]);
    g->all_fit = buffers >= pooled;
    return 0;
}

void shore__gradients_close(struct gradients *g) {
    if (!g) return;
    shore__gradient_pool_close(g->pool);
    free(g->pieces);
    free(g->due);
    free(g->early);
    free(g);
}

uint32_t shore__gradients_due(const struct trainer *t, uint32_t segment) {
    return t->gradients->due[segment];
}

const struct shore_hyper *shore__gradients_hypers(const struct trainer *t) {
    return t->gradients->hyper;
}

/* Everything behind the table (learned positions) changes with every unit. */
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
    for (uint32_t g = 0; g < SHORE__MODEL_GROUPS; g++) {
        struct shore_hyper *h = &t->gradients->hyper[g];
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
}

int shore__gradients_begin_step(struct trainer *t, struct shore_diag *diag) {
    struct gradients *g = t->gradients;
    for (uint32_t i = 0; i < g->npieces; i++) {
        struct piece *p = &g->pieces[i];
        p->gradient = NULL;
        p->narrow = NULL;
        p->buffer = -1;
        p->ready = p->spilled = false;
    }
    shore__gradient_pool_begin_step(g->pool);
    memset(g->early, 0, t->m->layout->blocks[0].segments);
    shore__speculation_begin(&t->speculation, t->m->layout, t->s->clip, g->partial);
    t->abandoned = false;
    mark_lookups(t);
    int rc = shore__compress_begin_step(t, diag);
    set_hypers(t);
    return rc;
}

int shore__gradients_begin(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    size_t at = (size_t)p->segment * SHORE_SEGMENT_ELEMS;
    assert(!p->ready && !p->gradient);
    int rc = p->segment == 0 ? shore__compress_want(t, p->page.block, diag) : 0;
    if (rc) return rc;
    struct shore__both held = t->gradients->whole;
    if (held_in_table(t, p))
        held = (struct shore__both){t->table_gradient, t->table_there};
    else if (!held_whole(t, p))
        return shore__gradient_pool_take(t->gradients->pool, p, &t->waits.drives_ns, diag);
    p->gradient = (float *)held.host + at;
    p->there = shore__at(held.device, at * sizeof(float));
    return 0;
}

/* ---- to the drives -------------------------------------------------------------------------------------------------
 */

static struct segment_facts facts_of(const struct trainer *t, const struct piece *p, uint32_t segment) {
    const struct gradients *g = t->gradients;
    if (!held_in_table(t, p)) return (struct segment_facts){.by_segment = false};
    return (struct segment_facts){.by_segment = true, .due = g->due[segment], .early = g->early[segment]};
}

/* It is complete since this moment. */
static bool is_new(const struct trainer *t, const struct piece *p, uint32_t segment, uint32_t looked_up) {
    struct segment_facts facts = facts_of(t, p, segment);
    return shore__segment_way(&facts, looked_up) == SEGMENT_TO_DRIVE;
}

/* Read-ahead state is asked for at the segment's own moment alone: to ask is to decide. */
static enum segment_way way_of(struct trainer *t, const struct piece *p, uint32_t segment, uint32_t looked_up) {
    struct segment_facts facts = facts_of(t, p, segment);
    facts.ahead = facts.by_segment && is_new(t, p, segment, looked_up) && shore__ahead_takes(t, segment);
    return shore__segment_way(&facts, looked_up);
}

/* How many segments from `first` on, below `end`, go the way that the first goes, which is *way. */
static uint32_t run_from(struct trainer *t, const struct piece *p, uint32_t first, uint32_t end, uint32_t looked_up,
                         enum segment_way *way) {
    uint32_t n = 1;
    *way = way_of(t, p, first, looked_up);
    while (first + n < end && way_of(t, p, first + n, looked_up) == *way)
        n++;
    return n;
}

/* Where the piece's segment is in the form in which it is sent. */
static void fill_gradient(const struct trainer *t, const struct piece *p, uint32_t segment, struct shore_update *out) {
    size_t skipped = (size_t)(segment - p->segment) * SHORE_SEGMENT_ELEMS;
    out->form = t->compressing        ? SHORE_GRADIENT_SPARSE
                : t->s->gradient_bf16 ? SHORE_GRADIENT_BF16
                                      : SHORE_GRADIENT_FP32;
    if (t->compressing)
        shore__compress_fill(t, p->page.block, segment, out);
    else if (p->narrow)
        out->gradient = p->narrow + skipped;
    else if (p->gradient)
        out->gradient = p->gradient + skipped;
    else
        assert(p->spilled);
}

static int submit_part(struct trainer *t, struct piece *p, struct shore__page_id page, uint32_t segment, uint32_t count,
                       float coefficient, struct shore_diag *diag) {
    struct shore_update update = {
        .size = sizeof update,
        .base_step = t->base_step,
        .attempt = shore_fleet_attempt(t->fleet),
        .segment = segment,
        .count = count,
        .coefficient = coefficient,
        .groups = t->gradients->hyper,
        .ngroups = SHORE__MODEL_GROUPS,
        .order = page.block, /* what the next forward pass needs first */
    };
    fill_gradient(t, p, segment, &update);
    int rc = shore__parameters_update(t->pass.parameters, page, &update, shore__gradient_pool_request(p, false));
    if (!rc) return 0;
    shore__gradient_pool_refused(p, false);
    return shore__fail(diag, rc, "an update cannot be handed to the drives: %s", shore_error_text(rc));
}

/* Of the page, what goes to the drives at this moment. */
static int submit_page(struct trainer *t, struct piece *p, struct shore__page_id page, uint32_t looked_up,
                       float coefficient, struct shore_diag *diag) {
    uint32_t first, count, n;
    enum segment_way way;
    int rc = 0;
    shore__page_range(t->m, page, &first, &count);
    for (uint32_t s = first; !rc && s < first + count; s += n) {
        n = run_from(t, p, s, first + count, looked_up, &way);
        if (way == SEGMENT_TO_DRIVE) rc = submit_part(t, p, page, s, n, coefficient, diag);
    }
    bool more = looked_up != ALL_LOOKED_UP || (page.kind == SHORE__PAGE_SLICE && page.block == 0 &&
                                               shore__ahead_has(t, shore__model_slice(t->m, page.slice)));
    if (count && !more) shore_pages_update_end(t->pass.pages, shore__page_number(t->m, page));
    return rc;
}

static int submit(struct trainer *t, struct piece *p, float coefficient, struct shore_diag *diag) {
    int rc = submit_page(t, p, p->page, ALL_LOOKED_UP, coefficient, diag);
    if (rc || p->page.kind != SHORE__PAGE_SLICE || p->page.slice + 1 < t->m->nslices) return rc;
    return submit_page(t, p, (struct shore__page_id){SHORE__PAGE_TAIL, p->page.block, 0}, ALL_LOOKED_UP, coefficient,
                       diag);
}

static int spill(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    if (!p->count) return 0;
    assert(p->ready && !p->spilled);
    p->spilled = true;
    const void *from = p->narrow ? (const void *)p->narrow : p->gradient;
    int rc = shore_fleet_spill(t->fleet, p->page.block, p->segment, p->count,
                               p->narrow ? SHORE_GRADIENT_BF16 : SHORE_GRADIENT_FP32, from,
                               shore__gradient_pool_request(p, true));
    if (!rc) return 0;
    shore__gradient_pool_refused(p, true);
    return shore__fail(diag, rc, "gradients cannot be spilled: %s", shore_error_text(rc));
}

/* ---- what is complete ----------------------------------------------------------------------------------------------
 */

/* The next run of the piece's segments from *segment on that are complete since this moment; 0: none is left. */
static uint32_t next_new(const struct trainer *t, const struct piece *p, uint32_t looked_up, uint32_t *segment) {
    uint32_t end = p->segment + p->count, n = 0;
    while (*segment < end && !is_new(t, p, *segment, looked_up))
        ++*segment;
    while (*segment + n < end && is_new(t, p, *segment + n, looked_up))
        n++;
    return n;
}

/* From the device. */
static int bring(struct trainer *t, const struct piece *p, uint32_t looked_up, struct shore_diag *diag) {
    int rc = 0;
    for (uint32_t s = p->segment, n; !rc && (n = next_new(t, p, looked_up, &s)); s += n) {
        size_t at = (size_t)(s - p->segment) * SHORE_SEGMENT_ELEMS;
        rc = shore__get(t->c, t->pass.stream, p->gradient + at, shore__at(p->there, at * sizeof(float)),
                        (size_t)n * SHORE_SEGMENT_ELEMS * sizeof(float));
    }
    return rc ? train_op_failed(diag, rc) : shore__sync(t->c, t->pass.stream, diag);
}

static void take_norm(struct trainer *t, const struct piece *p, uint32_t looked_up) {
    for (uint32_t s = p->segment, n; (n = next_new(t, p, looked_up, &s)); s += n)
        shore__speculation_add(&t->speculation, p->page.block, s, n,
                               p->gradient + (size_t)(s - p->segment) * SHORE_SEGMENT_ELEMS);
}

/* What is complete becomes bf16, if that is how gradients are sent. The table has a second place for that, since its
 * segments are complete at different times; any other piece is narrowed where it is, a stretch at a time, from its
 * start. */
static void narrow(const struct trainer *t, struct piece *p, uint32_t looked_up) {
    if (!t->s->gradient_bf16) return;
    if (held_in_table(t, p)) {
        p->narrow = t->table_narrow + (size_t)p->segment * SHORE_SEGMENT_ELEMS;
#pragma omp parallel for schedule(static)
        for (uint32_t i = 0; i < p->count; i++)
            if (is_new(t, p, p->segment + i, looked_up))
                shore__bf16_from_f32(p->narrow + (size_t)i * SHORE_SEGMENT_ELEMS,
                                     p->gradient + (size_t)i * SHORE_SEGMENT_ELEMS, SHORE_SEGMENT_ELEMS);
        return;
    }
    uint16_t stretch[4096];
    p->narrow = (uint16_t *)(void *)p->gradient;
    for (size_t i = 0; i < (size_t)p->count * SHORE_SEGMENT_ELEMS; i += sizeof stretch / sizeof stretch[0]) {
        shore__bf16_from_f32(stretch, p->gradient + i, sizeof stretch / sizeof stretch[0]);
        memcpy(p->narrow + i, stretch, sizeof stretch);
    }
}

int shore__gradients_early(struct trainer *t, struct piece *p, uint32_t looked_up, struct shore_diag *diag) {
    struct gradients *g = t->gradients;
    if (!shore__speculation_goes_on(&t->speculation) || t->compressing) return 0;
    int rc = bring(t, p, looked_up, diag);
    if (rc) return rc;
    take_norm(t, p, looked_up);
    narrow(t, p, looked_up);
    rc = shore__gradient_pool_failed(g->pool, diag);
    for (uint32_t s = p->segment; s < p->segment + p->count; s++)
        g->early[s] |= g->due[s] == looked_up;
    if (rc || !shore__speculation_goes_on(&t->speculation)) return rc;
    return submit_page(t, p, p->page, looked_up, 1, diag);
}

/* The last piece of a block selects from all of it, and hands it over or leaves it in memory. */
static int end_compressed(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    uint32_t block = p->page.block;
    bool slice = p->page.kind == SHORE__PAGE_SLICE;
    int rc = shore__compress_add(t, block, p->segment, p->count, p->gradient, diag);
    p->ready = true;
    if (rc || (slice && p->page.slice + 1 < t->m->nslices)) return rc;
    shore__compress_block(t, block, p->gradient - (size_t)p->segment * SHORE_SEGMENT_ELEMS);
    if (p->buffer >= 0) shore__gradient_pool_release(p);
    rc = shore__gradient_pool_failed(t->gradients->pool, diag);
    if (rc || !shore__speculation_goes_on(&t->speculation)) return rc;
    if (!slice) return submit(t, p, 1, diag);
    for (uint32_t i = 0; !rc && i < t->m->nslices; i++)
        rc = submit(t, shore__gradients_slice(t, block, i), 1, diag);
    return rc;
}

int shore__gradients_end(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    struct gradients *g = t->gradients;
    assert(p->gradient && !p->ready);
    int rc = bring(t, p, ALL_LOOKED_UP, diag);
    if (rc) return rc;
    if (t->compressing) return end_compressed(t, p, diag);
    take_norm(t, p, ALL_LOOKED_UP);
    narrow(t, p, ALL_LOOKED_UP);
    p->ready = true;
    rc = shore__gradient_pool_failed(g->pool, diag);
    if (rc) return rc;
    const struct piece_facts facts = {
        .host_update = t->s->host_update,
        .speculates = t->speculation.on,
        .goes_on = shore__speculation_goes_on(&t->speculation),
        .all_fit = g->all_fit,
        .held = held_in_table(t, p),
        .left = shore__gradient_pool_left(g->pool),
    };
    enum piece_way way = shore__piece_way(&facts);
    t->abandoned |= way == PIECE_IS_GIVEN_UP;
    return way == PIECE_TO_DRIVES ? submit(t, p, 1, diag) : way == PIECE_IS_SPILLED ? spill(t, p, diag) : 0;
}

/* ---- all of them ---------------------------------------------------------------------------------------------------
 */

void shore__gradients_discard(struct trainer *t) {
    shore_fleet_discard(t->fleet);
    shore__ahead_drop(t);
    shore_pages_discarded(t->pass.pages);
    memset(t->gradients->early, 0, t->m->layout->blocks[0].segments);
    shore__gradient_pool_drain(t->gradients->pool, &t->waits.drives_ns);
}

void shore__gradients_forget(struct trainer *t) {
    shore__gradient_pool_drain(t->gradients->pool, &t->waits.drives_ns);
    shore__gradient_pool_forget(t->gradients->pool);
}

static void *place_of(void *ctx, uint32_t block, uint32_t segment) {
    return shore__pages_place(ctx, block, segment);
}

static int host_update(struct trainer *t, float coefficient, struct shore_diag *diag) {
    const struct shore__host_update how = {
        .base_step = t->base_step,
        .attempt = shore_fleet_attempt(t->fleet),
        .form = t->s->gradient_bf16 ? SHORE_GRADIENT_BF16 : SHORE_GRADIENT_FP32,
        .coefficient = coefficient,
        .groups = t->gradients->hyper,
        .ngroups = SHORE__MODEL_GROUPS,
        .params_at = place_of,
        .ctx = t->pass.pages,
        .buffers = (uint32_t)t->plan.host_buffers,
        .chunk_segments = (uint32_t)t->plan.host_segments,
        .memory = t->gradients->host_update,
    };
    shore__parameters_release(t->pass.parameters);
    shore__pages_placed(t->pass.pages, SHORE__NO_STEP);
    int rc = shore__host_update_run(t->fleet, &how, &t->waits.drives_ns, diag);
    if (!rc) shore__pages_placed(t->pass.pages, t->base_step + 1);
    return rc;
}

int shore__gradients_finish(struct trainer *t, bool *finite, bool *replay, struct shore_diag *diag) {
    struct gradients *g = t->gradients;
    struct shore_clipping clipping = shore__speculation_decide(&t->speculation);
    assert(!t->abandoned);
    *finite = clipping.finite;
    *replay = false;
    if (shore__speculation_goes_on(&t->speculation) && *finite && clipping.coefficient == 1)
        return shore__gradient_pool_failed(g->pool, diag);
    if (t->speculation.on) {
        shore__gradients_discard(t);
        *replay = *finite && !t->compressing && !g->all_fit;
        if (*replay) return 0;
    }
    shore__gradient_pool_drain(g->pool, &t->waits.drives_ns);
    int rc = shore__gradient_pool_failed(g->pool, diag);
    if (rc || !*finite) return rc;
    if (t->s->host_update) return host_update(t, clipping.coefficient, diag);
    for (uint32_t i = 0; !rc && i < g->npieces; i++)
        if (g->pieces[i].ready) {
            if (g->pieces[i].spilled) g->pieces[i].gradient = NULL, g->pieces[i].narrow = NULL;
            rc = submit(t, &g->pieces[i], clipping.coefficient, diag);
        }
    return rc;
}
