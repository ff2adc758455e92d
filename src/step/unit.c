/* One unit: its share of the norm, and the contents of its updates. */
#include <assert.h>
#include <string.h>

#include "drive/fleet/fleet.h"
#include "drive/layout.h"
#include "step/step_impl.h"

void shore__unit_clear(struct unit *u) {
    assert(u->place != PLACE_LEAVING || !u->step->spills);
    u->now.gradient = NULL;
    u->now.narrow = NULL;
    u->now.ngather = u->now.ngroups = 0;
    u->now.gathered = u->now.had = u->now.here = false;
    u->place = PLACE_NONE;
    u->counted = u->stays = u->more = u->sent = u->complete = u->leaves = false;
    u->buffer = -1;
    u->bytes = 0;
}

void shore__unit_uncount(struct unit *u) {
    struct shore_step *s = u->step;
    double running = 0;
    if (!u->counted) return;
    u->counted = false;
    memset(s->clip.sums + u->first, 0, u->is.count * sizeof *s->clip.sums);
    for (uint64_t i = 0; i < s->fleet->layout->segments; i++)
        running += s->clip.sums[i];
    s->clip.running_sum = running;
}

void shore__unit_count_range(struct unit *u, uint32_t segment, uint32_t count) {
    struct shore_step *s = u->step;
    bool below;
    if (u->now.gathered)
        below = shore_clip_add_gathered(&s->clip, u->is.block, segment, count, u->now.gather, u->now.ngather);
    else
        below = shore_clip_add(&s->clip, u->is.block, segment, count,
                               u->now.gradient + (size_t)(segment - u->is.segment) * SHORE_SEGMENT_ELEMS);
    s->broken |= s->speculates && !below;
}

void shore__unit_count(struct unit *u) {
    if (u->counted || !u->is.count) return;
    assert(u->place == PLACE_HERE && !u->now.narrow);
    shore__unit_count_range(u, u->is.segment, u->is.count);
    u->counted = true;
}

bool shore__unit_rests(const struct unit *u, uint32_t segment) {
    const struct shore_layout_block *block = &u->step->fleet->layout->blocks[u->is.block];
    uint64_t begin = (uint64_t)segment * SHORE_SEGMENT_ELEMS, end = begin + SHORE_SEGMENT_ELEMS;
    uint32_t t = shore__layout_tensor_at(block, begin);
    if (block->tensors[t].offset_elems + block->tensors[t].elems <= begin) t++;
    for (; t < block->ntensors && block->tensors[t].offset_elems < end; t++) {
        uint32_t group = block->tensors[t].group;
        if (group >= u->now.ngroups || !u->now.groups[group].frozen) return false;
    }
    return true;
}

int shore__unit_fill(struct unit *u, bool made, uint32_t segment, uint32_t count, float coefficient,
                     struct shore_update *out, struct shore_diag *diag) {
    struct shore_step *s = u->step;
    const struct given *given = made ? &u->made : &u->now;
    size_t skipped = (size_t)(segment - u->is.segment) * SHORE_SEGMENT_ELEMS;
    assert(count && segment >= u->is.segment && count <= u->is.count - (segment - u->is.segment));
    *out = (struct shore_update){
        .size = sizeof *out,
        .base_step = made ? s->made_base : s->base_step,
        .attempt = shore_fleet_attempt(s->fleet),
        .block = u->is.block,
        .segment = segment,
        .count = count,
        .form = given->narrow || (!made && u->place == PLACE_ASIDE) ? s->options.form : SHORE_GRADIENT_FP32,
        .coefficient = coefficient,
        .groups = given->groups,
        .ngroups = given->ngroups,
        .order = u->is.block, /* blocks that forward needs first go first */
    };
    int rc = s->options.encode ? s->options.encode(s->options.ctx, (uint32_t)(u - s->units), segment, out, diag)
                               : SHORE_STEP_WHOLE;
    if (rc != SHORE_STEP_WHOLE) return rc;
    if (!made && u->place == PLACE_ASIDE) return 0; /* the drives have the gradient */
    if (given->gathered) {
        out->gather = given->gather;
        out->ngather = given->ngather;
    } else {
        assert(given->narrow || given->gradient); /* without one, drives would use the gradient that was put aside */
        out->gradient = given->narrow ? (const void *)(given->narrow + skipped) : given->gradient + skipped;
    }
    return 0;
}
