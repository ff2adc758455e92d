/* State that stays in memory from step to step, as far as there is room: an update need not read it from the drives.
 * First comes the unit that backward completes last and forward needs first, mostly an embedding: everything would wait
 * for its update. */
#include <assert.h>
#include <stdlib.h>

#include "base/diag.h"
#include "drive/fleet/fleet.h"
#include "step/step_impl.h"
#include "stream/stream.h"

#define LEAST_BYTES (UINT64_C(4) << 20) /* of one unit; less is not worth a request */

/* Images of the last segments of a unit. */
struct held_state {
    struct unit *unit;
    uint32_t segment, count;
    void *images;
    uint64_t bytes;
    uint64_t step; /* of the images, or SHORE__NO_STEP */
    bool is_coming, is_leaving;
    struct shore_wait coming, leaving;
    struct shore_completion part; /* of the page's update, which ends once the images are stored; or {NULL} */
};

/* Waits until nothing is under way. The commit reports the error of a failed store. */
static int settle(struct held_state *h) {
    struct shore_fleet *fleet = h->unit->step->fleet;
    int rc = h->is_coming ? shore__fleet_wait(fleet, SHORE_LANE_DRIVE_READ, &h->coming, NULL) : 0;
    if (h->is_leaving) shore__fleet_wait(fleet, SHORE_LANE_DRIVE_WRITE, &h->leaving, NULL);
    h->is_coming = h->is_leaving = false;
    return rc;
}

static void give_back(struct shore_step *s, uint32_t nth) {
    struct held_state *h = s->held[nth];
    assert(h->unit->state == h && h->bytes <= s->held_bytes);
    settle(h);
    h->unit->state = NULL;
    s->held_bytes -= h->bytes;
    shore_buffer_free(h->images, h->bytes);
    free(h);
    for (uint32_t i = nth; i + 1 < s->nheld; i++)
        s->held[i] = s->held[i + 1];
    s->nheld--;
}

void shore_step_shrink_state(struct shore_step *s, uint64_t room_bytes) {
    for (uint32_t i = s->nheld; i-- > 0;)
        if (s->held_bytes > room_bytes) give_back(s, i);
}

void shore__held_drop(struct shore_step *s) {
    while (s->nheld)
        give_back(s, s->nheld - 1);
}

uint64_t shore_step_state_bytes(const struct shore_step *s) {
    return s->held_bytes;
}

static void hold(struct shore_step *s, struct unit *u, uint32_t count) {
    uint64_t each = shore_fleet_state_bytes(s->fleet);
    struct held_state *h = calloc(1, sizeof *h);
    if (!h) return;
    *h = (struct held_state){.unit = u, .count = count, .bytes = count * each, .step = SHORE__NO_STEP};
    h->segment = u->is.segment + u->is.count - count;
    if (shore_buffer_alloc(h->bytes, 0, &h->images, NULL)) {
        free(h);
        return;
    }
    assert(!u->state && count && count <= u->is.count && s->nheld < s->nunits);
    u->state = h;
    s->held[s->nheld++] = h;
    s->held_bytes += h->bytes;
}

bool shore_step_hold_state(struct shore_step *s, uint64_t spare, uint64_t gradients_most, uint64_t aside) {
    uint64_t each = shore_fleet_state_bytes(s->fleet), room = spare;
    bool missing = false;
    if (gradients_most <= s->options.room_bytes) room += s->options.room_bytes - gradients_most + aside;
    shore_step_shrink_state(s, room);
    if (shore__addresses_away(&s->fleet->at)) return false;
    for (uint32_t i = s->ncompleted; i-- > 0;) {
        struct unit *u = &s->units[s->completed[i]];
        uint64_t left = room > s->held_bytes ? (room - s->held_bytes) / each : 0;
        uint32_t count = left < u->is.count ? (uint32_t)left : u->is.count;
        if (!u->state && u->is.nparts == 1 && count * each >= LEAST_BYTES &&
            shore__pages_hands_back(s->pages, u->is.part[0].page))
            hold(s, u, count);
    }
    for (uint32_t i = 0; i < s->nheld; i++)
        missing |= s->held[i]->step != s->base_step;
    return missing;
}

void shore_step_fetch_state(struct shore_step *s) {
    for (uint32_t i = 0; i < s->nheld; i++) {
        struct held_state *h = s->held[i];
        if (h->step == s->base_step) continue;
        settle(h);
        shore_wait_init(&h->coming);
        int rc = shore_fleet_fetch(s->fleet, s->base_step, h->unit->is.block, h->segment, h->count, SHORE_FETCH_STATE,
                                   h->images, shore_wait_completion(&h->coming));
        h->is_coming = !rc;
        h->step = rc ? SHORE__NO_STEP : s->base_step;
    }
}

void shore_step_forget_state(struct shore_step *s, uint32_t unit) {
    struct held_state *h = shore__unit(s, unit)->state;
    if (!h) return;
    settle(h);
    h->step = SHORE__NO_STEP;
}

bool shore__held_is_here(const struct unit *u) {
    return u->state && u->state->step == u->step->base_step;
}

static void stored(void *ctx, int rc, const struct shore_diag *diag) {
    struct held_state *h = ctx;
    struct shore_completion leaving = shore_wait_completion(&h->leaving);
    if (h->part.fn) h->part.fn(h->part.ctx, rc, diag);
    leaving.fn(leaving.ctx, rc, diag); /* last: from here on the images may be given back */
}

/* The unit's page has all new parameters once they were computed. If other segments are in the page, too, it is fetched
 * again, which waits for the store. */
void shore__held_update(struct unit *u, float coefficient, uint32_t *first) {
    struct shore_step *s = u->step;
    struct held_state *h = u->state;
    uint32_t page = u->is.part[0].page;
    struct shore_update update;
    struct shore_diag why = {.text = ""};
    assert(shore__held_is_here(u));
    h->step = SHORE__NO_STEP;
    if (settle(h) || shore__unit_fill(u, false, h->segment, h->count, coefficient, &update, &why)) return;
    struct shore_completion part = shore__unit_request(u, false);
    if (shore__pages_part(s->pages, page, &update, &part)) {
        shore__unit_refused(u, false);
        return;
    }
    int rc = shore_fleet_update_images(s->fleet, &update, h->images, &why);
    h->part = (struct shore_completion){NULL, NULL};
    if (rc || (update.params_out && u->is.count == shore__pages_segments(s->pages, page)))
        part.fn(part.ctx, 0, NULL);
    else
        h->part = part;
    if (rc) return;
    const struct shore_store store = {
        .size = sizeof store,
        .base_step = s->base_step,
        .attempt = update.attempt,
        .state = h->images,
        .block = u->is.block,
        .segment = h->segment,
        .count = h->count,
        .order = update.order,
    };
    shore_wait_init(&h->leaving);
    if (shore_fleet_store(s->fleet, &store, (struct shore_completion){stored, h})) {
        if (h->part.fn) h->part.fn(h->part.ctx, 0, NULL);
        return;
    }
    h->is_leaving = true;
    h->step = s->base_step + 1;
    *first = h->segment;
}

void shore__held_carried(struct unit *u) {
    if (shore__held_is_here(u)) u->state->step++;
}

void shore__held_discarded(struct shore_step *s) {
    struct shore_fleet_info info = {.size = sizeof info};
    shore_fleet_info(s->fleet, &info);
    for (uint32_t i = 0; i < s->nheld; i++) {
        struct held_state *h = s->held[i];
        if (h->step == info.step) continue;
        settle(h);
        h->step = SHORE__NO_STEP;
    }
}
