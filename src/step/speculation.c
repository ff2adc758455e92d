#include "step/speculation.h"

#include <assert.h>

#define ROOM_TO_SPARE 0.8

void shore__norms_remember(struct shore__recent_norms *recent, double norm) {
    assert(recent->count < 2 * SHORE__RECENT_NORMS);
    recent->norm[recent->count++ % SHORE__RECENT_NORMS] = norm;
    if (recent->count >= 2 * SHORE__RECENT_NORMS) recent->count -= SHORE__RECENT_NORMS;
}

bool shore__speculation_pays(const struct shore__recent_norms *recent, double limit) {
    if (!(limit > 0)) return true;
    if (!recent->count) return false;
    for (uint32_t i = 0; i < recent->count && i < SHORE__RECENT_NORMS; i++)
        if (!(recent->norm[i] < ROOM_TO_SPARE * limit)) return false;
    return true;
}

enum shore__unit_way shore__unit_way(const struct shore__unit_facts *f) {
    bool has_room = f->stays || f->fits;
    if (f->host_update) return UNIT_GOES_ASIDE;
    if (f->goes_on && !f->more && !f->state_is_here)
        return has_room || f->computes_again ? UNIT_IS_SENT : UNIT_IS_SENT_AND_GOES_ASIDE;
    if (f->speculated && !f->goes_on && f->may_be_gone) return UNIT_IS_GIVEN_UP;
    return has_room ? UNIT_IS_HELD : UNIT_GOES_ASIDE;
}
