#include "train/speculation.h"

#define ROOM_TO_SPARE 0.8

void shore__speculation_begin(struct speculation *s, const struct shore_layout *layout, double limit, double *sums) {
    shore_clip_begin(&s->clip, layout, limit, sums);
    s->broken = false;
}

void shore__speculation_add(struct speculation *s, uint32_t block, uint32_t segment, uint32_t count,
                            const float *gradient) {
    bool below = shore_clip_add(&s->clip, block, segment, count, gradient);
    s->broken |= s->on && !below;
}

void shore__speculation_add_sums(struct speculation *s, uint32_t block, uint32_t segment, uint32_t count,
                                 const double *sums) {
    bool below = shore_clip_add_sums(&s->clip, block, segment, count, sums);
    s->broken |= s->on && !below;
}

struct shore_clipping shore__speculation_decide(struct speculation *s) {
    struct shore_clipping clipping = shore_clip_decide(&s->clip);
    s->norm = clipping.norm;
    return clipping;
}

void shore__speculation_remember(struct speculation *s, double norm) {
    s->recent[s->nrecent++ % RECENT_NORMS] = norm;
    if (s->nrecent >= 2 * RECENT_NORMS) s->nrecent -= RECENT_NORMS;
}

bool shore__speculation_pays(const struct speculation *s, double limit) {
    if (!(limit > 0)) return true;
    if (!s->nrecent) return false;
    for (uint32_t i = 0; i < s->nrecent && i < RECENT_NORMS; i++)
        if (!(s->recent[i] < ROOM_TO_SPARE * limit)) return false;
    return true;
}
