/* What is put into memory that is idle for a part of a step: a plan's last rows, which take no memory of their own. */
#include "plan/training_sum.h"

#define LATER_MOST 2u

/* From the end of the layer's backward to the next step's forward up to it. */
static struct shore__lifetime after_backward(const struct shore__sizing *z, uint32_t layer) {
    uint32_t n = z->f->model->arch.n_layer;
    return (struct shore__lifetime){shore__phase_backward(n, layer - 1), shore__phase_forward(layer - 1)};
}

static bool lend_page(const struct shore__sizing *z, struct shore__page_id id, uint32_t after) {
    const struct shore__model *m = z->f->model;
    return shore__page_stays(m, &z->plan->residency, id) ||
           shore__regions_lend(z->rows, SHORE__ROW_LENT_PAGE, shore__page_number(m, id), SHORE__REGION_PINNED,
                               shore__page_bytes(m, z->f->mode, id), after_backward(z, after));
}

/* Slices, then layers, that are lent after backward of layer `after`. False: there is no room for one of them. */
static bool lend_pages(struct shore__sizing *z, uint32_t later, uint32_t after) {
    const struct shore__model *m = z->f->model;
    struct shore__lending *lending = &z->plan->lending;
    uint32_t rows = z->rows->count;
    *lending = (struct shore__lending){.later = later};
    bool all = true;
    for (uint32_t i = 0; i < m->nslices; i++) {
        struct shore__page_id id = {SHORE__PAGE_SLICE, 0, i};
        if (shore__page_stays(m, &z->plan->residency, id)) continue;
        if (!(all = lend_page(z, id, after))) break;
        if (!lending->slices++) lending->first_slice = i;
    }
    for (uint32_t l = 1; l <= (later ? later : 1) && l < m->arch.n_layer; l++) {
        if (!lend_page(z, (struct shore__page_id){SHORE__PAGE_LAYER, l, 0}, after)) {
            all = false;
            break;
        }
        lending->layers = l;
    }
    if (z->rows->count > rows) lending->after = after;
    return all;
}

/* What the first layers' matrices need for their gradients, until the lookups are added. */
static bool lend_later(struct shore__sizing *z, uint32_t later) {
    const struct shore__facts *f = z->f;
    uint32_t n = f->model->arch.n_layer;
    bool all = true;
    for (uint32_t l = 1; all && l <= later; l++) {
        struct shore__lifetime live = {shore__phase_backward(n, l), shore__phase_backward(n, 0)};
        all = shore__regions_lend(z->rows, SHORE__ROW_LATER, l, SHORE__REGION_DEVICE,
                                  z->plan->units * shore__plan_later_bytes(f), live);
    }
    return all;
}

/* Images of the table's state lie where memory is idle first: those are fetched first. A row of them is of layer l if
 * backward of layer l may fetch into it, and forward of l + 1 waits until they are stored. */
static void lend_states(struct shore__sizing *z, uint32_t last_layer) {
    const struct shore__facts *f = z->f;
    const struct shore__model *m = f->model;
    struct shore__lending *lending = &z->plan->lending;
    uint64_t image = shore__plan_state_bytes(f);
    /* those that hold nothing but rows of the table */
    if (z->plan->read_ahead)
        lending->most_states = (uint32_t)((uint64_t)m->arch.vocab * m->arch.d_model / SHORE_SEGMENT_ELEMS);
    for (uint32_t l = m->arch.n_layer, group = 0; l >= last_layer; l--)
        while (lending->states < lending->most_states) {
            struct shore__region *row = shore__regions_lend(z->rows, SHORE__ROW_TABLE_STATE, group,
                                                            SHORE__REGION_PINNED, image, after_backward(z, l + 1));
            if (!row) break;
            shore__regions_grow(z->rows, row);
            uint64_t n = row->bytes / image, left = lending->most_states - lending->states;
            if (n > left) n = left;
            row->bytes = shore__arena_round(n * image);
            lending->states += (uint32_t)n;
            group++;
        }
}

/* Gradients that wait are products of what these layers keep. */
static void keep_until_lookups(struct shore__sizing *z, uint32_t later) {
    uint32_t n = z->f->model->arch.n_layer;
    for (uint32_t l = 1; l <= LATER_MOST && l <= n; l++)
        shore__regions_find(z->rows, SHORE__ROW_INNER_KEPT, l)->live.to = shore__phase_backward(n, l <= later ? 0 : l);
}

/* Each layer that waits holds a gradient buffer, and what comes before its gradients needs others. */
static uint32_t most_later(const struct shore__sizing *z) {
    bool table = z->f->model->arch.tied && z->plan->hold_table_gradient;
    uint32_t spare = table ? 1 : 2, most = (uint32_t)z->plan->gradient_buffers, n = z->f->model->arch.n_layer;
    most = most > spare ? most - spare : 0;
    if (most > LATER_MOST) most = LATER_MOST;
    return most < n ? most : n - 1;
}

/* With layers that wait: all pages, as soon as there is room, and all state that is wanted. */
static bool lend_all(struct shore__sizing *z, uint32_t later, uint32_t rows) {
    for (uint32_t after = z->f->model->arch.n_layer; after > later; after--) {
        shore__regions_cut(z->rows, rows);
        if (!lend_pages(z, later, after) || !lend_later(z, later)) continue;
        lend_states(z, later);
        if (z->plan->lending.states == z->plan->lending.most_states) return true;
    }
    return false;
}

void shore__plan_lend(struct shore__sizing *z) {
    uint32_t rows = z->rows->count, n = z->f->model->arch.n_layer, later = most_later(z);
    struct shore__lending *lending = &z->plan->lending, most;
    *lending = (struct shore__lending){0};
    if (!z->plan->kept_inner) { /* then logits are all that is idle, too little for pages */
        lend_states(z, n);
        return;
    }
    for (; later; later--) {
        keep_until_lookups(z, later);
        if (lend_all(z, later, rows)) return;
    }
    keep_until_lookups(z, 0);
    shore__regions_cut(z->rows, rows);
    *lending = (struct shore__lending){0};
    if (n > 1) lend_pages(z, 0, 2);
    most = *lending;
    for (uint32_t after = n; after >= 2; after--) { /* the same, as soon as there is room */
        shore__regions_cut(z->rows, rows);
        lend_pages(z, 0, after);
        if (lending->slices == most.slices && lending->layers == most.layers) break;
    }
    lend_states(z, 1);
}
