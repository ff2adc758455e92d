/* What takes effect once an event of the device has passed. The device is called without the lock. */
#include <assert.h>
#include <errno.h>

#include "base/diag.h"
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

void shore__late_look(struct shore_activation_store *s) {
    bool passed = true;
    while (passed && s->late.count) {
        const struct shore_event until = shore__fifo_event(&s->late);
        uint64_t taken = s->late.taken;
        pthread_mutex_unlock(&s->lock);
        passed = shore_device_passed(s->device, until);
        pthread_mutex_lock(&s->lock);
        if (passed && s->late.taken == taken) shore__late_wait(s); /* unless another thread has ended it meanwhile */
    }
    shore__store_write_some(s);
}

void shore__late_wait(struct shore_activation_store *s) {
    struct late first;
    struct shore_diag why = {.text = ""};
    shore__fifo_take(&s->late, &first, sizeof first);
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
    if (!shore__fifo_add(&s->late, &(struct late){until, e, puts}, sizeof(struct late))) return -ENOMEM;
    e->late++;
    shore__device_expect(s->device, until);
    shore__late_look(s);
    return 0;
}
