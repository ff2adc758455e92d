#include "train/gradient_way.h"

enum segment_way shore__segment_way(const struct segment_facts *s, uint32_t looked_up) {
    if (s->by_segment && looked_up != ALL_LOOKED_UP && s->due != looked_up)
        return s->due < looked_up ? SEGMENT_IS_GONE : SEGMENT_WAITS;
    if (s->by_segment && looked_up == ALL_LOOKED_UP && s->early) return SEGMENT_IS_GONE;
    return s->ahead ? SEGMENT_STAYS_HERE : SEGMENT_TO_DRIVE;
}

/* With less, backward would wait for a buffer, and so for the norm that only its end can tell. */
#define BUFFERS_TO_GO_ON 2u

enum piece_way shore__piece_way(const struct piece_facts *p) {
    if (p->host_update) return PIECE_IS_SPILLED;
    if (p->goes_on) return PIECE_TO_DRIVES;
    if (p->speculates && !p->all_fit) return PIECE_IS_GIVEN_UP;
    if (p->held || p->all_fit || p->left >= BUFFERS_TO_GO_ON) return PIECE_IS_HELD;
    return PIECE_IS_SPILLED;
}
