#include "drive/serve/serve_links.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/thread.h"

/* body: SHORE__WIRE_COMMIT_BYTES. */
static int send_answer(struct link *l, struct shore__serve_job *job, unsigned char *body, struct shore_diag *diag) {
    int rc = job->rc > 0 || job->rc < -0xFFFF ? -EIO : job->rc;
    if (rc && !job->diag.text[0]) shore__fail(&job->diag, rc, "%s", shore_error_text(rc));
    unsigned char *at = body + shore__wire_answer_put(body, rc, &job->diag);
    if (!rc && job->type == SHORE__WIRE_CALL && shore__function(job->request.kind)->seals) {
        memcpy(at, job->seal, sizeof job->seal);
        at += sizeof job->seal;
    }
    if (!rc && job->result && job->result_bytes <= SHORE__WIRE_COMMIT_BYTES - 2048) {
        memcpy(at, job->result, job->result_bytes);
        at += job->result_bytes;
    }
    struct shore__frame frame = {
        .type = SHORE__WIRE_DONE, .id = job->id, .body = body, .body_bytes = (uint32_t)(at - body)};
    if (!rc && job->out_bytes) {
        frame.bulk[0] = (struct iovec){job->out, job->out_bytes};
        frame.nbulk = 1;
    }
    return shore__conn_send(&l->conn, &frame, diag);
}

/* The next answer. NULL: a sign of life is due, or (*stop) there will be no more. */
static struct shore__serve_job *next_answer(struct link *l, bool *stop) {
    struct session *s = l->session;
    struct timespec until;
    shore__conn_next_beat(&l->conn, &until);
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    while (!l->answers && !l->closing && !rc)
        rc = pthread_cond_timedwait(&l->due, &s->lock, &until);
    struct shore__serve_job *job = l->answers;
    if (job) {
        l->answers = job->next;
        if (!l->answers) l->last_answer = NULL;
    }
    *stop = !job && l->closing;
    pthread_mutex_unlock(&s->lock);
    return job;
}

static void *write_answers(void *ctx) {
    struct link *l = ctx;
    struct shore_diag diag = {.text = "out of memory"};
    unsigned char *body = malloc(SHORE__WIRE_COMMIT_BYTES);
    int rc = body ? 0 : -ENOMEM;
    bool stop = false;
    while (!stop) {
        struct shore__serve_job *job = next_answer(l, &stop);
        if (stop) break;
        if (!rc && job) {
            rc = send_answer(l, job, body, &diag);
        } else if (!rc) {
            struct shore__frame alive = {.type = SHORE__WIRE_ALIVE, .id = shore__serve_work(l->session)};
            rc = shore__conn_send(&l->conn, &alive, &diag);
        }
        if (rc) shore__serve_end(l, rc, &diag); /* queued answers are freed without being sent */
        if (job) shore__serve_job_free(job);
    }
    free(body);
    return NULL;
}

int shore__serve_read(struct link *l, struct shore_diag *diag) {
    struct shore__wire_header h;
    unsigned char *body = NULL;
    size_t room = 0;
    int rc = 0;
    while (!rc) {
        rc = shore__conn_receive(&l->conn, true, &h, &body, &room, diag);
        if (!rc) rc = shore__serve_request(l, &h, body, diag);
    }
    free(body);
    return rc;
}

static void *reader(void *ctx) {
    struct link *l = ctx;
    struct shore_diag diag = {0};
    int rc = shore__serve_read(l, &diag);
    shore__serve_end(l, rc, &diag); /* a client that loses one connection is gone */
    return NULL;
}

int shore__serve_link_start(struct link *l, bool reads) {
    shore__cond_init(&l->due);
    int rc = shore__thread_start(&l->writer, "shore-answer", write_answers, l);
    l->writes = !rc;
    if (!rc && reads) {
        rc = shore__thread_start(&l->reader, "shore-serve", reader, l);
        l->reads = !rc;
    }
    return rc;
}

int shore__serve_add_link(struct session *s, int in, int out, uint64_t id, struct shore_diag *diag) {
    pthread_mutex_lock(&s->lock);
    bool room = s->nlinks < SHORE__LINKS_MOST && !s->ended;
    struct link *l = &s->links[s->nlinks];
    pthread_mutex_unlock(&s->lock);
    if (!room) {
        close(in);
        if (out != in) close(out);
        return shore__fail(diag, SHORE_ELINK, "this drive has as many connections as it can have");
    }
    int rc = shore__conn_init(&l->conn, in, out, -1);
    if (rc) return shore__fail(diag, rc, "no connection");
    l->session = s;
    l->conn.silence_ms = s->links[0].conn.silence_ms;
    l->conn.received = 1; /* ATTACH */
    /* its first answer is sent before the writer starts */
    rc = shore__conn_answer(&l->conn, id, 0, NULL, NULL, 0, diag);
    if (rc) {
        shore__conn_fini(&l->conn);
        return rc;
    }
    pthread_mutex_lock(&s->lock);
    s->nlinks++;
    bool ended = s->ended;
    pthread_mutex_unlock(&s->lock);
    if (ended) shore__conn_end(&l->conn);
    rc = shore__serve_link_start(l, true);
    if (rc) {
        shore__fail(diag, rc, "the server's threads cannot be started: %s", shore_error_text(rc));
        shore__serve_end(l, rc, diag);
    }
    return rc;
}

void shore__serve_link_stop(struct link *l) {
    if (!l->writes) return;
    pthread_mutex_lock(&l->session->lock);
    l->closing = true;
    pthread_cond_signal(&l->due);
    pthread_mutex_unlock(&l->session->lock);
    pthread_join(l->writer, NULL);
    l->writes = false;
}
