#include "pass/parameters.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "longshore/device.h"

/* Pools of pages. Each tail has its own, so that it is fetched again after its update: it shares a segment with the
 * last slice of a table. */
enum { LAYERS, SLICES, SIDES, FIRST_TAIL, LAST_TAIL, POOLS };

struct shore__parameters {
    const struct shore__model *m;
    struct shore__compute *c;
    struct shore__stream *stream, *copying; /* copying: NULL where the device's memory is the host's */
    const struct shore__memory *memory;
    struct shore_pages *pages;
    struct shore_shown *shown; /* of pages, on the device */
    uint32_t given[POOLS];     /* the page that was given last */
    shore__buf prepared_layer, prepared_slice, prepared_side, prepared_tail[2];
    /* of a layer whose experts are fetched one by one */
    struct {
        uint32_t page, uses;
    } partial[2];                         /* the pages of it and its side */
    struct shore_pages_span *spans;       /* as many as a layer has tensors */
    bool which[1 + SHORE__MODEL_EXPERTS]; /* what is asked for: what is no expert's, and each expert */
};

static uint32_t pool_of(struct shore__page_id id) {
    if (id.kind == SHORE__PAGE_TAIL) return id.block ? LAST_TAIL : FIRST_TAIL;
    return id.kind == SHORE__PAGE_LAYER ? LAYERS : id.kind == SHORE__PAGE_SIDE ? SIDES : SLICES;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void lay_out(struct shore__parameters *p) {
    p->prepared_layer = shore__memory_at(p->memory, SHORE__ROW_PREPARED_LAYER, 0);
    p->prepared_slice = shore__memory_at(p->memory, SHORE__ROW_PREPARED_SLICE, 0);
    p->prepared_side = shore__memory_at(p->memory, SHORE__ROW_PREPARED_SIDE, 0);
    for (uint32_t i = 0; i < 2; i++)
        p->prepared_tail[i] = shore__memory_at(p->memory, SHORE__ROW_PREPARED_TAIL, i);
}

static int open_pages(struct shore__parameters *p, const struct shore__parameters_of *of, struct shore_diag *diag) {
    uint32_t n = shore__pages_count(p->m);
    enum shore_fetch_kind kind = p->c->mode == SHORE__F32 ? SHORE_FETCH_MASTER : SHORE_FETCH_BF16;
    void *buffers[POOLS][2], *tail;
    struct shore_pages_pool pools[POOLS];
    struct shore_pages_range *ranges = calloc(n, sizeof *ranges);
    if (!ranges) return shore__fail(diag, -ENOMEM, "out of memory for the parameter pages");
    for (uint32_t i = 0; i < POOLS; i++)
        pools[i] = (struct shore_pages_pool){0, buffers[i]};
    for (uint32_t i = 0; i < 2; i++) {
        if ((buffers[LAYERS][i] = shore__memory_host(p->memory, SHORE__ROW_LAYER_BUFFER, i))) pools[LAYERS].nbuffers++;
        if ((buffers[SLICES][i] = shore__memory_host(p->memory, SHORE__ROW_SLICE_BUFFER, i))) pools[SLICES].nbuffers++;
        if ((buffers[SIDES][i] = shore__memory_host(p->memory, SHORE__ROW_SIDE_BUFFER, i))) pools[SIDES].nbuffers++;
        if ((tail = shore__memory_host(p->memory, SHORE__ROW_PAGE, i)))
            buffers[FIRST_TAIL + i][pools[FIRST_TAIL + i].nbuffers++] = tail;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct shore__page_id id = shore__page_at(p->m, i);
        void *stays = id.kind == SHORE__PAGE_TAIL ? NULL : shore__memory_host(p->memory, SHORE__ROW_PAGE, i);
        ranges[i] = (struct shore_pages_range){
            .block = id.block, .pool = stays ? SHORE_PAGES_STAYS : pool_of(id), .kind = kind, .memory = stays};
        shore__page_segments(p->m, id, &ranges[i].segment, &ranges[i].count);
    }
    const struct shore_pages_options options = {
        .size = sizeof options,
        .ranges = ranges,
        .nranges = n,
        .pools = pools,
        .npools = POOLS,
        .read = of->read,
        .read_ctx = of->read_ctx,
    };
    int rc = shore_pages_open(of->fleet, &options, &p->pages, diag);
    free(ranges);
    return rc;
}

static void add_buffer(struct shore_shown_pool *pool, uint64_t *buffers, shore__buf buffer) {
    if (!shore__buf_is_none(buffer)) buffers[pool->nbuffers++] = buffer.handle;
}

static int open_shown(struct shore__parameters *p, struct shore_diag *diag) {
    uint64_t buffers[POOLS][2];
    struct shore_shown_pool pools[POOLS];
    for (uint32_t i = 0; i < POOLS; i++)
        pools[i] = (struct shore_shown_pool){.buffers = buffers[i]};
    for (uint32_t i = 0; i < 2; i++) {
        add_buffer(&pools[LAYERS], buffers[LAYERS], shore__memory_at(p->memory, SHORE__ROW_LAYER_THERE, i));
        add_buffer(&pools[SLICES], buffers[SLICES], shore__memory_at(p->memory, SHORE__ROW_SLICE_THERE, i));
        add_buffer(&pools[SIDES], buffers[SIDES], shore__memory_at(p->memory, SHORE__ROW_SIDE_THERE, i));
        add_buffer(&pools[FIRST_TAIL + i], buffers[FIRST_TAIL + i],
                   shore__memory_at(p->memory, SHORE__ROW_TAIL_THERE, i));
    }
    int rc = p->c->one_memory ? 0 : p->c->ops->stream_open(p->c, &p->copying, diag);
    if (rc) return rc;
    const struct shore_shown_options options = {
        .size = sizeof options,
        .device = &p->c->device,
        .copying = p->copying,
        .pools = pools,
        .npools = POOLS,
    };
    return shore_shown_open(p->pages, &options, &p->shown, diag);
}

static int open_spans(struct shore__parameters *p, struct shore_diag *diag) {
    uint32_t most = 0;
    if (!p->c->one_memory || !p->m->arch.experts) return 0;
    for (uint32_t b = 0; b < p->m->nblocks; b++)
        if (p->m->blocks[b].ntensors > most) most = p->m->blocks[b].ntensors;
    p->spans = calloc(most, sizeof *p->spans);
    return p->spans ? 0 : shore__out_of_memory(diag);
}

int shore__parameters_open(const struct shore__parameters_of *of, struct shore__compute *c,
                           struct shore__stream *stream, const struct shore__memory *memory,
                           struct shore__parameters **out, struct shore_diag *diag) {
    struct shore__parameters *p = calloc(1, sizeof *p);
    if (!p) return shore__fail(diag, -ENOMEM, "out of memory for the parameter pages");
    *p = (struct shore__parameters){.m = of->model, .c = c, .stream = stream, .memory = memory};
    lay_out(p);
    int rc = open_spans(p, diag);
    if (!rc) rc = open_pages(p, of, diag);
    if (!rc) rc = open_shown(p, diag);
    if (rc) {
        shore__parameters_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void shore__parameters_close(struct shore__parameters *p) {
    if (!p) return;
    shore_shown_close(p->shown);
    if (p->copying) {
        shore__sync(p->c, p->stream, NULL); /* it follows copying */
        p->c->ops->stream_close(p->c, p->copying);
    }
    shore_pages_close(p->pages);
    free(p->spans);
    free(p);
}

struct shore_pages *shore__parameters_pages(struct shore__parameters *p) {
    return p->pages;
}

/* ---- pages that are given ---------------------------------------------------------------------------------------- */

static int give(struct shore__parameters *p, struct shore__page_id id, shore__buf *raw, struct shore_diag *diag) {
    const void *host;
    uint64_t there;
    uint32_t pool = pool_of(id), page = shore__page_number(p->m, id);
    if (p->given[pool] != page) shore_shown_leave(p->shown, pool, p->given[pool]);
    p->given[pool] = page;
    int rc = shore_shown_get(p->shown, pool, page, p->stream, &host, &there, diag);
    if (rc) return rc;
    *raw = there ? (shore__buf){there} : shore__memory_seen(p->memory, host);
    return 0;
}

/* Gives and prepares a page of a block, and its side. */
static int give_block(struct shore__parameters *p, struct shore__page_id id, shore__buf prepared,
                      struct shore__weights *out, struct shore_diag *diag) {
    const struct shore__model_block *b = &p->m->blocks[id.block];
    shore__buf raw;
    int rc = 0;
    *out = (struct shore__weights){0};
    if (b->tail_segments) rc = give(p, id, &raw, diag);
    if (!rc && b->tail_segments) rc = shore__block_prepare(p->m, p->c, p->stream, id.block, raw, prepared, NULL, out);
    if (rc || !b->side) return rc;
    rc = give(p, (struct shore__page_id){SHORE__PAGE_SIDE, b->side, 0}, &raw, diag);
    return rc ? rc : shore__block_prepare(p->m, p->c, p->stream, b->side, raw, p->prepared_side, NULL, out);
}

/* Ends the use of pages that were got in spans. */
static void release_partial(struct shore__parameters *p) {
    for (uint32_t i = 0; i < 2; i++)
        for (; p->partial[i].uses; p->partial[i].uses--)
            shore_pages_release(p->pages, p->partial[i].page);
}

int shore__parameters_layer(struct shore__parameters *p, uint32_t layer, struct shore__weights *out,
                            struct shore_diag *diag) {
    release_partial(p);
    return give_block(p, (struct shore__page_id){SHORE__PAGE_LAYER, layer, 0}, p->prepared_layer, out, diag);
}

int shore__parameters_tail(struct shore__parameters *p, uint32_t block, struct shore__weights *out,
                           struct shore_diag *diag) {
    return give_block(p, (struct shore__page_id){SHORE__PAGE_TAIL, block, 0}, p->prepared_tail[block ? 1 : 0], out,
                      diag);
}

int shore__parameters_slice(struct shore__parameters *p, uint32_t block, uint32_t slice, shore__buf *out,
                            struct shore_diag *diag) {
    shore__buf raw;
    int rc = give(p, (struct shore__page_id){SHORE__PAGE_SLICE, block, slice}, &raw, diag);
    return rc ? rc
              : shore__slice_prepare(p->m, p->c, p->stream, shore__model_slice(p->m, slice).rows, raw,
                                     p->prepared_slice, out);
}

static void want(struct shore__parameters *p, struct shore__page_id id) {
    shore_shown_want(p->shown, pool_of(id), shore__page_number(p->m, id));
}

static void want_block(struct shore__parameters *p, struct shore__page_id id) {
    const struct shore__model_block *b = &p->m->blocks[id.block];
    if (b->tail_segments) want(p, id);
    if (b->side) want(p, (struct shore__page_id){SHORE__PAGE_SIDE, b->side, 0});
}

void shore__parameters_want_layer(struct shore__parameters *p, uint32_t layer) {
    if (layer >= 1 && layer <= p->m->arch.n_layer) want_block(p, (struct shore__page_id){SHORE__PAGE_LAYER, layer, 0});
}

void shore__parameters_want_tail(struct shore__parameters *p, uint32_t block) {
    want_block(p, (struct shore__page_id){SHORE__PAGE_TAIL, block, 0});
}

void shore__parameters_want_slice(struct shore__parameters *p, uint32_t block, uint32_t slice) {
    if (slice < p->m->nslices) want(p, (struct shore__page_id){SHORE__PAGE_SLICE, block, slice});
}

/* ---- layers by expert -------------------------------------------------------------------------------------------- */

bool shore__parameters_by_expert(const struct shore__parameters *p, size_t rows) {
    const struct shore__arch *a = &p->m->arch;
    return p->spans && rows * a->experts_chosen * 2 <= a->experts;
}

/* Fills p->spans with the segments of what is asked for of a block. */
static uint32_t find_spans(struct shore__parameters *p, uint32_t block) {
    const struct shore_layout_block *layout = &p->m->layout->blocks[block];
    uint32_t n = 0, end = 0;
    for (uint32_t t = 0; t < p->m->blocks[block].ntensors; t++) {
        uint64_t from = layout->tensors[t].offset_elems, to = from + layout->tensors[t].elems;
        uint32_t first = (uint32_t)(from / SHORE_SEGMENT_ELEMS);
        if (!p->which[p->m->blocks[block].tensors[t].expert]) continue;
        if (!n || first > end) p->spans[n++].segment = first;
        end = (uint32_t)((to + SHORE_SEGMENT_ELEMS - 1) / SHORE_SEGMENT_ELEMS);
        p->spans[n - 1].count = end - p->spans[n - 1].segment;
    }
    return n;
}

static struct shore__page_id page_of(const struct shore__parameters *p, uint32_t layer, uint32_t side) {
    if (side) return (struct shore__page_id){SHORE__PAGE_SIDE, p->m->blocks[layer].side, 0};
    return (struct shore__page_id){SHORE__PAGE_LAYER, layer, 0};
}
static uint32_t sides_of(const struct shore__parameters *p, uint32_t layer) {
    return p->m->blocks[layer].side ? 2 : 1;
}

/* Gives and prepares what is asked for of a layer and its side. */
static int give_spans(struct shore__parameters *p, uint32_t layer, struct shore__weights *out,
                      struct shore_diag *diag) {
    int rc = 0;
    for (uint32_t i = 0; !rc && i < sides_of(p, layer); i++) {
        struct shore__page_id id = page_of(p, layer, i);
        uint32_t n = find_spans(p, id.block);
        const void *host;
        if (!n) continue;
        p->partial[i].page = shore__page_number(p->m, id);
        rc = shore_pages_get_spans(p->pages, p->partial[i].page, p->spans, n, &host, diag);
        if (rc) return rc;
        p->partial[i].uses++;
        rc = shore__block_prepare(p->m, p->c, p->stream, id.block, shore__memory_seen(p->memory, host),
                                  i ? p->prepared_side : p->prepared_layer, p->which, out);
    }
    return rc;
}

static void ask_for(struct shore__parameters *p, bool rest) {
    memset(p->which, 0, sizeof p->which);
    p->which[0] = rest;
}

void shore__parameters_want_layer_of(struct shore__parameters *p, uint32_t layer, size_t rows) {
    if (!shore__parameters_by_expert(p, rows)) return shore__parameters_want_layer(p, layer);
    if (layer > p->m->arch.n_layer) return;
    ask_for(p, true);
    for (uint32_t i = 0; i < sides_of(p, layer); i++) {
        struct shore__page_id id = page_of(p, layer, i);
        uint32_t n = find_spans(p, id.block);
        if (n) shore_pages_want_spans(p->pages, shore__page_number(p->m, id), p->spans, n);
    }
}

int shore__parameters_but_experts(struct shore__parameters *p, uint32_t layer, struct shore__weights *out,
                                  struct shore_diag *diag) {
    release_partial(p);
    shore_shown_release(p->shown, LAYERS, p->given[LAYERS]); /* a page in use keeps its buffer */
    shore_shown_release(p->shown, SIDES, p->given[SIDES]);
    *out = (struct shore__weights){0};
    ask_for(p, true);
    return give_spans(p, layer, out, diag);
}

int shore__parameters_experts(struct shore__parameters *p, uint32_t layer, const int32_t *experts, size_t count,
                              struct shore__weights *out, struct shore_diag *diag) {
    ask_for(p, false);
    for (size_t i = 0; i < count; i++)
        p->which[1 + experts[i]] = true;
    return give_spans(p, layer, out, diag);
}

/* ---- updates ----------------------------------------------------------------------------------------------------- */

void shore__parameters_release_page(struct shore__parameters *p, uint32_t page) {
    release_partial(p);
    shore_shown_release(p->shown, pool_of(shore__page_at(p->m, page)), page);
}

void shore__parameters_release(struct shore__parameters *p) {
    release_partial(p);
    shore_shown_release_all(p->shown);
}
