/* Checks of requests to a fleet. */
#include <errno.h>

#include "drive/fleet/join.h"
#include "near/update.h"
#include "number/gather.h"

int shore__fleet_check_range(const struct shore_fleet *f, uint32_t block, uint32_t segment, uint32_t count) {
    if (block >= f->layout->nblocks || count == 0) return -EINVAL;
    uint32_t segments = f->layout->blocks[block].segments;
    return segment >= segments || count > segments - segment ? -EINVAL : 0;
}

bool shore__fleet_is_ready(struct shore_fleet *f) {
    pthread_mutex_lock(&f->lock);
    bool ready = f->ready;
    pthread_mutex_unlock(&f->lock);
    return ready;
}

bool shore__fleet_is_new(struct shore_fleet *f) {
    return f->united && !shore__fleet_is_ready(f);
}

bool shore_fleet_own(const struct shore_fleet *f, uint32_t block, uint32_t *segment, uint32_t *count) {
    *segment = *count = 0;
    for (uint32_t d = f->own_first; block < f->layout->nblocks && d < f->own_first + f->own_count; d++) {
        const struct shore__range *range = &f->ranges[(size_t)block * f->ndrives + d];
        if (!*count) *segment = range->first;
        *count += range->count;
    }
    return *count > 0;
}

const char *shore__update_left_out(const struct shore_fleet *f, const struct shore_update *update) {
    const struct shore_layout_block *block = &f->layout->blocks[update->block];
    bool corrects = shore__optimizer(f->config.optimizer)->corrects_bias;
    if (update->coefficient == 0)
        return "coefficient is 0, which would multiply the gradient by 0: 1 leaves it as it is";
    for (uint32_t t = 0; t < block->ntensors; t++) {
        const struct shore_hyper *h = &update->groups[block->tensors[t].group];
        if (corrects && !h->frozen && h->inv_sqrt_bias2 == 0)
            return "inv_sqrt_bias2 of a group is 0: shore_hyper_at_step() fills it in";
    }
    const struct shore__gather_list list = {update->gather, update->ngather};
    if (update->gather && update->form == SHORE_GRADIENT_SPARSE) return "a gather list cannot be of form SPARSE";
    return update->gather ? shore__gather_fault(&list, block) : NULL;
}
