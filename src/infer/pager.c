#include "infer/pager.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "number/bf16.h"

#define NO_STEP SHORE__NO_STEP
static const struct shore__both nowhere;

#define SOURCE_SEGMENTS 4u /* read from a directory at a time */

struct page {
    struct shore__page_id id;
    uint32_t segment, count;
    struct shore__both at;   /* nowhere: not in memory */
    bool stays;              /* buffer is its own */
    bool lent;               /* for a while */
    bool loading;            /* load is under way */
    bool updating;           /* update is under way, or its end has not been looked at */
    bool in_parts;           /* more of it is to come */
    bool handed_back;        /* the update fills buffer */
    uint64_t step;           /* whose parameters buffer holds, or NO_STEP */
    uint64_t next_step;      /* that the update makes */
    struct shore__event put; /* the last, from there to where the device sees it; of no stream: none */
    struct shore_wait load, update;
    struct shore_completion then; /* the caller's, after update */
};

/* Buffers that pages of one kind share. */
struct shared {
    struct shore__both buffer[2];
    struct page *holds[2];
    uint32_t count, in_use;
};

struct shore__pager {
    struct shore__weights_of of;
    struct shore__compute *c;
    struct shore__stream *stream;
    size_t elem_bytes;
    uint64_t step;
    uint32_t npages, nslices;
    struct page *pages; /* tails of the first and last block, layers, input slices, output slices if untied */
    struct shared layers, slices;
    shore__buf there[4]; /* layer, slice, tails: where pages are put, if the device's memory is another */
    shore__buf prepared_layer, prepared_slice, prepared_tail[2];
    float *staging; /* directory only */
    uint64_t waited_ns;
};

static struct page *page_of(struct shore__pager *p, struct shore__page_id id) {
    return &p->pages[shore__page_number(p->of.model, id)];
}

static void place(struct shore__pager *p, const struct shore__memory *memory) {
    for (uint32_t i = 0; i < p->npages; i++)
        if (p->pages[i].stays) p->pages[i].at = shore__memory_both(memory, "page", i);
    for (struct shore__both b; (b = shore__memory_both(memory, "layer buffer", p->layers.count)).host;)
        p->layers.buffer[p->layers.count++] = b;
    for (struct shore__both b; (b = shore__memory_both(memory, "slice buffer", p->slices.count)).host;)
        p->slices.buffer[p->slices.count++] = b;
    p->there[0] = shore__memory_at(memory, "layer there", 0);
    p->there[1] = shore__memory_at(memory, "slice there", 0);
    p->there[2] = shore__memory_at(memory, "tail there", 0);
    p->there[3] = shore__memory_at(memory, "tail there", 1);
    p->prepared_layer = shore__memory_at(memory, "prepared layer", 0);
    p->prepared_slice = shore__memory_at(memory, "prepared slice", 0);
    for (uint32_t i = 0; i < 2; i++)
        p->prepared_tail[i] = shore__memory_at(memory, "prepared tail", i);
}

int shore__pager_open(const struct shore__weights_of *weights, struct shore__compute *c, struct shore__stream *stream,
                      const struct shore__residency *r, const struct shore__memory *memory, struct shore__pager **out,
                      struct shore_diag *diag) {
    const struct shore__model *m = weights->model;
    struct shore__pager *p = calloc(1, sizeof *p);
    if (!p) return shore__fail(diag, -ENOMEM, "out of memory for the parameter pages");
    *p = (struct shore__pager){.of = *weights, .c = c, .stream = stream, .elem_bytes = c->mode == SHORE__F32 ? 4 : 2};
    p->npages = shore__pages_count(m);
    p->pages = calloc(p->npages, sizeof *p->pages);
    if (weights->source) p->staging = malloc((size_t)SOURCE_SEGMENTS * SHORE_SEGMENT_ELEMS * 4);
    if (!p->pages || (weights->source && !p->staging)) {
        shore__pager_close(p);
        return shore__fail(diag, -ENOMEM, "out of memory for the parameter pages");
    }
    for (uint32_t i = 0; i < p->npages; i++) {
        struct page *page = &p->pages[i];
        page->id = shore__page_at(m, i);
        page->stays = shore__page_stays(m, r, page->id);
        page->step = NO_STEP;
        shore__page_segments(m, page->id, &page->segment, &page->count);
    }
    place(p, memory);
    *out = p;
    return 0;
}

/* The completion that a page's wait begins with stands for the parts that are still to come. */
static void end_parts(struct page *page) {
    if (!page->in_parts) return;
    page->in_parts = false;
    shore_wait_end(&page->update, 0);
}

void shore__pager_close(struct shore__pager *p) {
    if (!p) return;
    for (uint32_t i = 0; p->pages && i < p->npages; i++) {
        if (p->pages[i].loading) shore_wait(&p->pages[i].load, NULL);
        end_parts(&p->pages[i]);
        if (p->pages[i].updating) shore_wait(&p->pages[i].update, NULL);
    }
    free(p->staging);
    free(p->pages);
    free(p);
}

void shore__pager_set_step(struct shore__pager *p, uint64_t step) {
    p->step = step;
}

uint64_t shore__pager_waited_ns(struct shore__pager *p) {
    uint64_t ns = p->waited_ns;
    p->waited_ns = 0;
    return ns;
}

/* ---- fetching ------------------------------------------------------------------------------------------------------
 */

static int wait_for(struct shore__pager *p, struct shore_wait *w, struct shore_diag *diag) {
    if (shore_wait_is_done(w)) return shore_wait(w, diag);
    uint64_t start = shore__now_ns();
    int rc = shore_wait(w, diag);
    p->waited_ns += shore__now_ns() - start;
    return rc;
}

/* To the parameters that a run of these weights has: ties go the way of its masters' split. */
static void round_as_masters(uint16_t *out, const float *in, size_t elems) {
    uint16_t lo;
    for (size_t i = 0; i < elems; i++)
        shore__split_f32(in[i], &out[i], &lo);
}

static int read_source(struct shore__pager *p, struct page *page, struct shore_diag *diag) {
    for (uint32_t done = 0; done < page->count;) {
        uint32_t n = page->count - done < SOURCE_SEGMENTS ? page->count - done : SOURCE_SEGMENTS;
        int rc = shore__source_read(p->of.source, page->id.block, page->segment + done, n, p->staging, diag);
        if (rc) return rc;
        size_t elems = (size_t)n * SHORE_SEGMENT_ELEMS;
        char *to = (char *)page->at.host + (size_t)done * SHORE_SEGMENT_ELEMS * p->elem_bytes;
        if (p->elem_bytes == 4)
            memcpy(to, p->staging, elems * 4);
        else
            round_as_masters((uint16_t *)to, p->staging, elems);
        done += n;
    }
    return 0;
}

/* Before what lies there changes: the device may still have to see it. */
static int wait_for_put(struct shore__pager *p, struct page *page, struct shore_diag *diag) {
    if (!page->put.stream) return 0;
    int rc = p->c->ops->wait(p->c, page->put, diag);
    page->put.stream = NULL;
    return rc;
}

/* Gives a page that does not stay a shared buffer: a free one, or the one whose page is not in use. */
static bool find_buffer(struct shore__pager *p, struct page *page, bool ahead) {
    struct shared *s = page->id.kind == SHORE__PAGE_LAYER ? &p->layers : &p->slices;
    uint32_t chosen = s->count;
    for (uint32_t i = 0; i < s->count; i++) {
        if (ahead && i == s->in_use) continue;
        if (!s->holds[i] || chosen == s->count || chosen == s->in_use) chosen = i;
    }
    if (chosen == s->count) return false;
    struct page *old = s->holds[chosen];
    if (old) {
        wait_for_put(p, old, NULL); /* what fails on the stream is said to who uses it next */
        if (old->loading && ahead) return false;
        if (old->loading) shore_wait(&old->load, NULL);
        old->loading = false;
        old->at = nowhere;
        old->step = NO_STEP;
    }
    s->holds[chosen] = page;
    page->at = s->buffer[chosen];
    return true;
}

/* Looks at the end of a page's update; ahead: only if it is there. */
static int end_update(struct shore__pager *p, struct page *page, bool ahead, bool *pending, struct shore_diag *diag) {
    *pending = false;
    if (!page->updating) return 0;
    if (ahead && !shore_wait_is_done(&page->update)) {
        *pending = true;
        return 0;
    }
    int rc = wait_for(p, &page->update, diag);
    page->updating = false;
    page->step = !rc && page->handed_back ? page->next_step : NO_STEP;
    return rc;
}

/* Makes sure that the page is there or on its way. */
static int start(struct shore__pager *p, struct page *page, bool ahead, struct shore_diag *diag) {
    bool pending;
    int rc = end_update(p, page, ahead, &pending, diag);
    if (!rc && !pending && page->id.kind == SHORE__PAGE_TAIL &&
        shore__page_block_has_table(p->of.model, page->id.block)) {
        /* the first segment of a tail may be the last of the table */
        struct page *last =
            page_of(p, (struct shore__page_id){SHORE__PAGE_SLICE, page->id.block, p->of.model->nslices - 1});
        rc = end_update(p, last, ahead, &pending, diag);
    }
    if (rc || pending || !page->count) return rc;
    if (page->loading || (page->at.host && page->step == p->step)) return 0;
    if (!page->stays && !page->at.host && !find_buffer(p, page, ahead)) return 0;
    rc = wait_for_put(p, page, diag);
    if (rc) return rc;
    page->step = p->step;
    if (p->of.source) {
        rc = read_source(p, page, diag);
    } else {
        shore_wait_init(&page->load);
        rc = shore_fleet_fetch(p->of.fleet, p->step, page->id.block, page->segment, page->count,
                               p->elem_bytes == 4 ? SHORE_FETCH_MASTER : SHORE_FETCH_BF16, page->at.host,
                               shore_wait_completion(&page->load));
        page->loading = !rc;
        if (rc) shore__fail(diag, rc, "parameters cannot be fetched: %s", shore_error_text(rc));
    }
    if (rc) page->step = NO_STEP;
    return rc;
}

static int get(struct shore__pager *p, struct page *page, struct shore_diag *diag) {
    int rc = start(p, page, false, diag);
    if (!rc && page->loading) {
        rc = wait_for(p, &page->load, diag);
        page->loading = false;
        if (rc)
            page->step = NO_STEP;
        else if (page->step != p->step)
            rc = get(p, page, diag); /* was fetched for an earlier step */
    }
    if (rc || page->stays) return rc;
    struct shared *s = page->id.kind == SHORE__PAGE_LAYER ? &p->layers : &p->slices;
    s->in_use = s->holds[0] == page ? 0 : 1;
    return 0;
}

/* Where the device sees a page. */
static int show(struct shore__pager *p, struct page *page, shore__buf there, shore__buf *out, struct shore_diag *diag) {
    *out = page->at.device;
    if (!shore__buf_is_none(*out) || !page->at.host) return 0;
    *out = there;
    size_t bytes = (size_t)page->count * SHORE_SEGMENT_ELEMS * p->elem_bytes;
    int rc = p->c->ops->put(p->c, p->stream, there, page->at.host, bytes);
    if (rc) return shore__fail(diag, rc, "parameters cannot be put: %s", shore_error_text(rc));
    page->put = p->c->ops->record(p->c, p->stream);
    return 0;
}

int shore__pager_layer(struct shore__pager *p, uint32_t layer, struct shore__weights *out, struct shore_diag *diag) {
    struct page *page = page_of(p, (struct shore__page_id){SHORE__PAGE_LAYER, layer, 0});
    shore__buf raw;
    int rc = get(p, page, diag);
    if (!rc) rc = show(p, page, p->there[0], &raw, diag);
    return rc ? rc : shore__block_prepare(p->of.model, p->c, p->stream, layer, raw, p->prepared_layer, out);
}

int shore__pager_tail(struct shore__pager *p, uint32_t block, struct shore__weights *out, struct shore_diag *diag) {
    struct page *page = page_of(p, (struct shore__page_id){SHORE__PAGE_TAIL, block, 0});
    uint32_t nth = block ? 1 : 0;
    shore__buf raw;
    int rc = get(p, page, diag);
    if (!rc) rc = show(p, page, p->there[2 + nth], &raw, diag);
    return rc ? rc : shore__block_prepare(p->of.model, p->c, p->stream, block, raw, p->prepared_tail[nth], out);
}

int shore__pager_slice(struct shore__pager *p, uint32_t block, uint32_t slice, shore__buf *out,
                       struct shore_diag *diag) {
    struct page *page = page_of(p, (struct shore__page_id){SHORE__PAGE_SLICE, block, slice});
    struct shore__slice range = shore__model_slice(p->of.model, slice);
    shore__buf raw;
    int rc = get(p, page, diag);
    if (!rc) rc = show(p, page, p->there[1], &raw, diag);
    return rc ? rc : shore__slice_prepare(p->of.model, p->c, p->stream, range.rows, raw, p->prepared_slice, out);
}

void shore__pager_want_layer(struct shore__pager *p, uint32_t layer) {
    if (p->of.source || layer < 1 || layer > p->of.model->arch.n_layer) return;
    start(p, page_of(p, (struct shore__page_id){SHORE__PAGE_LAYER, layer, 0}), true, NULL);
}

void shore__pager_want_tail(struct shore__pager *p, uint32_t block) {
    if (p->of.source) return;
    start(p, page_of(p, (struct shore__page_id){SHORE__PAGE_TAIL, block, 0}), true, NULL);
}

void shore__pager_want_slice(struct shore__pager *p, uint32_t block, uint32_t slice) {
    if (p->of.source || slice >= p->of.model->nslices) return;
    start(p, page_of(p, (struct shore__page_id){SHORE__PAGE_SLICE, block, slice}), true, NULL);
}

/* ---- memory that is lent -------------------------------------------------------------------------------------------
 */

void shore__pager_lend(struct shore__pager *p, struct shore__page_id id, struct shore__both memory) {
    struct page *page = page_of(p, id);
    struct shared *s = id.kind == SHORE__PAGE_LAYER ? &p->layers : &p->slices;
    if (page->stays || page->updating) return;
    if (page->loading) shore_wait(&page->load, NULL);
    for (uint32_t i = 0; i < s->count; i++)
        if (s->holds[i] == page) s->holds[i] = NULL;
    page->loading = false;
    page->at = memory;
    page->step = NO_STEP;
    page->stays = page->lent = true;
}

int shore__pager_reclaim(struct shore__pager *p, struct shore_diag *diag) {
    int worst = 0;
    for (uint32_t i = 0; i < p->npages; i++) {
        struct page *page = &p->pages[i];
        bool pending;
        if (!page->lent) continue;
        int rc = end_update(p, page, false, &pending, worst ? NULL : diag);
        if (page->loading) shore_wait(&page->load, NULL);
        if (!worst) worst = rc;
        page->loading = page->stays = page->lent = false;
        page->at = nowhere;
        page->step = NO_STEP;
    }
    return worst;
}

/* ---- updates -------------------------------------------------------------------------------------------------------
 */

static void updated(void *ctx, int rc, const struct shore_diag *diag) {
    struct page *page = ctx;
    struct shore_completion waited = shore_wait_completion(&page->update);
    page->then.fn(page->then.ctx, rc, diag);
    waited.fn(waited.ctx, rc, diag); /* last: from here on the page may be looked at */
}

/* A tail may share a segment with the last slice: it is fetched again. */
static bool is_handed_back(const struct page *page) {
    return page->stays && page->id.kind != SHORE__PAGE_TAIL;
}

static void begin_update(struct shore__pager *p, struct page *page, uint64_t next_step, struct shore_completion done) {
    const struct shore__model *m = p->of.model;
    struct shore__page_id id = page->id;
    page->handed_back = is_handed_back(page);
    page->then = done;
    page->step = NO_STEP;
    page->next_step = next_step;
    page->updating = page->in_parts = true;
    shore_wait_init(&page->update);
    if (id.kind == SHORE__PAGE_SLICE && shore__page_block_has_table(m, id.block) && id.slice == m->nslices - 1)
        page_of(p, (struct shore__page_id){SHORE__PAGE_TAIL, id.block, 0})->step = NO_STEP;
}

int shore__pager_update(struct shore__pager *p, struct shore__page_id id, struct shore_update *update,
                        struct shore_completion done) {
    struct page *page = page_of(p, id);
    if (!page->in_parts) begin_update(p, page, update->base_step + 1, done);
    update->block = id.block;
    /* what the next forward pass needs first */
    update->order = id.block;
    size_t at = (size_t)(update->segment - page->segment) * SHORE_SEGMENT_ELEMS * p->elem_bytes;
    update->params_out = page->handed_back ? (char *)page->at.host + at : NULL;
    shore_wait_add(&page->update);
    int rc = shore_fleet_update(p->of.fleet, update, (struct shore_completion){updated, page});
    if (rc) shore_wait_end(&page->update, rc);
    return rc;
}

void shore__pager_update_end(struct shore__pager *p, struct shore__page_id id) {
    end_parts(page_of(p, id));
}

void shore__pager_updated(struct shore__pager *p, struct shore__page_id id, uint64_t next_step) {
    struct page *page = page_of(p, id);
    if (!page->in_parts) begin_update(p, page, next_step, (struct shore_completion){0});
    end_parts(page);
}

void shore__pager_discarded(struct shore__pager *p) {
    for (uint32_t i = 0; i < p->npages; i++) {
        struct page *page = &p->pages[i];
        if (!page->updating) continue;
        end_parts(page);
        shore_wait(&page->update, NULL);
        page->updating = false;
        page->step = NO_STEP;
    }
}

void *shore__pager_place(const struct shore__pager *p, uint32_t block, uint32_t segment) {
    for (uint32_t i = 0; i < p->npages; i++) {
        const struct page *page = &p->pages[i];
        if (page->id.block != block || !is_handed_back(page) || segment < page->segment ||
            segment - page->segment >= page->count)
            continue;
        return (char *)page->at.host + (size_t)(segment - page->segment) * SHORE_SEGMENT_ELEMS * p->elem_bytes;
    }
    return NULL;
}

void shore__pager_placed(struct shore__pager *p, uint64_t step) {
    for (uint32_t i = 0; i < p->npages; i++) {
        struct page *page = &p->pages[i];
        if (page->loading) shore_wait(&page->load, NULL);
        page->loading = false;
        page->step = is_handed_back(page) ? step : NO_STEP;
    }
}

void shore__pager_forget(struct shore__pager *p) {
    shore__pager_discarded(p);
    shore__pager_reclaim(p, NULL);
    for (uint32_t i = 0; i < p->npages; i++) {
        struct page *page = &p->pages[i];
        if (page->loading) shore_wait(&page->load, NULL);
        page->loading = false;
        page->step = NO_STEP;
    }
}
