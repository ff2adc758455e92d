#include "pass/parameters.h"

#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"

/* The pools of pages; each tail has one of its own, and so is fetched after its update: it shares a segment with the
 * last slice of a table. */
enum { LAYERS, SLICES, FIRST_TAIL, LAST_TAIL, POOLS };
#define NO_PAGE UINT32_MAX

/* Of a pool, the page that was given last. */
struct given {
    uint32_t page;           /* or NO_PAGE */
    shore__buf there;        /* where pages are put, if the device does not see the host's memory */
    struct shore__event put; /* the last; of no stream: none */
};

struct shore__parameters {
    const struct shore__model *m;
    struct shore__compute *c;
    struct shore__stream *stream;
    const struct shore__memory *memory;
    struct shore_pages *pages;
    struct given given[POOLS];
    shore__buf prepared_layer, prepared_slice, prepared_tail[2];
};

static uint32_t pool_of(struct shore__page_id id) {
    if (id.kind == SHORE__PAGE_TAIL) return id.block ? LAST_TAIL : FIRST_TAIL;
    return id.kind == SHORE__PAGE_LAYER ? LAYERS : SLICES;
}

/* ---- opening -------------------------------------------------------------------------------------------------------
 */

static void place(struct shore__parameters *p) {
    static const struct {
        const char *name;
        uint32_t index;
    } there[POOLS] = {{"layer there", 0}, {"slice there", 0}, {"tail there", 0}, {"tail there", 1}};
    for (uint32_t i = 0; i < POOLS; i++)
        p->given[i] = (struct given){NO_PAGE, shore__memory_at(p->memory, there[i].name, there[i].index), {NULL, 0}};
    p->prepared_layer = shore__memory_at(p->memory, "prepared layer", 0);
    p->prepared_slice = shore__memory_at(p->memory, "prepared slice", 0);
    for (uint32_t i = 0; i < 2; i++)
        p->prepared_tail[i] = shore__memory_at(p->memory, "prepared tail", i);
}

static int open_pages(struct shore__parameters *p, const struct shore__parameters_of *of,
                      const struct shore__residency *r, struct shore_diag *diag) {
    uint32_t n = shore__pages_count(p->m);
    void *buffers[POOLS][2], *tail;
    struct shore_pages_pool pools[POOLS];
    struct shore_pages_range *ranges = calloc(n, sizeof *ranges);
    if (!ranges) return shore__fail(diag, -ENOMEM, "out of memory for the parameter pages");
    for (uint32_t i = 0; i < POOLS; i++)
        pools[i] = (struct shore_pages_pool){0, buffers[i]};
    for (uint32_t i = 0; i < 2; i++) {
        if ((buffers[LAYERS][i] = shore__memory_host(p->memory, "layer buffer", i))) pools[LAYERS].nbuffers++;
        if ((buffers[SLICES][i] = shore__memory_host(p->memory, "slice buffer", i))) pools[SLICES].nbuffers++;
        if ((tail = shore__memory_host(p->memory, "page", i)))
            buffers[FIRST_TAIL + i][pools[FIRST_TAIL + i].nbuffers++] = tail;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct shore__page_id id = shore__page_at(p->m, i);
        bool stays = id.kind != SHORE__PAGE_TAIL && shore__page_stays(p->m, r, id);
        ranges[i] = (struct shore_pages_range){.block = id.block, .pool = stays ? SHORE_PAGES_STAYS : pool_of(id)};
        if (stays) ranges[i].memory = shore__memory_host(p->memory, "page", i);
        shore__page_segments(p->m, id, &ranges[i].segment, &ranges[i].count);
    }
    const struct shore_pages_options options = {
        .size = sizeof options,
        .ranges = ranges,
        .nranges = n,
        .pools = pools,
        .npools = POOLS,
        .kind = p->c->mode == SHORE__F32 ? SHORE_FETCH_MASTER : SHORE_FETCH_BF16,
        .read = of->read,
        .read_ctx = of->read_ctx,
    };
    int rc = shore_pages_open(of->fleet, &options, &p->pages, diag);
    free(ranges);
    return rc;
}

int shore__parameters_open(const struct shore__parameters_of *of, struct shore__compute *c,
                           struct shore__stream *stream, const struct shore__residency *r,
                           const struct shore__memory *memory, struct shore__parameters **out,
                           struct shore_diag *diag) {
    struct shore__parameters *p = calloc(1, sizeof *p);
    if (!p) return shore__fail(diag, -ENOMEM, "out of memory for the parameter pages");
    *p = (struct shore__parameters){.m = of->model, .c = c, .stream = stream, .memory = memory};
    place(p);
    int rc = open_pages(p, of, r, diag);
    if (rc) {
        free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void shore__parameters_close(struct shore__parameters *p) {
    if (!p) return;
    shore_pages_close(p->pages);
    free(p);
}

struct shore_pages *shore__parameters_pages(struct shore__parameters *p) {
    return p->pages;
}

/* ---- pages that are given ------------------------------------------------------------------------------------------
 */

/* The device may still have to see it. What fails on the stream is said to who uses it next. */
static void release(struct shore__parameters *p, struct given *given) {
    if (given->page == NO_PAGE) return;
    if (given->put.stream) p->c->ops->wait(p->c, given->put, NULL);
    given->put.stream = NULL;
    shore_pages_release(p->pages, given->page);
    given->page = NO_PAGE;
}

static uint32_t release_page(struct shore__parameters *p, struct shore__page_id id) {
    uint32_t page = shore__page_number(p->m, id);
    struct given *given = &p->given[pool_of(id)];
    if (given->page == page) release(p, given);
    return page;
}

void shore__parameters_release(struct shore__parameters *p) {
    for (uint32_t i = 0; i < POOLS; i++)
        release(p, &p->given[i]);
}

/* Where the device sees a page. */
static int show(struct shore__parameters *p, struct given *given, const void *host, uint32_t segments, shore__buf *out,
                struct shore_diag *diag) {
    size_t bytes = (size_t)segments * SHORE_SEGMENT_ELEMS * (p->c->mode == SHORE__F32 ? 4 : 2);
    *out = shore__memory_seen(p->memory, host);
    if (!shore__buf_is_none(*out) || !bytes) return 0;
    *out = given->there;
    int rc = p->c->ops->put(p->c, p->stream, given->there, host, bytes);
    if (rc) return shore__fail(diag, rc, "parameters cannot be put: %s", shore_error_text(rc));
    given->put = p->c->ops->record(p->c, p->stream);
    return 0;
}

static int give(struct shore__parameters *p, struct shore__page_id id, shore__buf *raw, struct shore_diag *diag) {
    struct given *given = &p->given[pool_of(id)];
    uint32_t page = shore__page_number(p->m, id), segment, count;
    const void *host;
    release(p, given);
    int rc = shore_pages_get(p->pages, page, &host, diag);
    if (rc) return rc;
    given->page = page;
    shore__page_segments(p->m, id, &segment, &count);
    return show(p, given, host, count, raw, diag);
}

int shore__parameters_layer(struct shore__parameters *p, uint32_t layer, struct shore__weights *out,
                            struct shore_diag *diag) {
    shore__buf raw;
    int rc = give(p, (struct shore__page_id){SHORE__PAGE_LAYER, layer, 0}, &raw, diag);
    return rc ? rc : shore__block_prepare(p->m, p->c, p->stream, layer, raw, p->prepared_layer, out);
}

int shore__parameters_tail(struct shore__parameters *p, uint32_t block, struct shore__weights *out,
                           struct shore_diag *diag) {
    shore__buf raw;
    int rc = give(p, (struct shore__page_id){SHORE__PAGE_TAIL, block, 0}, &raw, diag);
    return rc ? rc : shore__block_prepare(p->m, p->c, p->stream, block, raw, p->prepared_tail[block ? 1 : 0], out);
}

int shore__parameters_slice(struct shore__parameters *p, uint32_t block, uint32_t slice, shore__buf *out,
                            struct shore_diag *diag) {
    shore__buf raw;
    int rc = give(p, (struct shore__page_id){SHORE__PAGE_SLICE, block, slice}, &raw, diag);
    return rc ? rc
              : shore__slice_prepare(p->m, p->c, p->stream, shore__model_slice(p->m, slice).rows, raw,
                                     p->prepared_slice, out);
}

/* A page that is asked for again when the step is another one is in use no more. */
static void want(struct shore__parameters *p, struct shore__page_id id) {
    uint32_t page = shore__page_number(p->m, id);
    if (shore_pages_want(p->pages, page) != SHORE_PAGE_LATER || p->given[pool_of(id)].page != page) return;
    release_page(p, id);
    shore_pages_want(p->pages, page);
}

void shore__parameters_want_layer(struct shore__parameters *p, uint32_t layer) {
    if (layer >= 1 && layer <= p->m->arch.n_layer) want(p, (struct shore__page_id){SHORE__PAGE_LAYER, layer, 0});
}

void shore__parameters_want_tail(struct shore__parameters *p, uint32_t block) {
    want(p, (struct shore__page_id){SHORE__PAGE_TAIL, block, 0});
}

void shore__parameters_want_slice(struct shore__parameters *p, uint32_t block, uint32_t slice) {
    if (slice < p->m->nslices) want(p, (struct shore__page_id){SHORE__PAGE_SLICE, block, slice});
}

/* ---- updates and loans ---------------------------------------------------------------------------------------------
 */

int shore__parameters_update(struct shore__parameters *p, struct shore__page_id id, struct shore_update *update,
                             struct shore_completion done) {
    return shore_pages_update(p->pages, release_page(p, id), update, done);
}

void shore__parameters_lend(struct shore__parameters *p, struct shore__page_id id, void *memory) {
    shore_pages_lend(p->pages, release_page(p, id), memory);
}
