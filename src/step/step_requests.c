/* Requests that read gradients, and the memory that they read. Completions run on threads of the fleet, so all locking
 * of a step is in this file. */
#include <assert.h>
#include <errno.h>

#include "base/diag.h"
#include "base/units.h"
#include "step/step_impl.h"

static void end(struct readers *readers, int rc, const struct shore_diag *diag, bool spill) {
    struct shore_step *s = readers->unit->step;
    pthread_mutex_lock(&s->mutex);
    if (rc && rc != SHORE_EDISCARDED && (!s->failed || rc == SHORE_ELINK)) {
        s->failed = rc;
        if (diag)
            s->failure = *diag;
        else
            shore__fail(&s->failure, rc, "a drive failed: %s", shore_error_text(rc));
    }
    s->spill_failed |= spill && rc;
    assert(readers->count > 0 && (!spill || s->spills > 0));
    readers->count--;
    if (spill) {
        s->spills--;
        assert(readers->unit->place == PLACE_LEAVING);
        readers->unit->place = PLACE_ASIDE;
    }
    pthread_cond_broadcast(&s->ended);
    pthread_mutex_unlock(&s->mutex);
}

static void update_ended(void *ctx, int rc, const struct shore_diag *diag) {
    end(ctx, rc, diag, false);
}

static void spill_ended(void *ctx, int rc, const struct shore_diag *diag) {
    end(ctx, rc, diag, true);
}

struct shore_completion shore__unit_request(struct unit *u, bool spill) {
    struct shore_step *s = u->step;
    struct readers *readers = &u->readers[s->hand];
    pthread_mutex_lock(&s->mutex);
    assert(u->buffer < 0 || s->buffers[u->buffer].holds == u);
    assert(readers->count <= u->is.count + 1); /* at most one per segment, and one that puts all aside */
    readers->count++;
    if (u->buffer >= 0) s->buffers[u->buffer].released = true;
    if (spill) {
        assert(u->place == PLACE_HERE);
        u->place = PLACE_LEAVING;
        s->spills++;
    }
    pthread_mutex_unlock(&s->mutex);
    return (struct shore_completion){spill ? spill_ended : update_ended, readers};
}

void shore__unit_refused(struct unit *u, bool spill) {
    end(&u->readers[u->step->hand], 0, NULL, spill);
}

/* Waits, with the lock, until a request has ended. */
static void await(struct shore_step *s) {
    uint64_t since = shore__fleet_waits(s->fleet);
    pthread_cond_wait(&s->ended, &s->mutex);
    shore__fleet_waited(s->fleet, SHORE_LANE_DRIVE_UPDATE, since);
}

bool shore__unit_is_read(struct unit *u, bool made) {
    struct shore_step *s = u->step;
    pthread_mutex_lock(&s->mutex);
    bool is_read = u->readers[made ? 1 - s->hand : s->hand].count > 0;
    pthread_mutex_unlock(&s->mutex);
    return is_read;
}

void shore__step_drain(struct shore_step *s, bool made) {
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < s->nunits; i++)
        while (s->units[i].readers[made ? 1 - s->hand : s->hand].count)
            await(s);
    pthread_mutex_unlock(&s->mutex);
}

void shore__step_wait_spills(struct shore_step *s) {
    pthread_mutex_lock(&s->mutex);
    while (s->spills)
        await(s);
    pthread_mutex_unlock(&s->mutex);
}

int shore_step_failed(struct shore_step *s, struct shore_diag *diag) {
    pthread_mutex_lock(&s->mutex);
    int rc = s->failed;
    if (rc && diag) *diag = s->failure;
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

int shore__step_lost_something(struct shore_step *s, struct shore_diag *diag) {
    pthread_mutex_lock(&s->mutex);
    int rc = s->failed == SHORE_ELINK || s->spill_failed ? s->failed : 0;
    if (rc && diag) *diag = s->failure;
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

void shore__step_forget_failures(struct shore_step *s) {
    pthread_mutex_lock(&s->mutex);
    s->failed = 0;
    s->spill_failed = false;
    pthread_mutex_unlock(&s->mutex);
}

bool shore_step_needs(struct shore_step *s, uint32_t unit) {
    struct unit *u = shore__unit(s, unit);
    pthread_mutex_lock(&s->mutex);
    bool needs = u->readers[s->hand].count || u->place == PLACE_HERE || u->place == PLACE_LEAVING;
    pthread_mutex_unlock(&s->mutex);
    return needs;
}

void shore_step_wait(struct shore_step *s, uint32_t unit) {
    struct unit *u = shore__unit(s, unit);
    pthread_mutex_lock(&s->mutex);
    while (u->readers[0].count || u->readers[1].count)
        await(s);
    pthread_mutex_unlock(&s->mutex);
}

int shore_step_aside(struct shore_step *s, uint32_t unit, bool *aside, struct shore_diag *diag) {
    struct unit *u = shore__unit(s, unit);
    pthread_mutex_lock(&s->mutex);
    while (u->place == PLACE_LEAVING)
        await(s);
    *aside = u->place == PLACE_ASIDE;
    pthread_mutex_unlock(&s->mutex);
    if (*aside) u->bytes = 0;
    return *aside ? shore__step_lost_something(s, diag) : 0;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

void shore__buffers_begin(struct shore_step *s) {
    for (uint32_t i = 0; i < s->options.nbuffers; i++)
        s->buffers[i] = (struct buffer){0};
}

/* Prefers a buffer that this step has not used: while gradients stay in memory, a failed speculation needs no second
 * computation. */
static int find_buffer(const struct shore_step *s) {
    int found = -1;
    for (uint32_t i = 0; i < s->options.nbuffers; i++) {
        const struct buffer *b = &s->buffers[i];
        if (!b->holds) return (int)i;
        if (found < 0 && b->released && b->holds->complete && !b->holds->readers[s->hand].count) found = (int)i;
    }
    return found;
}

int shore__buffer_wait(struct shore_step *s) {
    int i;
    pthread_mutex_lock(&s->mutex);
    while ((i = find_buffer(s)) < 0 && !s->failed && !s->landing.count)
        await(s);
    pthread_mutex_unlock(&s->mutex);
    return i;
}

void shore__buffer_give(struct shore_step *s, int i, struct unit *u) {
    struct unit *before = s->buffers[i].holds;
    assert((uint32_t)i < s->options.nbuffers && (!before || before->buffer == i));
    if (before) {
        before->now.gradient = NULL;
        before->now.narrow = NULL;
        before->buffer = -1;
        if (before->place == PLACE_HERE) before->place = PLACE_GONE;
    }
    s->buffers[i] = (struct buffer){.holds = u};
    u->buffer = i;
}

void shore_step_give_back(struct shore_step *s, uint32_t unit) {
    struct unit *u = shore__unit(s, unit);
    assert(u->buffer >= 0 && s->buffers[u->buffer].holds == u && !shore__unit_is_read(u, false));
    s->buffers[u->buffer] = (struct buffer){0};
    u->buffer = -1;
    u->now.gradient = NULL;
    u->now.narrow = NULL;
}

uint32_t shore__buffers_left(const struct shore_step *s) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < s->options.nbuffers; i++)
        left += !s->buffers[i].holds || (s->buffers[i].released && s->buffers[i].holds->complete);
    return left;
}
