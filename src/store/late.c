/* What takes effect once an event of the device has passed. The device is called without the lock. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/events.h"
#include "store/store_impl.h"

/* The event has passed, or its device has failed: then nothing is put, and the entry is not filled any more. */
static void end(struct shore_activation_store *s, const struct late *l, int rc, const struct shore_diag *why) {
    struct entry *e = l->entry;
    assert(e->late && (!l->puts || e->state == ENTRY_FILLING));
    e->late--;
    if (rc && !s->failed) {
        s->failed = rc;
        s->why = *why;
    }
    if (l->puts && rc)
        shore__entry_failed(e, rc, why);
    else if (l->puts && (e->taken || e->uses))
        shore__entry_enter(e, ENTRY_WAITING);
    shore__entry_leave(e);
    pthread_cond_broadcast(&s->changed);
}

static struct late take_first(struct shore_activation_store *s) {
    struct late first = s->late[0];
    assert(s->nlate);
    memmove(s->late, s->late + 1, --s->nlate * sizeof *s->late);
    s->ended++;
    return first;
}

void shore__late_look(struct shore_activation_store *s) {
    static const struct shore_diag none;
    while (s->nlate) {
        struct shore_event until = s->late[0].until;
        uint64_t ended = s->ended;
        pthread_mutex_unlock(&s->lock);
        bool passed = shore_device_passed(s->device, until);
        struct shore_diag why = none;
        int rc = passed ? shore_device_wait(s->device, until, &why) : 0;
        pthread_mutex_lock(&s->lock);
        if (!passed) break;
        if (s->ended != ended) continue; /* another thread has ended it meanwhile */
        struct late first = take_first(s);
        end(s, &first, rc, &why);
    }
    shore__store_write_some(s);
}

void shore__late_wait(struct shore_activation_store *s) {
    struct late first = take_first(s);
    struct shore_diag why = {.text = ""};
    s->under_way++;
    pthread_mutex_unlock(&s->lock);
    int rc = shore_device_wait(s->device, first.until, &why);
    pthread_mutex_lock(&s->lock);
    s->under_way--;
    end(s, &first, rc, &why);
    shore__store_write_some(s);
}

int shore__late_add(struct entry *e, struct shore_event until, bool puts) {
    struct shore_activation_store *s = e->store;
    if (s->nlate == s->late_room) {
        struct late *larger = realloc(s->late, (2 * s->nlate + 8) * sizeof *larger);
        if (!larger) return -ENOMEM;
        s->late = larger;
        s->late_room = 2 * s->nlate + 8;
    }
    e->late++;
    s->late[s->nlate++] = (struct late){e, until, puts};
    shore__device_expect(s->device, until);
    shore__late_look(s);
    return 0;
}
