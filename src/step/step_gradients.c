/* Arriving gradients: adds them to the norm, and decides where they wait for it. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/sized.h"
#include "drive/fleet/fleet.h"
#include "number/bf16.h"
#include "step/step_impl.h"

/* ---- the norm ---------------------------------------------------------------------------------------------------- */

void shore_step_forget(struct shore_step *s, uint32_t unit) {
    struct unit *u = shore__unit(s, unit);
    if (u->sent) s->stale = true;
    shore__step_wait_spills(s);
    shore__unit_uncount(u);
    bool sent = u->sent;
    shore__unit_clear(u);
    u->sent = sent;
}

/* Rounds a gradient to bf16. A table has a second place for the result, because its segments are complete at different
 * times. Any other gradient is rounded in place, a stretch at a time, from its start. */
static void narrow(float *gradient, uint16_t *to, size_t segments) {
    uint16_t stretch[4096];
    if ((void *)to != (void *)gradient) {
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < segments; i++)
            shore__bf16_from_f32(to + i * SHORE_SEGMENT_ELEMS, gradient + i * SHORE_SEGMENT_ELEMS, SHORE_SEGMENT_ELEMS);
        return;
    }
    for (size_t i = 0; i < segments * SHORE_SEGMENT_ELEMS; i += sizeof stretch / sizeof stretch[0]) {
        shore__bf16_from_f32(stretch, gradient + i, sizeof stretch / sizeof stretch[0]);
        memcpy(to + i, stretch, sizeof stretch);
    }
}

/* ---- arriving gradients ------------------------------------------------------------------------------------------ */

static int copy_gather(struct given *given, const struct shore_step_gradient *g, struct shore_diag *diag) {
    uint32_t n = g->ngather ? g->ngather : 1;
    if (n > given->gather_room) {
        struct shore_gather *room = realloc(given->gather, n * sizeof *room);
        if (!room) return shore__fail(diag, -ENOMEM, "out of memory for a list of gradients");
        given->gather = room;
        given->gather_room = n;
    }
    memcpy(given->gather, g->gather, g->ngather * sizeof *g->gather);
    given->ngather = g->ngather;
    return 0;
}

static uint64_t bytes_of(const struct unit *u) {
    static const uint64_t each[] = {[SHORE_DTYPE_FP32] = 4, [SHORE_DTYPE_BF16] = 2, [SHORE_DTYPE_FP16] = 2};
    uint64_t bytes = 0;
    if (u->now.gradient) return (uint64_t)u->is.count * SHORE_SEGMENT_ELEMS * sizeof *u->now.gradient;
    for (uint32_t i = 0; i < u->now.ngather; i++)
        bytes += u->now.gather[i].elems * each[u->now.gather[i].dtype];
    return bytes;
}

int shore_step_add(struct shore_step *s, uint32_t unit, const struct shore_step_gradient *given,
                   struct shore_diag *diag) {
    struct shore_step_gradient ours, *g = &ours;
    int rc = shore__sized_in(g, sizeof *g, given, "shore_step_gradient", diag);
    if (rc) return rc;
    if (!g->gradient && !g->gather) return shore__fail(diag, -EINVAL, "a gradient that is added has no memory");
    if (s->phase == PHASE_OVER || s->phase == PHASE_SUBMITTED)
        return shore__fail(diag, -EINVAL, "a gradient is added before a step has begun: call shore_step_begin() first");
    struct unit *u = shore__unit(s, unit);
    uint32_t segment = g->count ? g->segment : u->is.segment, count = g->count ? g->count : u->is.count;
    if (segment < u->is.segment || segment - u->is.segment > u->is.count ||
        count > u->is.count - (segment - u->is.segment) || (g->gather && count != u->is.count))
        return shore__fail(diag, -EINVAL, "a gradient that is added does not lie in its unit's segments");
    size_t skipped = (size_t)(segment - u->is.segment) * SHORE_SEGMENT_ELEMS;
    bool whole = count == u->is.count;
    if (whole && u->now.had) { /* it was added before */
        s->stale |= u->sent;
        shore__unit_uncount(u);
    }
    assert(!u->is.count || u->place != PLACE_LEAVING);
    if (g->gather) {
        rc = copy_gather(&u->now, g, diag);
        if (rc) return rc;
    }
    u->now.gathered = g->gather != NULL;
    u->now.gradient = g->gather ? NULL : g->gradient - skipped;
    u->bytes = u->buffer < 0 ? bytes_of(u) : 0;
    u->place = PLACE_HERE;
    u->now.had = true;
    u->stays = g->stays;
    u->more = g->more;
    u->leaves = false;
    shore__step_enter(s, PHASE_GATHERING);
    if (g->more || !count) return 0;
    shore__unit_count_range(u, segment, count);
    u->counted = true;
    if (s->options.form == SHORE_GRADIENT_BF16 && g->narrow) {
        narrow(g->gradient, g->narrow, count);
        u->now.narrow = g->narrow - skipped;
    }
    return 0;
}

int shore_step_groups(struct shore_step *s, uint32_t unit, const struct shore_hyper *groups, uint32_t ngroups) {
    struct unit *u = shore__unit(s, unit);
    struct given *given = &u->now;
    if (u->sent && (given->ngroups != ngroups || memcmp(given->groups, groups, ngroups * sizeof *groups) != 0))
        s->stale = true;
    if (ngroups > given->groups_room) {
        struct shore_hyper *room = realloc(given->groups, ngroups * sizeof *room);
        if (!room) return -ENOMEM;
        given->groups = room;
        given->groups_room = ngroups;
    }
    memcpy(given->groups, groups, ngroups * sizeof *groups);
    given->ngroups = ngroups;
    return 0;
}

/* ---- where they wait --------------------------------------------------------------------------------------------- */

/* aside: also of those that leave. */
static uint64_t held_bytes(const struct shore_step *s, bool aside) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->nunits; i++)
        bytes += aside || !s->units[i].leaves ? s->units[i].bytes : 0;
    return bytes;
}

uint64_t shore_step_bytes(const struct shore_step *s, uint32_t unit) {
    assert(unit < s->nunits);
    return s->units[unit].bytes;
}

/* Waits, as far as memory requires, until leaving gradients have left and nothing reads them. A gradient that left
 * earlier still counts until then, so what is put aside never depends on the speed of the drives. Starts with the last
 * units: backward completes them first. */
void shore_step_wait_for_room(struct shore_step *s, int64_t more_bytes, uint64_t room_bytes) {
    uint64_t held = held_bytes(s, true) + (uint64_t)more_bytes;
    bool aside;
    for (uint32_t i = s->nunits; i-- > 0 && held > room_bytes;) {
        uint64_t before = s->units[i].bytes;
        if (!before) continue;
        shore_step_aside(s, i, &aside, NULL);
        if (aside) shore_step_wait(s, i);
        held -= before - s->units[i].bytes;
    }
}

/* What was decided is so: every segment is in the attempt, or its gradient waits for the decision. */
static void check_way(struct unit *u, enum shore__unit_way decided) {
    const unsigned char *sent = u->step->sent + u->first;
    bool is_sent = decided == UNIT_IS_SENT || decided == UNIT_IS_SENT_AND_GOES_ASIDE;
    bool leaves = decided == UNIT_GOES_ASIDE || decided == UNIT_IS_SENT_AND_GOES_ASIDE;
    assert(!is_sent || !u->is.count || !memchr(sent, 0, u->is.count));
    pthread_mutex_lock(&u->step->mutex);
    assert(u->place == PLACE_HERE || (leaves && (u->place == PLACE_LEAVING || u->place == PLACE_ASIDE)));
    assert((u->place == PLACE_LEAVING) <= u->readers[u->step->hand].count);
    pthread_mutex_unlock(&u->step->mutex);
}

int shore_step_complete(struct shore_step *s, uint32_t unit, int64_t more_bytes, enum shore_step_way *way,
                        struct shore_diag *diag) {
    struct unit *u = shore__unit(s, unit);
    assert(u->now.had && u->place == PLACE_HERE);
    assert(s->ncompleted + !u->was_complete <= s->nunits);
    if (!u->more && !u->was_complete) s->completed[s->ncompleted++] = unit;
    u->was_complete |= !u->more;
    u->complete = true;
    int rc = shore__step_lost_something(s, diag);
    if (rc) return rc;
    const struct shore__unit_facts facts = {
        .host_update = s->options.host_update,
        .speculated = s->speculates,
        .goes_on = shore_step_speculates(s),
        .computes_again = s->options.computes_again,
        .more = u->more,
        .state_is_here = u->state != NULL,
        .may_be_gone = s->may_be_gone,
        .stays = u->stays || s->options.all_fit,
        .fits = s->options.nbuffers ? shore__buffers_left(s) >= SHORE__BUFFERS_TO_GO_ON
                                    : held_bytes(s, false) + (uint64_t)more_bytes <= s->options.room_bytes,
    };
    enum shore__unit_way decided = shore__unit_way(&facts);
    static const enum shore_step_way ways[] = {[UNIT_IS_SENT] = SHORE_STEP_SENT,
                                               [UNIT_IS_HELD] = SHORE_STEP_HELD,
                                               [UNIT_GOES_ASIDE] = SHORE_STEP_ASIDE,
                                               [UNIT_IS_SENT_AND_GOES_ASIDE] = SHORE_STEP_ASIDE,
                                               [UNIT_IS_GIVEN_UP] = SHORE_STEP_GIVEN_UP};
    *way = ways[decided];
    s->given_up |= decided == UNIT_IS_GIVEN_UP;
    s->may_be_gone |= decided == UNIT_IS_SENT && s->options.computes_again && !s->options.all_fit && !u->stays;
    if (decided == UNIT_IS_SENT || decided == UNIT_IS_SENT_AND_GOES_ASIDE) rc = shore__unit_send_all(u, 1, diag);
    u->leaves = *way == SHORE_STEP_ASIDE;
    if (!rc && u->leaves) rc = shore__unit_put_aside(u, diag);
    if (!rc) check_way(u, decided);
    uint64_t room = s->options.room_bytes + s->options.aside_bytes;
    if (room < s->options.aside_bytes) room = UINT64_MAX;
    if (!rc && !s->options.nbuffers) shore_step_wait_for_room(s, more_bytes, room);
    return rc;
}
