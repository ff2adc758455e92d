/* Opens and closes pages: checks what they are and where they may lie. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/sized.h"
#include "drive/fleet/fleet.h"
#include "stream/pages_impl.h"

/* Size of a buffer of the pool. */
static uint64_t buffer_bytes(const struct shore_pages_options *o, uint32_t pool) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < o->nranges; i++) {
        uint64_t bytes = o->ranges[i].pool == pool ? pages_bytes(o->ranges[i].kind, o->ranges[i].count) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

static uint64_t sum_bytes(const struct shore_pages_options *o) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < o->nranges; i++)
        if (o->ranges[i].pool == SHORE_PAGES_STAYS && !o->ranges[i].memory)
            sum += pages_bytes(o->ranges[i].kind, o->ranges[i].count);
    for (uint32_t i = 0; i < o->npools; i++)
        if (!o->pools[i].buffers) sum += o->pools[i].nbuffers * buffer_bytes(o, i);
    return sum;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static bool is_aligned(const void *memory) {
    return (uintptr_t)memory % SHORE_BUFFER_ALIGN_BYTES == 0;
}

static int check_range(const struct shore_fleet *fleet, const struct shore_pages_options *o, uint32_t i,
                       struct shore_diag *diag) {
    const struct shore_pages_range *r = &o->ranges[i];
    bool inside = true;
    if (fleet) {
        inside = r->block < fleet->layout->nblocks;
        inside = inside && (uint64_t)r->segment + r->count <= fleet->layout->blocks[r->block].segments;
    }
    if (!inside) return shore__fail(diag, -EINVAL, "page %u has segments that the layout does not have", i);
    if (r->kind != SHORE_FETCH_BF16 && r->kind != SHORE_FETCH_MASTER)
        return shore__fail(diag, -EINVAL, "page %u must hold SHORE_FETCH_BF16 or SHORE_FETCH_MASTER", i);
    if (r->pool == SHORE_PAGES_STAYS)
        return is_aligned(r->memory) ? 0 : shore__fail(diag, -EINVAL, "the memory of page %u is not aligned", i);
    if (r->pool >= o->npools || (r->count && !o->pools[r->pool].nbuffers))
        return shore__fail(diag, -EINVAL, "page %u belongs to a pool without buffers", i);
    return 0;
}

static int check(const struct shore_fleet *fleet, const struct shore_pages_options *o, struct shore_diag *diag) {
    int rc = 0;
    if (!fleet == !o->read)
        return shore__fail(diag, -EINVAL, "pages are read from a fleet or by a read function: give exactly one");
    for (uint32_t i = 0; !rc && i < o->nranges; i++)
        rc = check_range(fleet, o, i, diag);
    for (uint32_t i = 0; !rc && i < o->npools; i++)
        for (uint32_t b = 0; o->pools[i].buffers && b < o->pools[i].nbuffers; b++)
            if (!o->pools[i].buffers[b] || !is_aligned(o->pools[i].buffers[b]))
                rc = shore__fail(diag, -EINVAL, "buffer %u of pool %u is not aligned", b, i);
    return rc;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void lay_out(struct shore_pages *p, const struct shore_pages_options *o) {
    char *next = p->memory;
    struct buffer *buffer = p->buffers;
    for (uint32_t i = 0; i < p->npages; i++) {
        struct page *page = &p->pages[i];
        if (page->pool != SHORE_PAGES_STAYS || !page->count) continue;
        page->at = o->ranges[i].memory ? o->ranges[i].memory : next;
        if (!o->ranges[i].memory) next += pages_bytes(page->kind, page->count);
    }
    for (uint32_t i = 0; i < p->npools; i++) {
        p->pools[i] = (struct pool){buffer, o->pools[i].nbuffers};
        for (uint32_t b = 0; b < o->pools[i].nbuffers; b++, buffer++) {
            buffer->at = o->pools[i].buffers ? o->pools[i].buffers[b] : next;
            if (!o->pools[i].buffers) next += buffer_bytes(o, i);
        }
    }
    assert(!p->memory || next == (char *)p->memory + sum_bytes(o));
}

static void mark_shared(struct shore_pages *p) {
    for (uint32_t i = 0; i < p->npages; i++)
        for (uint32_t k = i + 1; k < p->npages; k++) {
            struct page *a = &p->pages[i], *b = &p->pages[k];
            if (page_meets(a, b->block, b->segment, b->segment + b->count)) a->shares = b->shares = true;
        }
}

static void mark_parted(struct shore_pages *p) {
    for (uint32_t i = 0; p->fleet && i < p->npages; i++) {
        struct page *page = &p->pages[i];
        uint32_t own, count;
        shore_fleet_own(p->fleet, page->block, &own, &count);
        page->parted = page->segment < own || page->segment + page->count > own + count;
    }
}

static int fill(struct shore_pages *p, const struct shore_pages_options *o) {
    uint64_t bytes = sum_bytes(o);
    uint32_t nbuffers = 0;
    for (uint32_t i = 0; i < o->npools; i++)
        nbuffers += o->pools[i].nbuffers;
    p->pages = calloc(p->npages ? p->npages : 1, sizeof *p->pages);
    p->pools = calloc(p->npools ? p->npools : 1, sizeof *p->pools);
    p->buffers = calloc(nbuffers ? nbuffers : 1, sizeof *p->buffers);
    if (bytes) p->memory = shore__arena_alloc(p->arena, bytes);
    if (!p->pages || !p->pools || !p->buffers || (bytes && !p->memory)) return -ENOMEM;
    for (uint32_t i = 0; i < p->npages; i++) {
        const struct shore_pages_range *r = &o->ranges[i];
        p->pages[i] = (struct page){.block = r->block,
                                    .segment = r->segment,
                                    .count = r->count,
                                    .pool = r->pool,
                                    .kind = r->kind,
                                    .step = SHORE__NO_STEP,
                                    .touched = SHORE__NO_STEP};
    }
    lay_out(p, o);
    mark_shared(p);
    mark_parted(p);
    return 0;
}

int shore_pages_open(struct shore_fleet *fleet, const struct shore_pages_options *options, struct shore_pages **out,
                     struct shore_diag *diag) {
    struct shore_pages_options o;
    *out = NULL;
    int rc = shore__sized_in(&o, sizeof o, options, "shore_pages_options", diag);
    if (!rc) rc = check(fleet, &o, diag);
    if (rc) return rc;
    struct shore_pages *p = calloc(1, sizeof *p);
    if (!p) return shore__fail(diag, -ENOMEM, "out of memory for the parameter pages");
    p->fleet = fleet;
    p->npages = o.nranges;
    p->npools = o.npools;
    p->arena = o.arena;
    rc = fill(p, &o);
    if (!rc && o.read) rc = shore__reader_open(o.read, o.read_ctx, &p->reader);
    if (rc) {
        shore_pages_close(p);
        return shore__fail(diag, rc, "the parameter pages get no memory, or no thread: %s", shore_error_text(rc));
    }
    *out = p;
    return 0;
}

void shore_pages_close(struct shore_pages *p) {
    if (!p) return;
    for (uint32_t i = 0; p->pages && i < p->npages; i++) {
        if (p->pages[i].loading) shore_wait(&p->pages[i].load, NULL);
        shore_pages_update_end(p, i);
        if (p->pages[i].updating) shore_wait(&p->pages[i].update, NULL);
    }
    shore__reader_close(p->reader);
    for (uint32_t i = 0; p->pages && i < p->npages; i++)
        free(p->pages[i].has);
    shore__arena_free(p->arena, p->memory);
    free(p->buffers);
    free(p->pools);
    free(p->pages);
    free(p);
}
