/* Requests of a store: the caller's thread begins them, the fleet's threads end them. */
#include <assert.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/fleet/fleet.h"
#include "store/store_impl.h"

#define KEPT_PARTS 4u /* while one of them is free, a store that keeps writes nothing */

void shore__store_wait(struct shore_activation_store *s, uint64_t *waited_ns) {
    uint64_t start = shore__fleet_waits(s->fleet);
    pthread_cond_wait(&s->changed, &s->lock);
    *waited_ns += shore__now_ns() - start;
    shore__fleet_waited(s->fleet,
                        waited_ns == &s->counts.waited_take_ns ? SHORE_LANE_DRIVE_WRITE : SHORE_LANE_DRIVE_READ, start);
}

static void say(struct shore_diag *out, int rc, const struct shore_diag *diag) {
    if (diag)
        *out = *diag;
    else
        shore__fail(out, rc, "%s", shore_error_text(rc));
}

static void end_write(struct entry *e, int rc, const struct shore_diag *diag) {
    struct shore_activation_store *s = e->store;
    shore__entry_enter(e, rc ? ENTRY_WAITING : ENTRY_STORED);
    if (!rc) s->counts.written_bytes += e->bytes;
    if (rc && !s->failed) {
        s->failed = rc;
        say(&s->why, rc, diag);
    }
}

void shore__entry_failed(struct entry *e, int rc, const struct shore_diag *diag) {
    e->rc = rc;
    e->why = malloc(sizeof *e->why);
    if (e->why) say(e->why, rc, diag);
}

static void end_read(struct entry *e, int rc, const struct shore_diag *diag) {
    if (rc) {
        shore__entry_failed(e, rc, diag);
        shore__entry_take_memory(e);
    } else {
        e->store->counts.read_bytes += e->bytes;
        e->came_back = true;
        e->asked = false;
    }
    shore__entry_enter(e, rc ? ENTRY_AWAY : ENTRY_STORED);
}

static void end(struct entry *e, int rc, const struct shore_diag *diag) {
    struct shore_activation_store *s = e->store;
    assert(e->state == ENTRY_WRITING || e->state == ENTRY_READING);
    assert(s->under_way > 0);
    if (e->state == ENTRY_WRITING)
        end_write(e, rc, diag);
    else
        end_read(e, rc, diag);
    s->under_way--;
    shore__entry_leave(e);
    pthread_cond_broadcast(&s->changed);
}

static void ended(void *ctx, int rc, const struct shore_diag *diag) {
    struct entry *e = ctx;
    struct shore_activation_store *s = e->store;
    pthread_mutex_lock(&s->lock);
    end(e, rc, diag);
    pthread_mutex_unlock(&s->lock);
}

/* Begins a request. Its completion takes the lock, and may run before the request returns; until it has run, the entry
 * and the fleet stay. */
static void begin(struct entry *e, bool put) {
    struct shore_activation_store *s = e->store;
    struct shore_completion done = {ended, e};
    shore__entry_enter(e, put ? ENTRY_WRITING : ENTRY_READING);
    assert(e->memory && s->fleet);
    s->under_way++;
    pthread_mutex_unlock(&s->lock);
    int rc = shore__fleet_scratch(s->fleet, put, e->at, e->bytes, e->memory, e->seals, done);
    pthread_mutex_lock(&s->lock);
    if (rc) end(e, rc, NULL);
}

/* Whether the pool needs what a write gives back. A store that keeps begins to write while a part of it is free, so
 * that nobody waits. */
static bool is_short(const struct shore_activation_store *s) {
    return !s->keeps || s->presses || s->pool.used_bytes > s->pool.total_bytes / KEPT_PARTS * (KEPT_PARTS - 1);
}

void shore__store_write_some(struct shore_activation_store *s) {
    while (s->waiting && !s->pauses && s->writing < s->writes_most && !s->failed && s->fleet && is_short(s)) {
        size_t i = 0;
        while (i < s->nentries && (s->entry[i]->state != ENTRY_WAITING || !s->entry[i]->has_scratch))
            i++;
        assert(i < s->nentries);
        begin(s->entry[i], true);
    }
}

void shore__entry_read(struct entry *e) {
    free(e->why);
    e->why = NULL;
    e->rc = 0;
    begin(e, false);
}

int shore__entry_pass(struct entry *e, bool put, void *memory, struct shore_diag *diag) {
    struct shore_activation_store *s = e->store;
    struct shore_wait wait;
    uint64_t start = shore__fleet_waits(s->fleet);
    s->under_way++;
    pthread_mutex_unlock(&s->lock);
    shore_wait_init(&wait);
    struct shore_completion done = shore_wait_completion(&wait);
    int rc = shore__fleet_scratch(s->fleet, put, e->at, e->bytes, memory, e->seals, done);
    if (rc)
        shore__fail(diag, rc, "%s", shore_error_text(rc));
    else
        rc = shore_wait(&wait, diag);
    pthread_mutex_lock(&s->lock);
    s->counts.waited_get_ns += shore__now_ns() - start;
    shore__fleet_waited(s->fleet, put ? SHORE_LANE_DRIVE_WRITE : SHORE_LANE_DRIVE_READ, start);
    assert(s->under_way > 0);
    if (!rc) *(put ? &s->counts.written_bytes : &s->counts.read_bytes) += e->bytes;
    s->under_way--;
    pthread_cond_broadcast(&s->changed);
    return rc;
}
