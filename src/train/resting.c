#include "train/resting.h"

#include "base/diag.h"
#include "drive/counters.h"
#include "train/trainer.h"

uint32_t shore__resting_units(const struct shore__model *m, struct shore_step_unit *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < shore__pages_count(m); i++) {
        const struct shore__page_id id = shore__page_at(m, i);
        struct shore_step_unit u = {.block = id.block, .nparts = 1};
        shore__page_range(m, id, &u.segment, &u.count);
        if (!u.count || !shore__model_rests(m, id.block)) continue;
        u.part[0] = (struct shore_step_part){i, u.segment, u.count};
        if (out) out[n] = u;
        n++;
    }
    return n;
}

void shore__resting_tails(struct trainer *t) {
    for (uint32_t i = 0; i < shore__pages_count(t->m); i++) {
        const struct shore__page_id id = shore__page_at(t->m, i);
        if (id.kind == SHORE__PAGE_TAIL && t->m->blocks[id.block].tail_segments && shore__model_rests(t->m, id.block))
            shore_pages_carried(t->pass.pages, i, t->base_step + 1);
    }
}

int shore__resting_carry(struct trainer *t, struct shore_diag *diag) {
    uint64_t attempt = shore_fleet_attempt(t->fleet);
    struct shore_wait wait;
    shore_wait_init(&wait);
    for (uint32_t b = 0; b < t->m->nblocks; b++) {
        if (!shore__model_rests(t->m, b)) continue;
        shore_wait_add(&wait);
        int rc = shore_fleet_carry(t->fleet, t->base_step, attempt, b, 0, t->m->layout->blocks[b].segments,
                                   shore_wait_completion(&wait));
        if (rc) shore_wait_end(&wait, rc);
    }
    shore_wait_end(&wait, 0);
    return shore__fleet_wait(t->fleet, SHORE_LANE_DRIVE_UPDATE, &wait, diag);
}
