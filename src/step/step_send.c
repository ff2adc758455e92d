/* Sends gradients to the drives, or puts them aside there, and makes the step. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/diag.h"
#include "drive/fleet/fleet.h"
#include "step/step_impl.h"
#include "stream/stream.h"

/* ---- segments ---------------------------------------------------------------------------------------------------- */

static int refused(int rc, struct shore_diag *diag) {
    return shore__fail(diag, rc, "an update cannot be handed to the drives: %s", shore_error_text(rc));
}

/* Segments go into the attempt, once each. */
static void mark_sent(struct unit *u, uint32_t segment, uint32_t count) {
    unsigned char *sent = u->step->sent + u->first + (segment - u->is.segment);
    assert(!memchr(sent, 1, count));
    memset(sent, 1, count);
    u->sent = u->step->any_sent = true;
}

/* rests: see shore__unit_rests(); such segments are carried. */
static int send_run(struct unit *u, uint32_t page, uint32_t segment, uint32_t count, float coefficient, bool rests,
                    struct shore_diag *diag) {
    struct shore_step *s = u->step;
    struct shore_update update;
    int rc = rests ? 0 : shore__unit_fill(u, false, segment, count, coefficient, &update, diag);
    if (rc) return rc;
    if (s->options.leave) s->options.leave(s->options.ctx, page);
    struct shore_completion done = shore__unit_request(u, false);
    rc = rests ? shore__pages_carry(s->pages, page, s->base_step, shore_fleet_attempt(s->fleet), segment, count, done)
               : shore_pages_update(s->pages, page, &update, done);
    if (rc) {
        shore__unit_refused(u, false);
        return refused(rc, diag);
    }
    mark_sent(u, segment, count);
    return 0;
}

static uint32_t later(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}
static uint32_t sooner(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

int shore__unit_send(struct unit *u, uint32_t segment, uint32_t count, float coefficient, struct shore_diag *diag) {
    const unsigned char *sent = u->step->sent + u->first - u->is.segment;
    int rc = 0;
    for (uint32_t i = 0; !rc && i < u->is.nparts; i++) {
        const struct shore_step_part *part = &u->is.part[i];
        uint32_t end = part->segment + part->count, to = sooner(segment + count, end), n = 1;
        for (uint32_t at = later(segment, part->segment); !rc && at < to; at += n) {
            bool rests = shore__unit_rests(u, at);
            for (n = 1; at + n < to && sent[at + n] == sent[at] && shore__unit_rests(u, at + n) == rests;)
                n++;
            if (!sent[at]) rc = send_run(u, part->page, at, n, coefficient, rests, diag);
        }
        if (!rc && part->count && !memchr(sent + part->segment, 0, part->count))
            shore_pages_update_end(u->step->pages, part->page);
    }
    return rc;
}

int shore__unit_send_all(struct unit *u, float coefficient, struct shore_diag *diag) {
    struct shore_step *s = u->step;
    uint32_t end = u->is.segment + u->is.count, here = end;
    u->now.coefficient = coefficient;
    if (!shore__held_is_here(u)) return shore__unit_send(u, u->is.segment, u->is.count, coefficient, diag);
    if (s->options.leave) s->options.leave(s->options.ctx, u->is.part[0].page);
    shore__held_update(u, coefficient, &here);
    mark_sent(u, here, end - here);
    if (here == end) return shore__unit_send(u, u->is.segment, u->is.count, coefficient, diag);
    int rc = here > u->is.segment
                 ? send_run(u, u->is.part[0].page, u->is.segment, here - u->is.segment, coefficient, false, diag)
                 : 0;
    if (!rc) shore_pages_update_end(s->pages, u->is.part[0].page);
    return rc;
}

int shore__unit_put_aside(struct unit *u, struct shore_diag *diag) {
    struct shore_step *s = u->step;
    if (!u->is.count || u->place != PLACE_HERE) return 0;
    shore__unit_count(u);
    struct shore_completion done = shore__unit_request(u, true);
    enum shore_gradient_form form = u->now.narrow ? SHORE_GRADIENT_BF16 : SHORE_GRADIENT_FP32;
    int rc = u->now.gathered ? shore_fleet_spill_gathered(s->fleet, u->is.block, u->is.segment, u->is.count, form,
                                                          u->now.gather, u->now.ngather, done)
                             : shore_fleet_spill(s->fleet, u->is.block, u->is.segment, u->is.count, form,
                                                 u->now.narrow ? (const void *)u->now.narrow : u->now.gradient, done);
    if (!rc) return 0;
    shore__unit_refused(u, true);
    u->place = PLACE_HERE;
    return shore__fail(diag, rc, "gradients cannot be spilled: %s", shore_error_text(rc));
}

bool shore_step_speculates(const struct shore_step *s) {
    return s->speculates && !s->broken && !s->stale;
}

int shore_step_send(struct shore_step *s, uint32_t unit, uint32_t segment, uint32_t count, struct shore_diag *diag) {
    struct unit *u = shore__unit(s, unit);
    /* an update of held state is one of the whole unit */
    return shore_step_speculates(s) && !u->state ? shore__unit_send(u, segment, count, 1, diag) : 0;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

void shore__step_discard(struct shore_step *s) {
    shore_fleet_discard(s->fleet);
    shore__held_discarded(s);
    shore_pages_discarded(s->pages);
    shore__step_drain(s, false);
    memset(s->sent, 0, s->fleet->layout->segments);
    for (uint32_t i = 0; i < s->nunits; i++)
        s->units[i].sent = false;
    s->any_sent = s->stale = false;
}

static void count_units(struct shore_step *s) {
    for (uint32_t i = 0; i < s->nunits; i++)
        if (s->units[i].now.had) shore__unit_count(&s->units[i]);
}

static int all_landed(const struct shore_step *s, const char *what, struct shore_diag *diag) {
    if (!s->landing.count && !s->lands) return 0;
    return shore__fail(diag, -EINVAL, "a step is %s before its gradients have landed: call shore_step_land_all() first",
                       what);
}

int shore_step_count(struct shore_step *s, struct shore_diag *diag) {
    int rc = all_landed(s, "counted", diag);
    if (!rc) count_units(s);
    return rc;
}

struct shore_clipping shore_step_decide(struct shore_step *s) {
    count_units(s);
    s->clipping = shore_clip_decide(&s->clip);
    shore__step_enter(s, PHASE_DECIDED);
    return s->clipping;
}

static bool is_gone(const struct shore_step *s) {
    for (uint32_t i = 0; i < s->nunits; i++)
        if (s->units[i].place == PLACE_GONE) return true;
    return false;
}

void shore_step_carried(struct shore_step *s, uint32_t unit) {
    struct unit *u = shore__unit(s, unit);
    shore__held_carried(u);
    for (uint32_t i = 0; i < u->is.nparts; i++)
        shore_pages_carried(s->pages, u->is.part[i].page, s->base_step + 1);
}

/* Carries units without a gradient over unchanged. */
static int carry(struct shore_step *s, struct shore_diag *diag) {
    uint64_t attempt = shore_fleet_attempt(s->fleet);
    struct shore_wait wait;
    int rc = 0;
    shore_wait_init(&wait);
    for (uint32_t i = 0; !rc && i < s->nunits; i++) {
        struct unit *u = &s->units[i];
        if (u->now.had || !u->is.count) continue;
        assert(!memchr(s->sent + u->first, 1, u->is.count));
        shore_wait_add(&wait);
        rc = shore_fleet_carry(s->fleet, s->base_step, attempt, u->is.block, u->is.segment, u->is.count,
                               shore_wait_completion(&wait));
        if (rc) shore_wait_end(&wait, rc);
        s->any_sent = true;
    }
    shore_wait_end(&wait, 0);
    rc = shore__fleet_wait(s->fleet, SHORE_LANE_DRIVE_UPDATE, &wait, diag);
    if (rc && diag && !diag->text[0])
        shore__fail(diag, rc, "parameters without a gradient cannot be carried over to the new step: %s",
                    shore_error_text(rc));
    for (uint32_t i = 0; !rc && i < s->nunits; i++)
        if (!s->units[i].now.had || !s->units[i].is.count) shore_step_carried(s, i);
    return rc;
}

int shore_step_make(struct shore_step *s, struct shore_diag *diag) {
    if (s->phase != PHASE_DECIDED)
        return shore__fail(diag, -EINVAL, "a step is made before it was decided: call shore_step_decide() first");
    int rc = all_landed(s, "made", diag);
    if (rc) return rc;
    bool again = s->any_sent && (s->stale || s->clipping.coefficient != 1);
    s->right = s->any_sent && s->clipping.finite && !again;
    if (s->any_sent && (again || !s->clipping.finite)) shore__step_discard(s);
    if (!s->clipping.finite) {
        shore__step_wait_spills(s);
        return shore__fail(diag, SHORE_ENONFINITE, "the norm of the gradients is not finite");
    }
    if (again && is_gone(s)) return SHORE_STEP_AGAIN;
    shore__step_wait_spills(s);
    rc = shore__step_lost_something(s, diag);
    for (uint32_t i = 0; !rc && !s->options.host_update && i < s->nunits; i++) {
        struct unit *u = &s->units[i];
        if (u->now.had && u->is.count && (!u->sent || memchr(s->sent + u->first, 0, u->is.count)))
            rc = shore__unit_send_all(u, s->clipping.coefficient, diag);
        assert(rc || !u->now.had || !u->is.count || !memchr(s->sent + u->first, 0, u->is.count));
    }
    assert(!s->spills);
    if (!rc && !s->options.host_update) rc = carry(s, diag);
    if (!rc) shore__step_enter(s, PHASE_SUBMITTED);
    return rc;
}
