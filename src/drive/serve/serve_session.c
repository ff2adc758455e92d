#include "drive/serve/serve_session.h"

#include <assert.h>
#include <errno.h>

#include "storage/blockio.h"

uint64_t shore__serve_work(struct session *s) {
    pthread_mutex_lock(&s->lock);
    uint64_t answered = s->answered;
    pthread_mutex_unlock(&s->lock);
    return answered + shore__io_completed();
}

void shore__serve_answer(struct shore__serve_job *job) {
    struct link *l = job->link;
    struct session *s = l->session;
    pthread_mutex_lock(&s->lock);
    assert(job->session == s && !l->closing && !l->answers == !l->last_answer);
    job->next = NULL;
    if (l->last_answer) {
        l->last_answer->next = job;
    } else {
        l->answers = job;
    }
    l->last_answer = job;
    s->answered++;
    pthread_cond_signal(&l->due);
    pthread_mutex_unlock(&s->lock);
}

int shore__serve_end_code(const struct link *l, int rc) {
    return rc == SHORE_ELINK && !atomic_load(&l->conn.gone) ? -EPROTO : rc;
}

void shore__serve_end(struct link *l, int rc, const struct shore_diag *why) {
    struct session *s = l->session;
    pthread_mutex_lock(&s->lock);
    if (!s->ended) {
        s->why_rc = shore__serve_end_code(l, rc);
        s->why = *why;
    }
    s->ended = true;
    pthread_cond_broadcast(&s->freed);
    unsigned n = s->nlinks;
    struct link *waits = s->leave ? s->leave->link : NULL;
    pthread_mutex_unlock(&s->lock);
    for (unsigned i = 0; i < n; i++)
        if (&s->links[i] != waits) shore__conn_end(&s->links[i].conn);
}
