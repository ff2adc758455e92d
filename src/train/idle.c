/* Memory that is kept for inner activations is idle from a layer's backward until its next forward. What backward ends
 * with and the next forward pass begins with goes there meanwhile: parameters that UPDATE hands back, so that they need
 * not be fetched; and what the first layers' matrices need for their gradients, so that these can be computed while the
 * drives update the table. */
#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "train/trainer.h"

/* Of what the plan lends (plan.lending). */
struct idle {
    uint32_t waiting;             /* bit mask of layers whose gradients wait in this step */
    struct shore__later *of_unit; /* [later * units] */
};

int shore__idle_open(struct trainer *t, struct shore_diag *diag) {
    struct idle *idle = t->idle = calloc(1, sizeof *idle);
    size_t units = t->plan.lending.later * t->plan.units;
    if (idle && units) idle->of_unit = calloc(units, sizeof *idle->of_unit);
    return idle && (idle->of_unit || !units) ? 0 : shore__fail(diag, -ENOMEM, "out of memory for the trainer");
}

void shore__idle_close(struct idle *idle) {
    if (!idle) return;
    free(idle->of_unit);
    free(idle);
}

bool shore__idle_takes_back(const struct trainer *t, uint32_t layer) {
    return layer == t->plan.lending.after;
}

bool shore__idle_lends_slice(const struct trainer *t, uint32_t slice) {
    return slice - t->plan.lending.first_slice < t->plan.lending.slices;
}

bool shore__idle_after_backward(struct trainer *t, uint32_t layer) {
    if (layer != t->plan.lending.after) return false;
    for (uint32_t i = 0; i < shore__pages_count(t->m); i++) {
        void *memory = shore__memory_host(&t->memory, SHORE__ROW_LENT_PAGE, i);
        if (memory) shore__parameters_lend(t->pass.parameters, shore__page_at(t->m, i), memory);
    }
    return true;
}

int shore__idle_before_forward(struct trainer *t, uint32_t layer, struct shore_diag *diag) {
    if (!shore__idle_takes_back(t, layer)) return 0;
    shore__parameters_release(t->pass.parameters);
    return shore_pages_reclaim(t->pass.pages, diag);
}

/* Decided for the whole layer: its units are added up in order. */
void shore__idle_before_backward(struct trainer *t, uint32_t layer) {
    if (layer == t->m->arch.n_layer) t->idle->waiting = 0;
    if (layer <= t->plan.lending.later && shore_step_speculates(t->step)) t->idle->waiting |= 1u << layer;
}

bool shore__idle_waits(const struct trainer *t, uint32_t layer) {
    return layer <= t->plan.lending.later && (t->idle->waiting & 1u << layer);
}

struct shore__later *shore__idle_later(struct trainer *t, uint32_t layer, size_t u, bool kept, bool cheap_too,
                                       struct shore__inner *inner) {
    struct idle *idle = t->idle;
    if (!shore__idle_waits(t, layer)) return NULL;
    size_t nth = (layer - 1) * t->plan.units + u;
    shore__buf place =
        shore__at(shore__memory_at(&t->memory, SHORE__ROW_LATER, layer), u * shore__plan_later_bytes(&t->facts));
    idle->of_unit[nth] =
        shore__later_at(t->m, t->c->mode, shore__pass_unit_rows(&t->pass, u), place, kept, cheap_too, inner);
    return &idle->of_unit[nth];
}

struct shore__later *shore__idle_left(const struct trainer *t, uint32_t layer, size_t u) {
    return &t->idle->of_unit[(layer - 1) * t->plan.units + u];
}
