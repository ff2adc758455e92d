/* What is put into memory that is idle for a part of a step: a plan's last rows, which take no memory of their own. */
#include "plan/plan.h"

#define LATER_MOST 2u

static uint32_t layers_of(const struct shore_plan *plan) {
    return (uint32_t)plan->count[SHORE_ROLE_LAYER];
}

/* From the end of the layer's backward to the next step's forward up to it. */
static struct shore__lifetime after_backward(const struct shore_plan *plan, uint32_t layer) {
    return (struct shore__lifetime){shore__phase_backward(layers_of(plan), layer - 1), shore__phase_forward(layer - 1)};
}

/* Parameters that the next pass begins with: rows that lookups read, which a table has where no others do. */
static enum shore_role first_read(const struct shore_plan *plan) {
    return plan->count[SHORE_ROLE_LOOKUP] ? SHORE_ROLE_LOOKUP : SHORE_ROLE_TABLE;
}

static bool lend_page(struct shore_plan *plan, enum shore_role role, uint32_t nth, uint32_t after) {
    const struct shore__choice *c = &plan->choice;
    size_t kept = role == SHORE_ROLE_LAYER ? c->layers : role == SHORE_ROLE_TABLE ? c->tables : c->lookups;
    const struct shore_tensor *page = shore__plan_nth(plan, role, nth);
    return nth < kept || shore__regions_lend(&plan->rows, SHORE__ROW_LENT_PAGE, page->index, SHORE__REGION_PINNED,
                                             page->bytes, after_backward(plan, after));
}

/* Slices, then layers, that are lent after backward of layer `after`. False: there is no room for one of them. */
static bool lend_pages(struct shore_plan *plan, uint32_t later, uint32_t after) {
    const struct shore__choice *c = &plan->choice;
    struct shore__lending *lending = &plan->lending;
    enum shore_role slices = first_read(plan);
    size_t kept = slices == SHORE_ROLE_TABLE ? c->tables : c->lookups;
    uint32_t rows = plan->rows.count;
    *lending = (struct shore__lending){.later = later};
    bool all = true;
    for (uint32_t i = (uint32_t)kept; i < plan->count[slices]; i++) {
        if (!(all = lend_page(plan, slices, i, after))) break;
        if (!lending->slices++) lending->first_slice = i;
    }
    for (uint32_t l = 1; l <= (later ? later : 1) && l < layers_of(plan); l++) {
        if (!lend_page(plan, SHORE_ROLE_LAYER, l - 1, after)) {
            all = false;
            break;
        }
        lending->layers = l;
    }
    if (plan->rows.count > rows) lending->after = after;
    return all;
}

/* What the first layers' matrices need for their gradients, until the lookups are added. */
static bool lend_later(struct shore_plan *plan, uint32_t later) {
    uint32_t n = layers_of(plan);
    bool all = true;
    for (uint32_t l = 1; all && l <= later; l++) {
        const struct shore_tensor *left = shore__plan_nth(plan, SHORE_ROLE_LATER, l - 1);
        struct shore__lifetime live = {shore__phase_backward(n, l), shore__phase_backward(n, 0)};
        all = shore__regions_lend(&plan->rows, left->key, left->index, SHORE__REGION_DEVICE, left->bytes, live);
    }
    return all;
}

/* Images of the table's state lie where memory is idle first: those are fetched first. A row of them is of layer l if
 * backward of layer l may fetch into it, and forward of l + 1 waits until they are stored. */
static void lend_states(struct shore_plan *plan, uint32_t last_layer) {
    struct shore__lending *lending = &plan->lending;
    const struct shore_tensor *state = shore__plan_nth(plan, SHORE_ROLE_STATE, 0);
    if (!state) return;
    if (plan->choice.read_ahead) lending->most_states = state->most;
    for (uint32_t l = layers_of(plan), group = 0; l >= last_layer; l--)
        while (lending->states < lending->most_states) {
            struct shore__region *row = shore__regions_lend(&plan->rows, state->key, group, SHORE__REGION_PINNED,
                                                            state->bytes, after_backward(plan, l + 1));
            if (!row) break;
            shore__regions_grow(&plan->rows, row);
            uint64_t n = row->bytes / state->bytes, left = lending->most_states - lending->states;
            if (n > left) n = left;
            row->bytes = shore__arena_round(n * state->bytes);
            lending->states += (uint32_t)n;
            group++;
        }
}

/* Gradients that wait are products of what these layers keep. */
static void keep_until_lookups(struct shore_plan *plan, uint32_t later) {
    uint32_t n = layers_of(plan);
    for (uint32_t l = 1; l <= LATER_MOST && l <= n; l++) {
        struct shore__region *row = shore__regions_find(&plan->rows, SHORE__ROW_INNER_KEPT, l);
        if (row) row->live.to = shore__phase_backward(n, l <= later ? 0 : l);
    }
}

/* Each layer that waits holds a gradient buffer, and what comes before its gradients needs others. */
static uint32_t most_later(const struct shore_plan *plan) {
    bool table = plan->count[SHORE_ROLE_HELD] && plan->choice.held;
    uint32_t spare = table ? 1 : 2, most = (uint32_t)plan->choice.piece_buffers, n = layers_of(plan);
    most = most > spare ? most - spare : 0;
    if (most > LATER_MOST) most = LATER_MOST;
    return most < n ? most : n - 1;
}

/* With layers that wait: all pages, as soon as there is room, and all state that is wanted. */
static bool lend_all(struct shore_plan *plan, uint32_t later, uint32_t rows) {
    for (uint32_t after = layers_of(plan); after > later; after--) {
        shore__regions_cut(&plan->rows, rows);
        if (!lend_pages(plan, later, after) || !lend_later(plan, later)) continue;
        lend_states(plan, later);
        if (plan->lending.states == plan->lending.most_states) return true;
    }
    return false;
}

void shore__plan_lend(struct shore_plan *plan) {
    uint32_t rows = plan->rows.count, n = layers_of(plan);
    struct shore__lending *lending = &plan->lending, most;
    *lending = (struct shore__lending){0};
    if (!plan->count[SHORE_ROLE_LATER]) return;
    uint32_t later = most_later(plan);
    if (!plan->choice.inner) { /* then logits are all that is idle, too little for pages */
        lend_states(plan, n);
        return;
    }
    for (; later; later--) {
        keep_until_lookups(plan, later);
        if (lend_all(plan, later, rows)) return;
    }
    keep_until_lookups(plan, 0);
    shore__regions_cut(&plan->rows, rows);
    *lending = (struct shore__lending){0};
    if (n > 1) lend_pages(plan, 0, 2);
    most = *lending;
    for (uint32_t after = n; after >= 2; after--) { /* the same, as soon as there is room */
        shore__regions_cut(&plan->rows, rows);
        lend_pages(plan, 0, after);
        if (lending->slices == most.slices && lending->layers == most.layers) break;
    }
    lend_states(plan, 1);
}
