#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "number/bf16.h"
#include "train/host_update.h"
#include "train/trainer.h"

/* ---- the pieces ----------------------------------------------------------------------------------------------------
 */

struct piece *shore__gradients_layer(struct trainer *t, uint32_t layer) {
    return &t->pieces[layer - 1];
}
struct piece *shore__gradients_tail(struct trainer *t) {
    return &t->pieces[t->m->arch.n_layer];
}
struct piece *shore__gradients_slice(struct trainer *t, uint32_t block, uint32_t slice) {
    return &t->pieces[t->first_slice_piece + (block ? t->m->nslices : 0) + slice];
}

static bool held_in_table(const struct trainer *t, const struct piece *p) {
    return t->table_gradient && p->page.kind == SHORE__PAGE_SLICE && p->page.block == 0;
}

/* An untied table is selected from as a whole, one after the other. */
static bool held_whole(const struct trainer *t, const struct piece *p) {
    return t->compressing && t->whole_gradient && p->page.kind == SHORE__PAGE_SLICE;
}

int shore__gradients_open(struct trainer *t, struct shore_diag *diag) {
    const struct shore__model *m = t->m;
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->freed, NULL);
    /* an untied model's tail piece stays unused: its tail comes with the last slice */
    t->first_slice_piece = m->arch.n_layer + 1;
    t->npieces = t->first_slice_piece + m->nslices * (m->arch.tied ? 1 : 2);
    t->pieces = calloc(t->npieces, sizeof *t->pieces);
    t->pool = calloc(t->plan.gradient_buffers, sizeof *t->pool);
    t->block_partial = calloc(m->nblocks, sizeof *t->block_partial);
    t->due = calloc(m->layout->blocks[0].segments, sizeof *t->due);
    t->early = calloc(m->layout->blocks[0].segments, 1);
    if (!t->pieces || !t->pool || !t->block_partial || !t->due || !t->early)
        return shore__fail(diag, -ENOMEM, "out of memory for gradients");
    for (uint32_t b = 1; b < m->nblocks; b++)
        t->block_partial[b] = t->block_partial[b - 1] + m->layout->blocks[b - 1].segments;
    for (uint32_t l = 1; l <= m->arch.n_layer; l++)
        shore__gradients_layer(t, l)->page = (struct shore__page_id){SHORE__PAGE_LAYER, l, 0};
    shore__gradients_tail(t)->page = (struct shore__page_id){SHORE__PAGE_TAIL, shore__model_head(m), 0};
    for (uint32_t block = 0; block == 0 || (block == shore__model_head(m) && !m->arch.tied);
         block += shore__model_head(m))
        for (uint32_t i = 0; i < m->nslices; i++)
            shore__gradients_slice(t, block, i)->page = (struct shore__page_id){SHORE__PAGE_SLICE, block, i};
    for (uint32_t i = 0; i < t->npieces; i++) {
        struct piece *p = &t->pieces[i];
        p->owner = t;
        shore__page_range(m, p->page, &p->segment, &p->count);
        if (p->page.kind == SHORE__PAGE_SLICE && p->page.slice + 1 == m->nslices)
            p->count = m->layout->blocks[p->page.block].segments - p->segment;
    }
    return 0;
}

void shore__gradients_close(struct trainer *t) {
    if (!t->pieces) return;
    pthread_mutex_destroy(&t->mutex);
    pthread_cond_destroy(&t->freed);
    free(t->pieces);
    free(t->pool);
    free(t->block_partial);
    free(t->due);
    free(t->early);
}

/* Everything behind the table (learned positions) changes with every unit. */
static void mark_lookups(struct trainer *t) {
    size_t d = t->m->arch.d_model, rows = shore__pass_rows(&t->pass), unit = shore__pass_unit(&t->pass);
    size_t behind = (size_t)t->m->arch.vocab * d / SHORE_SEGMENT_ELEMS;
    const int32_t *tokens = (const int32_t *)t->pass.tokens.handle;
    memset(t->due, 0, behind * sizeof *t->due);
    for (size_t s = behind; s < t->m->layout->blocks[0].segments; s++)
        t->due[s] = (uint32_t)shore__pass_units(&t->pass);
    for (size_t i = 0; i < rows; i++) {
        if (tokens[i] < 0) continue;
        size_t first = (size_t)tokens[i] * d;
        for (size_t s = first / SHORE_SEGMENT_ELEMS; s <= (first + d - 1) / SHORE_SEGMENT_ELEMS; s++)
            if (s < behind) t->due[s] = (uint32_t)(i / unit) + 1;
    }
}

static void set_hypers(struct trainer *t) {
    const struct shore__settings *s = t->s;
    for (uint32_t g = 0; g < SHORE__MODEL_GROUPS; g++) {
        struct shore_hyper *h = &t->hyper[g];
        *h = (struct shore_hyper){
            .lr = (float)shore__learning_rate(s, t->base_step + 1),
            .beta1 = (float)s->beta1,
            .beta2 = (float)s->beta2,
            .eps = (float)s->eps,
            .momentum = (float)s->momentum,
            .weight_decay = g == 0 ? (float)s->weight_decay : 0,
        };
        shore_hyper_at_step(h, s->optimizer, t->base_step + 1);
        if (!t->compressing || !s->frozen_variance) continue;
        /* v * 1 + 0 * g * g: it stays, and so does its bias correction */
        struct shore_hyper last = *h;
        shore_hyper_at_step(&last, s->optimizer, s->compress_after);
        h->beta2 = 1;
        h->inv_sqrt_bias2 = last.inv_sqrt_bias2;
    }
}

int shore__gradients_begin_step(struct trainer *t, struct shore_diag *diag) {
    for (uint32_t i = 0; i < t->npieces; i++) {
        struct piece *p = &t->pieces[i];
        p->gradient = NULL;
        p->narrow = NULL;
        p->buffer = -1;
        p->ready = p->spilled = false;
    }
    for (uint32_t i = 0; i < t->plan.gradient_buffers; i++)
        t->pool[i].holds = NULL, t->pool[i].released = false;
    memset(t->early, 0, t->m->layout->blocks[0].segments);
    shore__speculation_begin(&t->speculation, t->m->layout, t->s->clip, t->partial);
    t->abandoned = false;
    mark_lookups(t);
    int rc = shore__compress_begin_step(t, diag);
    set_hypers(t);
    return rc;
}

/* ---- buffers -------------------------------------------------------------------------------------------------------
 */

/* A request that read a piece has ended; on a thread of the fleet. */
static void request_ended(void *ctx, int rc, const struct shore_diag *diag) {
    struct piece *p = ctx;
    struct trainer *t = p->owner;
    pthread_mutex_lock(&t->mutex);
    if (rc && rc != SHORE_EDISCARDED && !t->failed) {
        t->failed = rc;
        if (diag)
            t->failure = *diag;
        else
            shore__fail(&t->failure, rc, "a drive failed: %s", shore_error_text(rc));
    }
    if (p->buffer >= 0) t->pool[p->buffer].pending--;
    pthread_cond_signal(&t->freed);
    pthread_mutex_unlock(&t->mutex);
}

static int failed(struct trainer *t, struct shore_diag *diag) {
    pthread_mutex_lock(&t->mutex);
    int rc = t->failed;
    if (rc && diag) *diag = t->failure;
    pthread_mutex_unlock(&t->mutex);
    return rc;
}

/* A buffer that no piece has used in this step is taken first: while gradients stay in memory, a speculation that fails
 * costs no replay. */
static int find_buffer(struct trainer *t) {
    int found = -1;
    for (uint32_t i = 0; i < t->plan.gradient_buffers; i++) {
        const struct gradient_buffer *b = &t->pool[i];
        if (!b->holds) return (int)i;
        if (found < 0 && b->released && !b->pending) found = (int)i;
    }
    return found;
}

void shore__gradients_release(struct trainer *t, struct piece *p) {
    t->pool[p->buffer] = (struct gradient_buffer){.memory = t->pool[p->buffer].memory};
    p->gradient = NULL;
    p->narrow = NULL;
    p->buffer = -1;
}

int shore__gradients_begin(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    int rc = p->segment == 0 ? shore__compress_want(t, p->page.block, diag) : 0;
    if (rc) return rc;
    if (held_in_table(t, p)) {
        p->gradient = t->table_gradient + (size_t)p->segment * SHORE_SEGMENT_ELEMS;
    } else if (held_whole(t, p)) {
        p->gradient = t->whole_gradient + (size_t)p->segment * SHORE_SEGMENT_ELEMS;
    } else {
        uint64_t start = 0;
        pthread_mutex_lock(&t->mutex);
        int i;
        while ((i = find_buffer(t)) < 0 && !t->failed) {
            if (!start) start = shore__now_ns();
            pthread_cond_wait(&t->freed, &t->mutex);
        }
        pthread_mutex_unlock(&t->mutex);
        if (start) t->waits.drives_ns += shore__now_ns() - start;
        if (i < 0) return failed(t, diag);
        struct gradient_buffer *b = &t->pool[i];
        if (b->holds) b->holds->gradient = NULL, b->holds->narrow = NULL, b->holds->buffer = -1;
        b->holds = p;
        b->released = false;
        p->buffer = i;
        p->gradient = b->memory;
    }
    return 0;
}

static void count_request(struct trainer *t, struct piece *p) {
    if (p->buffer < 0) return;
    pthread_mutex_lock(&t->mutex);
    t->pool[p->buffer].pending++;
    t->pool[p->buffer].released = true;
    pthread_mutex_unlock(&t->mutex);
}

static void uncount_request(struct trainer *t, struct piece *p) {
    pthread_mutex_lock(&t->mutex);
    if (p->buffer >= 0) t->pool[p->buffer].pending--;
    pthread_mutex_unlock(&t->mutex);
}

/* It was handed over early, or is updated here. */
static bool is_elsewhere(struct trainer *t, struct shore__page_id page, uint32_t segment) {
    return page.block == 0 && (t->early[segment] || shore__ahead_takes(t, segment));
}

/* Where the piece's segment is in the form in which it is sent. */
static void fill_gradient(const struct trainer *t, const struct piece *p, uint32_t segment, struct shore_update *out) {
    size_t skipped = (size_t)(segment - p->segment) * SHORE_SEGMENT_ELEMS;
    out->form = t->compressing        ? SHORE_GRADIENT_SPARSE
                : t->s->gradient_bf16 ? SHORE_GRADIENT_BF16
                                      : SHORE_GRADIENT_FP32;
    if (t->compressing) {
        const struct compressed_block *b = &t->compression.blocks[p->page.block];
        out->gradient = b->code;
        out->offsets = b->offsets + segment;
        out->residual = shore__compress_residual(t, p->page.block, segment);
    } else if (p->narrow) {
        out->gradient = p->narrow + skipped;
    } else if (p->gradient) {
        out->gradient = p->gradient + skipped;
    }
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
        .groups = t->hyper,
        .ngroups = SHORE__MODEL_GROUPS,
    };
    fill_gradient(t, p, segment, &update);
    count_request(t, p);
    int rc = shore__pager_update(t->pass.pager, page, &update, (struct shore_completion){request_ended, p});
    if (!rc) return 0;
    uncount_request(t, p);
    return shore__fail(diag, rc, "an update cannot be handed to the drives: %s", shore_error_text(rc));
}

/* All of the page that has not been handed over. */
static int submit_page(struct trainer *t, struct piece *p, struct shore__page_id page, float coefficient,
                       struct shore_diag *diag) {
    uint32_t first, count, begin;
    int rc = 0;
    shore__page_range(t->m, page, &first, &count);
    for (uint32_t s = first; !rc && s < first + count; s++) {
        if (is_elsewhere(t, page, s)) continue;
        for (begin = s; s + 1 < first + count && !is_elsewhere(t, page, s + 1);)
            s++;
        rc = submit_part(t, p, page, begin, s + 1 - begin, coefficient, diag);
    }
    bool more =
        page.kind == SHORE__PAGE_SLICE && page.block == 0 && shore__ahead_has(t, shore__model_slice(t->m, page.slice));
    if (count && !more) shore__pager_update_end(t->pass.pager, page);
    return rc;
}

static int submit(struct trainer *t, struct piece *p, float coefficient, struct shore_diag *diag) {
    int rc = submit_page(t, p, p->page, coefficient, diag);
    if (rc || p->page.kind != SHORE__PAGE_SLICE || p->page.slice + 1 < t->m->nslices) return rc;
    return submit_page(t, p, (struct shore__page_id){SHORE__PAGE_TAIL, p->page.block, 0}, coefficient, diag);
}

static bool all_fit(const struct trainer *t) {
    uint32_t pooled = 0;
    for (uint32_t i = 0; i < t->npieces; i++)
        pooled += !held_in_table(t, &t->pieces[i]);
    return t->plan.gradient_buffers >= pooled;
}

static void spill_ended(void *ctx, int rc, const struct shore_diag *diag) {
    struct trainer *t = ((struct piece *)ctx)->owner;
    pthread_mutex_lock(&t->mutex);
    t->spills--;
    pthread_mutex_unlock(&t->mutex);
    request_ended(ctx, rc, diag);
}

static int spill(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    if (!p->count) return 0;
    p->spilled = true;
    count_request(t, p);
    pthread_mutex_lock(&t->mutex);
    t->spills++;
    pthread_mutex_unlock(&t->mutex);
    const void *from = p->narrow ? (const void *)p->narrow : p->gradient;
    int rc = shore_fleet_spill(t->fleet, p->page.block, p->segment, p->count,
                               p->narrow ? SHORE_GRADIENT_BF16 : SHORE_GRADIENT_FP32, from,
                               (struct shore_completion){spill_ended, p});
    if (!rc) return 0;
    uncount_request(t, p);
    pthread_mutex_lock(&t->mutex);
    t->spills--;
    pthread_mutex_unlock(&t->mutex);
    return shore__fail(diag, rc, "gradients cannot be spilled: %s", shore_error_text(rc));
}

/* Waits for the norm in memory, or on the drives if the buffers that are left would not let backward go on. */
static int hold_or_spill(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    if (held_in_table(t, p) || all_fit(t)) return 0;
    uint32_t others = 0;
    for (uint32_t i = 0; i < t->plan.gradient_buffers; i++)
        others += !t->pool[i].holds || t->pool[i].released;
    return others >= 2 ? 0 : spill(t, p, diag);
}

/* A piece of the held table may be handed over bit by bit; all else is handed over as one. */
#define ALL_THAT_IS_LEFT UINT32_MAX
static bool is_due(const struct trainer *t, const struct piece *p, uint32_t segment, uint32_t after) {
    if (!held_in_table(t, p)) return true;
    return after == ALL_THAT_IS_LEFT ? !t->early[segment] : t->due[segment] == after;
}

static void take_norm(struct trainer *t, const struct piece *p, uint32_t after) {
    uint32_t end = p->segment + p->count;
    for (uint32_t s = p->segment, begin; s < end; s++) {
        if (!is_due(t, p, s, after)) continue;
        for (begin = s; s + 1 < end && is_due(t, p, s + 1, after);)
            s++;
        shore__speculation_add(&t->speculation, p->page.block, begin, s + 1 - begin,
                               p->gradient + (size_t)(begin - p->segment) * SHORE_SEGMENT_ELEMS);
    }
}

/* What is complete becomes bf16, if that is how gradients are sent. The table has a second place for that, since its
 * segments are complete at different times; any other piece is narrowed where it is, a stretch at a time, from its
 * start. */
static void narrow(const struct trainer *t, struct piece *p, uint32_t after) {
    if (!t->s->gradient_bf16) return;
    if (held_in_table(t, p)) {
        p->narrow = t->table_narrow + (size_t)p->segment * SHORE_SEGMENT_ELEMS;
#pragma omp parallel for schedule(static)
        for (uint32_t i = 0; i < p->count; i++)
            if (is_due(t, p, p->segment + i, after))
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

int shore__gradients_early(struct trainer *t, struct piece *p, uint32_t after, struct shore_diag *diag) {
    uint32_t first, count, begin;
    if (!shore__speculation_goes_on(&t->speculation) || t->compressing) return 0;
    take_norm(t, p, after);
    narrow(t, p, after);
    int rc = failed(t, diag);
    for (uint32_t s = p->segment; s < p->segment + p->count; s++)
        t->early[s] |= t->due[s] == after;
    if (!shore__speculation_goes_on(&t->speculation)) return rc;
    shore__page_range(t->m, p->page, &first, &count);
    for (uint32_t s = first; !rc && s < first + count; s++) {
        if (t->due[s] != after || shore__ahead_takes(t, s)) continue;
        for (begin = s; s + 1 < first + count && t->due[s + 1] == after && !shore__ahead_takes(t, s + 1);)
            s++;
        rc = submit_part(t, p, p->page, begin, s + 1 - begin, 1, diag);
    }
    return rc;
}

/* The last piece of a block selects from all of it, and hands it over or leaves it in memory. */
static int end_compressed(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    uint32_t block = p->page.block;
    bool slice = p->page.kind == SHORE__PAGE_SLICE;
    int rc = shore__compress_add(t, block, p->segment, p->count, p->gradient, diag);
    p->ready = true;
    if (rc || (slice && p->page.slice + 1 < t->m->nslices)) return rc;
    shore__compress_block(t, block, p->gradient - (size_t)p->segment * SHORE_SEGMENT_ELEMS);
    if (p->buffer >= 0) shore__gradients_release(t, p);
    rc = failed(t, diag);
    if (rc || !shore__speculation_goes_on(&t->speculation)) return rc;
    if (!slice) return submit(t, p, 1, diag);
    for (uint32_t i = 0; !rc && i < t->m->nslices; i++)
        rc = submit(t, shore__gradients_slice(t, block, i), 1, diag);
    return rc;
}

int shore__gradients_end(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    if (t->compressing) return end_compressed(t, p, diag);
    take_norm(t, p, ALL_THAT_IS_LEFT);
    narrow(t, p, ALL_THAT_IS_LEFT);
    p->ready = true;
    int rc = failed(t, diag);
    if (rc) return rc;
    if (t->s->host_update) return spill(t, p, diag);
    if (shore__speculation_goes_on(&t->speculation)) return submit(t, p, 1, diag);
    if (!t->speculation.on || all_fit(t)) return hold_or_spill(t, p, diag);
    t->abandoned = true;
    return 0;
}

void shore__gradients_drain(struct trainer *t) {
    uint64_t start = shore__now_ns();
    pthread_mutex_lock(&t->mutex);
    for (uint32_t i = 0; i < t->plan.gradient_buffers; i++)
        while (t->pool[i].pending)
            pthread_cond_wait(&t->freed, &t->mutex);
    while (t->spills)
        pthread_cond_wait(&t->freed, &t->mutex);
    pthread_mutex_unlock(&t->mutex);
    t->waits.drives_ns += shore__now_ns() - start;
}

void shore__gradients_discard(struct trainer *t) {
    shore_fleet_discard(t->fleet);
    shore__ahead_drop(t);
    shore__pager_discarded(t->pass.pager);
    memset(t->early, 0, t->m->layout->blocks[0].segments);
    shore__gradients_drain(t);
}

static void *place_of(void *ctx, uint32_t block, uint32_t segment) {
    return shore__pager_place(ctx, block, segment);
}

static int host_update(struct trainer *t, float coefficient, struct shore_diag *diag) {
    const struct shore__host_update how = {
        .base_step = t->base_step,
        .attempt = shore_fleet_attempt(t->fleet),
        .form = t->s->gradient_bf16 ? SHORE_GRADIENT_BF16 : SHORE_GRADIENT_FP32,
        .coefficient = coefficient,
        .groups = t->hyper,
        .ngroups = SHORE__MODEL_GROUPS,
        .params_at = place_of,
        .ctx = t->pass.pager,
        .buffers = (uint32_t)t->plan.host_buffers,
        .chunk_segments = (uint32_t)t->plan.host_segments,
        .memory = t->host_memory,
    };
    shore__pager_placed(t->pass.pager, SHORE__NO_STEP);
    int rc = shore__host_update_run(t->fleet, &how, &t->waits.drives_ns, diag);
    if (!rc) shore__pager_placed(t->pass.pager, t->base_step + 1);
    return rc;
}

int shore__gradients_finish(struct trainer *t, bool *finite, bool *replay, struct shore_diag *diag) {
    struct shore_clipping clipping = shore__speculation_decide(&t->speculation);
    *finite = clipping.finite;
    *replay = false;
    if (shore__speculation_goes_on(&t->speculation) && *finite && clipping.coefficient == 1) return failed(t, diag);
    if (t->speculation.on) {
        shore__gradients_discard(t);
        *replay = *finite && !t->compressing && !all_fit(t);
        if (*replay) return 0;
    }
    shore__gradients_drain(t);
    int rc = failed(t, diag);
    if (rc || !*finite) return rc;
    if (t->s->host_update) return host_update(t, clipping.coefficient, diag);
    for (uint32_t i = 0; !rc && i < t->npieces; i++)
        if (t->pieces[i].ready) {
            if (t->pieces[i].spilled) t->pieces[i].gradient = NULL, t->pieces[i].narrow = NULL;
            rc = submit(t, &t->pieces[i], clipping.coefficient, diag);
        }
    return rc;
}
