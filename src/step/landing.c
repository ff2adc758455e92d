/* Gradients on their way from a device. They land in the order in which they were called for: landed() first, then what
 * the step does with a gradient that has come. */
#include <errno.h>

#include "base/diag.h"
#include "base/sized.h"
#include "step/step_impl.h"

#define ROOM_ALIGN 64u

/* What the step does with a gradient that is here. */
static int take_in(struct shore_step *s, const struct landing *l, struct shore_diag *diag) {
    uint32_t unit = (uint32_t)(l->unit - s->units);
    const struct shore_step_gradient *g = l->is.gradient ? &l->gradient : NULL;
    enum shore_step_way way;
    int rc = s->options.landed ? s->options.landed(s->options.ctx, unit, l->is.tag, diag) : 0;
    if (rc) return rc == SHORE_STEP_TAKEN ? 0 : rc;
    if (g) rc = shore_step_add(s, unit, g, diag);
    if (!rc) rc = shore_step_failed(s, diag);
    if (rc) return rc;
    if (l->is.ends) return shore_step_complete(s, unit, 0, &way, diag);
    uint32_t segment = g && g->count ? g->segment : l->unit->is.segment;
    return g ? shore_step_send(s, unit, segment, g->count ? g->count : l->unit->is.count, diag) : 0;
}

/* Waits for the first copy, and lands it. */
static int land_first(struct shore_step *s, struct shore_diag *diag) {
    struct landing first;
    assert(s->landing.count && !s->lands);
    if (s->given_up) return SHORE_STEP_AGAIN;
    int rc = shore_device_wait(s->options.device, shore__fifo_event(&s->landing), diag);
    if (rc) return rc;
    shore__fifo_take(&s->landing, &first, sizeof first);
    s->lands = true;
    rc = take_in(s, &first, diag);
    s->lands = false;
    return !rc && s->given_up ? SHORE_STEP_AGAIN : rc;
}

/* Lands the copies that have come; all: waits for the others. */
static int land(struct shore_step *s, bool all, struct shore_diag *diag) {
    int rc = s->given_up ? SHORE_STEP_AGAIN : 0;
    while (!rc && !s->lands && s->landing.count &&
           (all || shore_device_passed(s->options.device, shore__fifo_event(&s->landing))))
        rc = land_first(s, diag);
    return rc;
}

int shore_step_land_all(struct shore_step *s, struct shore_diag *diag) {
    return land(s, true, diag);
}

void shore__land_nothing(struct shore_step *s) {
    for (struct landing first; s->landing.count; shore__fifo_take(&s->landing, &first, sizeof first))
        shore_device_wait(s->options.device, shore__fifo_event(&s->landing), NULL);
    s->next_bytes = 0;
}

/* Finds room behind the newest landing, or before the oldest one. */
static bool find_room(const struct shore_step *s, uint64_t bytes, uint64_t *at) {
    const struct landing *oldest = NULL, *newest = NULL;
    const struct landing *all = s->landing.items;
    for (size_t i = 0; i < s->landing.count; i++) {
        if (!all[i].bytes) continue;
        if (!oldest) oldest = &all[i];
        newest = &all[i];
    }
    *at = newest ? newest->at + newest->bytes : 0;
    if (newest && newest->at < oldest->at) return bytes <= oldest->at - *at;
    if (bytes <= s->options.landing_bytes - *at) return true;
    *at = 0;
    return oldest && bytes <= oldest->at;
}

int shore_step_land_at(struct shore_step *s, uint64_t bytes, uint64_t *at, struct shore_diag *diag) {
    uint64_t room = (bytes + ROOM_ALIGN - 1) / ROOM_ALIGN * ROOM_ALIGN;
    assert(!s->lands);
    s->next_bytes = 0; /* of one that was not called for */
    if (!bytes || room < bytes || room > s->options.landing_bytes)
        return shore__fail(diag, -EINVAL, "a gradient of %llu bytes cannot land in %llu bytes",
                           (unsigned long long)bytes, (unsigned long long)s->options.landing_bytes);
    int rc = land(s, false, diag);
    while (!rc && !find_room(s, room, at))
        rc = land_first(s, diag);
    if (rc) return rc;
    assert(*at <= s->options.landing_bytes && room <= s->options.landing_bytes - *at);
    s->next_at = *at;
    s->next_bytes = room;
    return 0;
}

int shore_step_land(struct shore_step *s, uint32_t unit, const struct shore_step_landing *given,
                    struct shore_diag *diag) {
    struct landing l = {.unit = shore__unit(s, unit), .at = s->next_at, .bytes = s->next_bytes};
    s->next_bytes = 0;
    assert(!s->lands);
    int rc = shore__sized_in(&l.is, sizeof l.is, given, "shore_step_landing", diag);
    if (!rc && l.is.gradient)
        rc = shore__sized_in(&l.gradient, sizeof l.gradient, l.is.gradient, "shore_step_gradient", diag);
    if (rc) return rc;
    if (!s->options.device || l.gradient.gather)
        return shore__fail(diag, -EINVAL, "a gradient lands from the step's device, as one range");
    l.until = l.is.until;
    if (!shore__fifo_add(&s->landing, &l, sizeof l))
        return shore__fail(diag, -ENOMEM, "out of memory for gradients that land");
    shore__device_expect(s->options.device, l.until);
    return land(s, false, diag);
}

int shore_step_take(struct shore_step *s, uint32_t unit, uint32_t *buffer, struct shore_diag *diag) {
    struct unit *u = shore__unit(s, unit);
    assert(u->buffer < 0 && u->place == PLACE_NONE);
    int i, rc = land(s, false, diag);
    while (!rc && (i = shore__buffer_wait(s)) < 0)
        rc = s->landing.count ? land_first(s, diag) : shore_step_failed(s, diag);
    if (rc) return rc;
    shore__buffer_give(s, i, u);
    *buffer = (uint32_t)i;
    return 0;
}
