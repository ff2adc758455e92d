/* Opening, beginning and closing a step. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/sized.h"
#include "drive/fleet/fleet.h"
#include "number/norm.h"
#include "step/step_impl.h"

static const char *wrong_unit(const struct shore_layout *layout, const struct shore_step_unit *u) {
    uint32_t covered = 0;
    if (!u->count) return NULL;
    if (u->block >= layout->nblocks || u->segment >= layout->blocks[u->block].segments ||
        u->count > layout->blocks[u->block].segments - u->segment)
        return "is outside the layout";
    if (!u->nparts || u->nparts > SHORE_STEP_PARTS) return "has no parts, or more than SHORE_STEP_PARTS";
    for (uint32_t i = 0; i < u->nparts; i++) {
        if (u->part[i].segment != u->segment + covered) return "has parts that do not follow each other";
        covered += u->part[i].count;
    }
    return covered == u->count ? NULL : "has parts that are not all of it";
}

static int take_units(struct shore_step *s, struct shore_diag *diag) {
    const struct shore_step_options *options = &s->options;
    const struct shore_layout *layout = s->fleet->layout;
    s->nunits = options->nunits;
    for (uint32_t i = 0; i < s->nunits; i++) {
        struct unit *u = &s->units[i];
        const char *wrong = wrong_unit(layout, &options->units[i]);
        if (wrong) return shore__fail(diag, -EINVAL, "unit %u of a step %s", i, wrong);
        *u = (struct unit){.step = s, .is = options->units[i], .buffer = -1};
        u->readers[0].unit = u->readers[1].unit = u;
        u->first = shore__segments_before(layout, u->is.block) + u->is.segment;
    }
    return 0;
}

int shore_step_open(struct shore_fleet *fleet, struct shore_pages *pages, const struct shore_step_options *options,
                    struct shore_step **out, struct shore_diag *diag) {
    struct shore_step_options o;
    *out = NULL;
    int rc = shore__sized_in(&o, sizeof o, options, "shore_step_options", diag);
    if (rc) return rc;
    if (o.form != SHORE_GRADIENT_FP32 && o.form != SHORE_GRADIENT_BF16)
        return shore__fail(diag, -EINVAL, "a step sends gradients as FP32 or BF16; encode sends other forms");
    struct shore_step *s = *out = calloc(1, sizeof *s);
    if (!s) return shore__fail(diag, -ENOMEM, "out of memory for a step");
    s->options = o;
    s->fleet = fleet;
    s->pages = pages;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->ended, NULL);
    size_t n = o.nunits ? o.nunits : 1, segments = fleet->layout->segments;
    s->units = calloc(n, sizeof *s->units);
    s->completed = calloc(n, sizeof *s->completed);
    s->held = calloc(n, sizeof *s->held);
    s->sent = calloc(segments ? segments : 1, 1);
    s->clip.sums = o.sums ? o.sums : calloc(segments ? segments : 1, sizeof *s->clip.sums);
    s->buffers = calloc(o.nbuffers ? o.nbuffers : 1, sizeof *s->buffers);
    rc = !s->units || !s->completed || !s->held || !s->sent || !s->clip.sums || !s->buffers
             ? shore__fail(diag, -ENOMEM, "out of memory for a step")
             : take_units(s, diag);
    if (!rc) shore_clip_begin(&s->clip, fleet->layout, o.clip, s->clip.sums);
    if (!rc) return 0;
    s->nunits = 0;
    shore_step_close(s);
    *out = NULL;
    return rc;
}

static void free_given(struct given *given) {
    free(given->gather);
    free(given->groups);
}

void shore_step_close(struct shore_step *s) {
    if (!s) return;
    shore__land_nothing(s);
    shore__step_drain(s, false);
    shore__step_drain(s, true);
    shore__held_drop(s);
    for (uint32_t i = 0; i < s->nunits; i++) {
        free_given(&s->units[i].now);
        free_given(&s->units[i].made);
    }
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->ended);
    free(s->units);
    free(s->completed);
    free(s->held);
    free(s->sent);
    if (!s->options.sums) free(s->clip.sums);
    free(s->buffers);
    free(s->landing.items);
    free(s);
}

static bool begins_speculating(const struct shore_step *s) {
    if (s->again || s->options.host_update) return false;
    if (s->options.speculate != SHORE_SPECULATE_AUTO) return s->options.speculate == SHORE_SPECULATE_ON;
    return shore__speculation_pays(&s->recent, s->options.clip);
}

void shore_step_begin(struct shore_step *s, uint64_t base_step, bool again) {
    shore_step_drop(s);
    shore__step_enter(s, PHASE_GATHERING);
    s->base_step = base_step;
    s->again = again;
    s->speculates = begins_speculating(s);
    shore__buffers_begin(s);
}

void shore_step_clip_at(struct shore_step *s, double limit) {
    if (limit == s->options.clip) return;
    s->options.clip = s->clip.limit = limit;
    if (s->phase == PHASE_DECIDED) shore__step_enter(s, PHASE_GATHERING);
    if (!s->any_sent) s->speculates = begins_speculating(s);
}

void shore_step_drop(struct shore_step *s) {
    shore__land_nothing(s);
    if (s->any_sent) shore__step_discard(s);
    shore__step_wait_spills(s);
    for (uint32_t i = 0; i < s->nunits; i++)
        shore__unit_clear(&s->units[i]);
    shore_clip_begin(&s->clip, s->fleet->layout, s->options.clip, s->clip.sums);
    s->broken = s->stale = s->right = s->may_be_gone = s->given_up = false;
    shore__step_forget_failures(s);
    if (s->phase != PHASE_OVER) shore__step_enter(s, PHASE_GATHERING);
}

bool shore_step_has_sent(const struct shore_step *s) {
    return s->any_sent;
}
bool shore_step_speculated(const struct shore_step *s) {
    return s->right;
}

void shore_step_remember(struct shore_step *s, double norm) {
    shore__norms_remember(&s->recent, norm);
}

/* ---- a step was made --------------------------------------------------------------------------------------------- */

void shore_step_made(struct shore_step *s) {
    assert(!s->has_made || !s->options.keeps_made);
    shore__step_enter(s, PHASE_OVER);
    for (uint32_t i = 0; i < s->nunits; i++) {
        struct unit *u = &s->units[i];
        struct given before = u->made;
        u->now.here = u->place == PLACE_HERE && s->options.keeps_made;
        u->made = u->now;
        u->now = before;
        shore__unit_clear(u);
    }
    memset(s->sent, 0, s->fleet->layout->segments);
    s->any_sent = false;
    s->hand = 1 - s->hand;
    s->made_base = s->base_step++;
    s->has_made = true;
}

void shore_step_durable(struct shore_step *s) {
    s->has_made = false;
}

bool shore_step_made_needs(struct shore_step *s) {
    bool needs = false;
    for (uint32_t i = 0; i < s->nunits && !needs; i++)
        needs = shore__unit_is_read(&s->units[i], true);
    return needs || (s->has_made && s->options.keeps_made);
}

void shore_step_unmake(struct shore_step *s) {
    s->has_made = false;
    shore__step_discard(s);
    shore__step_drain(s, true);
    shore_step_drop(s);
}

bool shore_step_lost(struct shore_step *s) {
    bool aside = false;
    shore_fleet_discard(s->fleet);
    shore__step_drain(s, false);
    shore__step_drain(s, true);
    shore__held_discarded(s);
    shore_pages_forget(s->pages);
    memset(s->sent, 0, s->fleet->layout->segments);
    s->any_sent = s->stale = s->right = false;
    if (s->phase != PHASE_OVER) shore__step_enter(s, PHASE_GATHERING);
    shore__step_forget_failures(s);
    for (uint32_t i = 0; i < s->nunits; i++) {
        struct unit *u = &s->units[i];
        u->sent = false;
        aside |= u->place == PLACE_ASIDE || u->place == PLACE_LEAVING;
    }
    s->broken = s->speculates; /* complete gradients are sent when the step is decided */
    return aside;
}

static int send_made(struct unit *u, struct shore_diag *diag) {
    struct shore_step *s = u->step;
    struct shore_wait wait;
    struct shore_update update;
    int rc;
    shore_wait_init(&wait);
    if (u->made.had) {
        rc = shore__unit_fill(u, true, u->is.segment, u->is.count, u->made.coefficient, &update, diag);
        if (!rc) rc = shore_fleet_update(s->fleet, &update, shore_wait_completion(&wait));
    } else {
        rc = shore_fleet_carry(s->fleet, s->made_base, shore_fleet_attempt(s->fleet), u->is.block, u->is.segment,
                               u->is.count, shore_wait_completion(&wait));
    }
    if (rc) shore_wait_end(&wait, rc);
    int ended = shore__fleet_wait(s->fleet, SHORE_LANE_DRIVE_UPDATE, &wait, diag);
    return ended ? shore__fail(diag, ended, "a step cannot be made again: %s",
                               diag->text[0] ? diag->text : shore_error_text(ended))
                 : 0;
}

int shore_step_send_again(struct shore_step *s, bool *known, struct shore_diag *diag) {
    int rc = 0;
    *known = s->has_made && s->options.keeps_made;
    for (uint32_t i = 0; i < s->nunits; i++)
        *known &= !s->units[i].made.had || s->units[i].made.here;
    for (uint32_t i = 0; *known && !rc && i < s->nunits; i++)
        if (s->units[i].is.count) rc = send_made(&s->units[i], diag);
    return rc;
}
