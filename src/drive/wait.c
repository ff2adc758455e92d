#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "base/diag.h"
#include "longshore/state.h"

struct wait_state {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
};
_Static_assert(sizeof(struct wait_state) <= sizeof(((struct shore_wait *)0)->state), "fits in place");

static struct wait_state *state_of(struct shore_wait *w) {
    return (struct wait_state *)(void *)w->state;
}

void shore_wait_init(struct shore_wait *w) {
    memset(w, 0, sizeof *w);
    w->expected = 1;
    pthread_mutex_init(&state_of(w)->mutex, NULL);
    pthread_cond_init(&state_of(w)->cond, NULL);
}

void shore_wait_add(struct shore_wait *w) {
    pthread_mutex_lock(&state_of(w)->mutex);
    w->expected++;
    pthread_mutex_unlock(&state_of(w)->mutex);
}

static void wake(void *ctx, int rc, const struct shore_diag *diag) {
    struct shore_wait *w = ctx;
    struct wait_state *s = state_of(w);
    pthread_mutex_lock(&s->mutex);
    assert(w->expected > 0);
    if (rc && !w->rc) {
        w->rc = rc;
        if (diag) w->diag = *diag;
    }
    /* under the mutex: the waiter may free the object once it has seen the last one */
    if (--w->expected == 0) pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->mutex);
}

struct shore_completion shore_wait_completion(struct shore_wait *w) {
    return (struct shore_completion){wake, w};
}

void shore_wait_end(struct shore_wait *w, int rc) {
    wake(w, rc, NULL);
}

bool shore_wait_is_done(struct shore_wait *w) {
    struct wait_state *s = state_of(w);
    pthread_mutex_lock(&s->mutex);
    bool done = !w->expected;
    pthread_mutex_unlock(&s->mutex);
    return done;
}

int shore_wait(struct shore_wait *w, struct shore_diag *diag) {
    struct wait_state *s = state_of(w);
    pthread_mutex_lock(&s->mutex);
    while (w->expected) {
        pthread_cond_wait(&s->cond, &s->mutex);
    }
    int rc = w->rc;
    if (rc && diag) *diag = w->diag;
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

void shore_complete(struct shore_completion done, int rc, const char *sentence) {
    struct shore_diag diag;
    if (rc) shore__fail(&diag, rc, "%s", sentence ? sentence : shore_error_text(rc));
    done.fn(done.ctx, rc, rc ? &diag : NULL);
}
