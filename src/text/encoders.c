#include "text/encoders.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"

#define JOB_BYTES (256u << 10)
#define JOB_PARTS 4096u
#define LEAD_BYTES (8u << 10) /* text before its part that an encoder reads */
#define KEPT_IDS (1u << 20)   /* a job's larger vector is freed */

struct part { /* of a document, in one job */
    const char *source;
    uint64_t line;
    size_t text_start, text_end, ids_end;
    bool begins, ends;
};

struct job {
    char *text; /* lead bytes that belong to another job, then the text to encode */
    size_t lead, bytes;
    struct part parts[JOB_PARTS];
    size_t nparts;
    struct shore__encoder *encoder;
    struct shore__ids ids;
    struct shore__text start, end; /* states of the encoder, if known */
    bool alone;                    /* in a run: no new encoder would reach the state of the previous one */
    bool start_known, end_known, ran;
    int rc;
    size_t failed; /* part */
    struct shore_diag why;
};

struct shore__encoders {
    const struct shore__tokenizer *t;
    bool special;
    struct shore__encoders_sink sink;
    struct job *jobs; /* a ring: committed, submitted, being filled */
    unsigned njobs, threads, started;
    pthread_t *workers;
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    uint64_t submitted, taken, committed;
    bool stop;
    /* encoder of the previous part, if its document continues */
    struct shore__encoder *prior;
    struct shore__text prior_state;
    bool prior_known, in_run;
};

static struct job *filling(struct shore__encoders *x) {
    return &x->jobs[x->submitted % x->njobs];
}

/* Encodes the parts from the current state of the job's encoder. */
static int encode_parts(struct job *j) {
    int rc = 0;
    j->ids.count = 0;
    for (size_t i = 0; rc == 0 && i < j->nparts; i++) {
        struct part *p = &j->parts[i];
        j->failed = i;
        rc = shore__encoder_feed(j->encoder, j->text + p->text_start, p->text_end - p->text_start, &j->ids, &j->why);
        if (rc == 0 && p->ends) rc = shore__encoder_end(j->encoder, &j->ids, &j->why);
        p->ids_end = j->ids.count;
    }
    bool goes_on = rc == 0 && !j->parts[j->nparts - 1].ends;
    j->end_known = goes_on && shore__encoder_state(j->encoder, &j->end) == 0;
    return rc;
}

static int fresh_encoder(const struct shore__encoders *x, struct job *j) {
    if (!j->encoder) return shore__encoder_open(x->t, x->special, &j->encoder);
    shore__encoder_reset(j->encoder);
    return 0;
}

static void run(const struct shore__encoders *x, struct job *j) {
    j->start_known = j->end_known = false;
    j->failed = 0;
    if (j->alone) return;
    j->rc = fresh_encoder(x, j);
    if (j->rc == 0 && !j->parts[0].begins) {
        j->ids.count = 0;
        j->rc = shore__encoder_feed(j->encoder, j->text, j->lead, &j->ids, &j->why);
        j->start_known = j->rc == 0 && shore__encoder_state(j->encoder, &j->start) == 0;
        if (!j->start_known) return;
    }
    if (j->rc == 0) j->rc = encode_parts(j);
}

static void *work(void *ctx) {
    struct shore__encoders *x = ctx;
    pthread_mutex_lock(&x->mutex);
    while (!x->stop) {
        if (x->taken == x->submitted) {
            pthread_cond_wait(&x->work, &x->mutex);
            continue;
        }
        struct job *j = &x->jobs[x->taken++ % x->njobs];
        pthread_mutex_unlock(&x->mutex);
        run(x, j);
        pthread_mutex_lock(&x->mutex);
        j->ran = true;
        pthread_cond_broadcast(&x->done);
    }
    pthread_mutex_unlock(&x->mutex);
    return NULL;
}

static bool follows(const struct shore__encoders *x, const struct job *j) {
    return x->prior_known && j->start_known && x->prior_state.count == j->start.count &&
           memcmp(x->prior_state.bytes, j->start.bytes, j->start.count) == 0;
}

static void swap_encoders(struct shore__encoders *x, struct job *j) {
    struct shore__encoder *e = x->prior;
    x->prior = j->encoder;
    j->encoder = e;
}

/* Runs a job on the caller's thread, if no worker has run it, or it started from another state than the previous part
 * ends in. */
static void run_here(struct shore__encoders *x, struct job *j) {
    if (j->parts[0].begins) {
        run(x, j);
        return;
    }
    swap_encoders(x, j);
    j->rc = encode_parts(j);
}

static int hand_out(struct shore__encoders *x, const struct job *j, struct shore_diag *diag) {
    const struct shore__encoders_sink *s = &x->sink;
    size_t at = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < j->nparts; i++) {
        const struct part *p = &j->parts[i];
        if (p->begins) rc = s->on_document(s->ctx, p->source, p->line, diag);
        if (rc == 0 && j->rc && i == j->failed)
            return s->on_failure(s->ctx, p->source, p->line, j->rc, j->why.text, diag);
        if (rc == 0 && p->ids_end > at)
            rc = s->on_ids(s->ctx, p->source, p->line, j->ids.ids + at, p->ids_end - at, diag);
        at = p->ids_end;
    }
    return rc;
}

static int commit(struct shore__encoders *x, struct shore_diag *diag) {
    struct job *j = &x->jobs[x->committed % x->njobs];
    pthread_mutex_lock(&x->mutex);
    while (x->started && !j->ran)
        pthread_cond_wait(&x->done, &x->mutex);
    if (!x->started) x->taken++;
    pthread_mutex_unlock(&x->mutex);
    if (!j->ran || (!j->parts[0].begins && !follows(x, j))) run_here(x, j);
    int rc = hand_out(x, j, diag);
    if (rc == 0 && !j->parts[j->nparts - 1].ends) {
        struct shore__text state = x->prior_state;
        swap_encoders(x, j);
        x->prior_state = j->end;
        j->end = state;
        x->prior_known = j->end_known;
    }
    x->in_run = !j->parts[j->nparts - 1].ends && !j->end_known;
    if (j->ids.capacity > KEPT_IDS) {
        free(j->ids.ids);
        j->ids = (struct shore__ids){0};
    }
    x->committed++;
    return rc;
}

/* With fewer threads than wanted, the ids are the same. */
static void start_workers(struct shore__encoders *x) {
    while (x->started < x->threads && shore__thread_start(&x->workers[x->started], "encode", work, x) == 0)
        x->started++;
    x->threads = x->started;
}

static int submit(struct shore__encoders *x, struct shore_diag *diag) {
    struct job *full = filling(x);
    full->alone = x->in_run && !full->parts[0].begins;
    if (x->threads > 1 && !x->started) start_workers(x);
    pthread_mutex_lock(&x->mutex);
    x->submitted++;
    pthread_cond_signal(&x->work);
    pthread_mutex_unlock(&x->mutex);
    int rc = 0;
    while (rc == 0 && x->submitted - x->committed >= (x->started ? x->njobs : 1))
        rc = commit(x, diag);
    struct job *next = filling(x);
    next->lead = next->bytes = next->nparts = 0;
    next->ran = false;
    return rc;
}

static void add_part(struct job *j, const char *source, uint64_t line, bool begins) {
    j->parts[j->nparts++] =
        (struct part){.source = source, .line = line, .text_start = j->bytes, .text_end = j->bytes, .begins = begins};
}

/* Continues the document in the next job. */
static int cut(struct shore__encoders *x, struct shore_diag *diag) {
    const struct job *full = filling(x);
    struct part last = full->parts[full->nparts - 1];
    size_t there = full->bytes - (last.begins ? last.text_start : 0), lead = there < LEAD_BYTES ? there : LEAD_BYTES;
    char copy[LEAD_BYTES];
    memcpy(copy, full->text + full->bytes - lead, lead);
    int rc = submit(x, diag);
    if (rc) return rc;
    struct job *next = filling(x);
    memcpy(next->text, copy, lead);
    next->lead = next->bytes = lead;
    add_part(next, last.source, last.line, false);
    return 0;
}

int shore__encoders_begin(struct shore__encoders *x, const char *source, uint64_t line, struct shore_diag *diag) {
    const struct job *j = filling(x);
    int rc = j->nparts == JOB_PARTS || j->bytes - j->lead >= JOB_BYTES ? submit(x, diag) : 0;
    if (rc == 0) add_part(filling(x), source, line, true);
    return rc;
}

int shore__encoders_feed(struct shore__encoders *x, const char *text, size_t bytes, struct shore_diag *diag) {
    while (bytes > 0) {
        struct job *j = filling(x);
        size_t room = JOB_BYTES - (j->bytes - j->lead), n = bytes < room ? bytes : room;
        if (n == 0) {
            int rc = cut(x, diag);
            if (rc) return rc;
            continue;
        }
        memcpy(j->text + j->bytes, text, n);
        j->parts[j->nparts - 1].text_end = j->bytes += n;
        text += n;
        bytes -= n;
    }
    return 0;
}

void shore__encoders_end(struct shore__encoders *x) {
    struct job *j = filling(x);
    j->parts[j->nparts - 1].ends = true;
}

int shore__encoders_drain(struct shore__encoders *x, struct shore_diag *diag) {
    int rc = filling(x)->nparts ? submit(x, diag) : 0;
    while (rc == 0 && x->committed < x->submitted)
        rc = commit(x, diag);
    return rc;
}

int shore__encoders_open(const struct shore__tokenizer *t, bool special, unsigned threads,
                         const struct shore__encoders_sink *sink, struct shore__encoders **out) {
    struct shore__encoders *x = calloc(1, sizeof *x);
    if (!x) return -ENOMEM;
    x->t = t;
    x->special = special;
    x->sink = *sink;
    x->threads = threads;
    x->njobs = threads > 1 ? 2 * threads + 1 : 2;
    pthread_mutex_init(&x->mutex, NULL);
    shore__cond_init(&x->work);
    shore__cond_init(&x->done);
    x->jobs = calloc(x->njobs, sizeof *x->jobs);
    x->workers = calloc(threads, sizeof *x->workers);
    bool complete = x->jobs && x->workers;
    for (unsigned i = 0; complete && i < x->njobs; i++)
        complete = (x->jobs[i].text = malloc(LEAD_BYTES + JOB_BYTES)) != NULL;
    if (!complete) {
        shore__encoders_close(x);
        return -ENOMEM;
    }
    *out = x;
    return 0;
}

void shore__encoders_close(struct shore__encoders *x) {
    if (!x) return;
    pthread_mutex_lock(&x->mutex);
    x->stop = true;
    pthread_cond_broadcast(&x->work);
    pthread_mutex_unlock(&x->mutex);
    for (unsigned i = 0; i < x->started; i++)
        pthread_join(x->workers[i], NULL);
    for (unsigned i = 0; x->jobs && i < x->njobs; i++) {
        struct job *j = &x->jobs[i];
        shore__encoder_close(j->encoder);
        free(j->text);
        free(j->ids.ids);
        free(j->start.bytes);
        free(j->end.bytes);
    }
    shore__encoder_close(x->prior);
    free(x->prior_state.bytes);
    free(x->jobs);
    free(x->workers);
    pthread_mutex_destroy(&x->mutex);
    pthread_cond_destroy(&x->work);
    pthread_cond_destroy(&x->done);
    free(x);
}
