#include "drive/serve/serve_pulse.h"

#include "base/diag.h"
#include "base/thread.h"

static void *beat(void *ctx) {
    struct serve_pulse *p = ctx;
    struct shore__conn *c = &p->session->links[0].conn;
    struct shore_diag ignored; /* the answer will not get through either, and reports it */
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        struct timespec until;
        shore__conn_next_beat(c, &until);
        if (pthread_cond_timedwait(&p->due, &p->lock, &until) == 0) continue;
        struct shore__frame alive = {.type = SHORE__WIRE_ALIVE, .id = shore__serve_work(p->session)};
        if (shore__conn_send(c, &alive, &ignored)) break;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int shore__serve_pulse_start(struct serve_pulse *p, struct session *s, struct shore_diag *diag) {
    *p = (struct serve_pulse){.session = s};
    pthread_mutex_init(&p->lock, NULL);
    shore__cond_init(&p->due);
    int rc = shore__thread_start(&p->thread, "shore-pulse", beat, p);
    if (!rc) return 0;
    pthread_cond_destroy(&p->due);
    pthread_mutex_destroy(&p->lock);
    return shore__fail(diag, rc, "the server's threads cannot be started: %s", shore_error_text(rc));
}

void shore__serve_pulse_send(struct serve_pulse *p, const struct shore__frame *frame) {
    struct shore_diag ignored;
    pthread_mutex_lock(&p->lock);
    shore__conn_send(&p->session->links[0].conn, frame, &ignored);
    pthread_mutex_unlock(&p->lock);
}

void shore__serve_pulse_stop(struct serve_pulse *p) {
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->due);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->due);
    pthread_mutex_destroy(&p->lock);
}
