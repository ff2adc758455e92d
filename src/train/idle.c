/* Memory that is kept for inner activations is idle from a layer's backward until its next forward. What backward ends
 * with and the next forward pass begins with goes there meanwhile: parameters that UPDATE hands back, so that they need
 * not be fetched; and what the first layers' matrices need for their gradients, so that these can be computed while the
 * drives update the table. */
#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "train/trainer.h"

/* What lies in kept inner activations between a layer's backward and its next forward, so that the next forward pass
 * need not wait for what backward hands over last: the table, and the first layers. */
struct idle {
    uint32_t later;                /* layers 1 .. later: their matrices' gradients are computed after the lookups */
    uint32_t lend_after;           /* the layer whose backward is followed by lending; 0: none */
    uint32_t layers;               /* layers 1 .. layers are lent pages */
    uint32_t first_slice, nslices; /* and these slices of block 0 */
    uint32_t waiting;              /* bit mask of layers whose gradients wait in this step */
    uintptr_t pages, later_inner;  /* where they lie */
    struct shore__later *of_unit;  /* [later * units] */
    uintptr_t spare;               /* what is left of it */
    uint64_t spare_bytes;
};

#define LATER_MOST 2u

static uint64_t later_bytes(const struct trainer *t) {
    return shore__arena_round(shore__later_bytes(t->m, t->c->mode, t->plan.unit_rows));
}

static uint64_t page_bytes(const struct trainer *t, struct shore__page_id id) {
    return shore__page_bytes(t->m, t->c->mode, id);
}

/* Bytes that are idle once the layers above `layer` have run backward. */
static uint64_t idle_bytes(const struct trainer *t, uint32_t layer) {
    size_t pairs = (size_t)(t->m->arch.n_layer - layer) * t->plan.units;
    return shore__plan_kept_bytes(&t->facts, &t->plan, pairs < t->plan.kept_inner ? pairs : t->plan.kept_inner);
}

/* Lays the pages out for `later` layers; their bytes. Slices that have no room are left out. */
static uint64_t lay_out(const struct trainer *t, struct idle *idle, uint32_t later, uint64_t room) {
    const struct shore__residency *r = &t->plan.residency;
    uint64_t used = 0;
    *idle = (struct idle){.later = later};
    for (uint32_t i = 0; i < t->m->nslices; i++) {
        struct shore__page_id id = {SHORE__PAGE_SLICE, 0, i};
        if (shore__page_stays(t->m, r, id)) continue;
        if (used + page_bytes(t, id) > room) break;
        used += page_bytes(t, id);
        if (!idle->nslices++) idle->first_slice = i;
    }
    for (uint32_t l = 1; l <= (later ? later : 1) && l < t->m->arch.n_layer; l++) {
        struct shore__page_id id = {SHORE__PAGE_LAYER, l, 0};
        if (used + page_bytes(t, id) > room) break;
        if (!shore__page_stays(t->m, r, id)) used += page_bytes(t, id);
        idle->layers = l;
    }
    return used;
}

/* Each layer that waits holds a gradient buffer, and what comes before its gradients needs others. */
static uint32_t most_later(const struct trainer *t) {
    uint32_t spare = t->table_gradient ? 1 : 2, most = (uint32_t)t->plan.gradient_buffers;
    most = most > spare ? most - spare : 0;
    if (most > LATER_MOST) most = LATER_MOST;
    return most < t->m->arch.n_layer ? most : t->m->arch.n_layer - 1;
}

int shore__idle_open(struct trainer *t, uint64_t spare_wanted, struct shore_diag *diag) {
    struct idle *idle = t->idle = calloc(1, sizeof *idle);
    uint32_t layers = t->m->arch.n_layer;
    if (!idle) return shore__fail(diag, -ENOMEM, "out of memory for the trainer");
    if (!t->plan.kept_inner) return 0;
    uint32_t later = most_later(t);
    uint64_t pages = lay_out(t, idle, later, UINT64_MAX);
    while (later && pages + later * t->plan.units * later_bytes(t) + spare_wanted > idle_bytes(t, later))
        pages = lay_out(t, idle, --later, UINT64_MAX);
    if (!later) pages = lay_out(t, idle, 0, idle_bytes(t, 1));
    idle->pages = shore__memory_at(&t->memory, "inner kept", layers).handle;
    idle->later_inner = idle->pages + pages;
    idle->spare = idle->later_inner + later * t->plan.units * later_bytes(t);
    idle->spare_bytes = idle_bytes(t, 1) - (idle->spare - idle->pages);
    if (pages) /* as soon as there is room */
        for (idle->lend_after = layers; idle_bytes(t, idle->lend_after - 1) < pages;)
            idle->lend_after--;
    if (!later) return 0;
    idle->of_unit = calloc(later * t->plan.units, sizeof *idle->of_unit);
    return idle->of_unit ? 0 : shore__fail(diag, -ENOMEM, "out of memory for the trainer");
}

void shore__idle_close(struct idle *idle) {
    if (!idle) return;
    free(idle->of_unit);
    free(idle);
}

uintptr_t shore__idle_spare(const struct trainer *t, uint64_t *bytes) {
    *bytes = t->idle->spare_bytes;
    return t->idle->spare;
}

bool shore__idle_takes_back(const struct trainer *t, uint32_t layer) {
    return layer == t->idle->lend_after;
}

bool shore__idle_lends_slice(const struct trainer *t, uint32_t slice) {
    return slice - t->idle->first_slice < t->idle->nslices;
}

bool shore__idle_after_backward(struct trainer *t, uint32_t layer) {
    const struct idle *idle = t->idle;
    char *at = (char *)idle->pages; // NOLINT(performance-no-int-to-ptr): buffers are handles
    if (layer != idle->lend_after) return false;
    for (uint32_t i = 0; i < idle->nslices; i++) {
        struct shore__page_id id = {SHORE__PAGE_SLICE, 0, idle->first_slice + i};
        shore__pager_lend(t->pass.pager, id, at);
        at += page_bytes(t, id);
    }
    for (uint32_t l = 1; l <= idle->layers; l++) {
        struct shore__page_id id = {SHORE__PAGE_LAYER, l, 0};
        if (shore__page_stays(t->m, &t->plan.residency, id)) continue;
        shore__pager_lend(t->pass.pager, id, at);
        at += page_bytes(t, id);
    }
    return true;
}

bool shore__idle_has_spare(const struct trainer *t, uint32_t layer, uint64_t bytes) {
    return !bytes || t->idle->spare - t->idle->pages + bytes <= idle_bytes(t, layer);
}

int shore__idle_before_forward(struct trainer *t, uint32_t layer, struct shore_diag *diag) {
    return shore__idle_takes_back(t, layer) ? shore__pager_reclaim(t->pass.pager, diag) : 0;
}

/* Decided for the whole layer: its units are added up in order. */
void shore__idle_before_backward(struct trainer *t, uint32_t layer) {
    if (layer == t->m->arch.n_layer) t->idle->waiting = 0;
    if (layer <= t->idle->later && shore__speculation_goes_on(&t->speculation)) t->idle->waiting |= 1u << layer;
}

bool shore__idle_waits(const struct trainer *t, uint32_t layer) {
    return layer <= t->idle->later && (t->idle->waiting & 1u << layer);
}

struct shore__later *shore__idle_later(struct trainer *t, uint32_t layer, size_t u, bool kept, bool cheap_too,
                                       struct shore__inner *inner) {
    struct idle *idle = t->idle;
    if (!shore__idle_waits(t, layer)) return NULL;
    size_t nth = (layer - 1) * t->plan.units + u;
    shore__buf place = {idle->later_inner + nth * later_bytes(t)};
    idle->of_unit[nth] =
        shore__later_at(t->m, t->c->mode, shore__pass_unit_rows(&t->pass, u), place, kept, cheap_too, inner);
    return &idle->of_unit[nth];
}

struct shore__later *shore__idle_left(const struct trainer *t, uint32_t layer, size_t u) {
    return &t->idle->of_unit[(layer - 1) * t->plan.units + u];
}
