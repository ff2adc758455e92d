/* Requests to a server with an open drive. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/units.h"
#include "drive/layout.h"
#include "drive/serve/serve_session.h"
#include "number/gather.h"

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static struct shore__serve_job *take_slot(struct session *s) {
    pthread_mutex_lock(&s->lock);
    while (!s->free_slots && !s->ended)
        pthread_cond_wait(&s->freed, &s->lock);
    struct shore__serve_job *job = s->free_slots;
    assert(!job || job->memory);
    if (job) s->free_slots = job->next;
    pthread_mutex_unlock(&s->lock);
    return job;
}

static struct shore__serve_job *new_control(struct session *s) {
    pthread_mutex_lock(&s->lock);
    while (s->ncontrols >= SHORE__CONTROLS_MOST && !s->ended)
        pthread_cond_wait(&s->freed, &s->lock);
    struct shore__serve_job *job = s->ended ? NULL : calloc(1, sizeof *job);
    if (job) s->ncontrols++;
    assert(s->ncontrols <= SHORE__CONTROLS_MOST);
    pthread_mutex_unlock(&s->lock);
    return job;
}

void shore__serve_job_free(struct shore__serve_job *job) {
    struct session *s = job->session;
    free(job->result);
    job->result = NULL;
    pthread_mutex_lock(&s->lock);
    if (job->memory) {
        job->next = s->free_slots;
        s->free_slots = job;
    } else {
        assert(s->ncontrols > 0);
        s->ncontrols--;
    }
    pthread_cond_signal(&s->freed);
    pthread_mutex_unlock(&s->lock);
    if (!job->memory) {
        free(job->body);
        free(job);
    }
}

/* Room for so many bytes, in place of `array`, without its contents. NULL: out of memory, and `array` is freed. */
static void *room_for(void *array, size_t *room, size_t bytes) {
    if (bytes <= *room) return array;
    free(array);
    array = malloc(bytes);
    *room = array ? bytes : 0;
    return array;
}

/* The body outlives the request on the connection. */
/* Makes a job of a request that came over the link. -ENOMEM: there is none for its body. */
static int take_request(struct shore__serve_job *job, struct link *l, const struct shore__wire_header *h,
                        const struct shore__wire_request *r, const unsigned char *body) {
    job->session = l->session;
    job->link = l;
    job->id = h->id;
    job->type = h->type;
    job->request = *r;
    job->rc = 0;
    job->diag.text[0] = '\0';
    job->diag.advice = SHORE_ADVICE_NONE;
    job->body = room_for(job->body, &job->body_room, h->body_bytes);
    if (!job->body) return -ENOMEM;
    memcpy(job->body, body, h->body_bytes);
    job->request.tail = job->body + SHORE__WIRE_FIELDS_BYTES;
    return 0;
}

static void finished(void *ctx, int rc, const struct shore_diag *diag) {
    struct shore__serve_job *job = ctx;
    job->rc = rc;
    if (rc && diag) job->diag = *diag;
    shore__serve_answer(job);
}

/* Answers a request that was refused at submit like any other failure. */
static void refuse(struct shore__serve_job *job, int rc) {
    shore__fail(&job->diag, rc, "the drive refuses the request: %s", shore_error_text(rc));
    job->rc = rc;
    shore__serve_answer(job);
}

/* ---- requests with a slot ---------------------------------------------------------------------------------------- */

/* Places of bulk and answer in a slot. A drive reads and fills whole segments; the padding behind a block does not
 * cross the link. */
struct cuts {
    size_t residual, out;  /* offsets */
    size_t out_bytes;      /* in whole segments */
    size_t answer_bytes;   /* the part that crosses */
    size_t whole_bytes[2]; /* of incoming data: at 0, and at residual */
    size_t in[2];          /* the part that crosses: the bulk */
};

static size_t crossing(const struct session *s, const struct shore__wire_request *r, size_t segment_bytes) {
    return shore__layout_bytes(s->config.layout, r->block, r->segment, r->count, segment_bytes);
}

static bool cut_update(const struct session *s, const struct shore__wire_request *r, struct cuts *p) {
    bool spilled = r->flags & SHORE__WIRE_SPILLED;
    if (r->kind > SHORE_GRADIENT_ROWS || r->bytes > s->plan.slot_bytes) return false;
    size_t gradient = shore__gradient_segment_bytes(r->kind), residual = (size_t)SHORE_SEGMENT_ELEMS * 2;
    size_t params = (size_t)SHORE_SEGMENT_ELEMS * (s->config.fp32_params ? 4 : 2);
    if (spilled ? r->bytes != 0 || !gradient : gradient && r->bytes != crossing(s, r, gradient)) return false;
    p->in[0] = r->bytes;
    p->whole_bytes[0] = spilled || !gradient ? r->bytes : r->count * gradient;
    p->residual = shore__arena_round(p->whole_bytes[0]);
    if (r->flags & SHORE__WIRE_RESIDUAL) {
        p->in[1] = crossing(s, r, residual);
        p->whole_bytes[1] = r->count * residual;
    }
    p->out = p->residual + shore__arena_round(p->whole_bytes[1]);
    if (r->flags & SHORE__WIRE_PARAMS) {
        p->out_bytes = r->count * params;
        p->answer_bytes = crossing(s, r, params);
    }
    return true;
}

static bool cut_call(const struct session *s, const struct shore__wire_request *r, struct cuts *p) {
    struct shore__call call = shore__wire_call_get(r);
    const struct shore_layout *layout = s->config.layout;
    if (!shore__function(call.function)->run && !shore__call_unit_bytes(&call)) return false;
    p->whole_bytes[0] = shore__call_in_bytes(&call);
    p->out_bytes = shore__call_out_bytes(&call);
    if (p->whole_bytes[0] > s->plan.slot_bytes || p->out_bytes > s->plan.slot_bytes) return false;
    p->in[0] = shore__call_crossing(&call, layout, p->whole_bytes[0]);
    p->answer_bytes = shore__call_crossing(&call, layout, p->out_bytes);
    p->out = shore__arena_round(p->whole_bytes[0]);
    return true;
}

static bool cut(const struct session *s, const struct shore__wire_request *r, struct cuts *p) {
    uint64_t elems = (uint64_t)r->count * SHORE_SEGMENT_ELEMS;
    const uint32_t *plane_bytes = s->config.plane_bytes;
    *p = (struct cuts){0};
    if (r->type != SHORE__WIRE_CALL && r->count > SHORE__WIRE_BULK_BYTES / SHORE_SEGMENT_ELEMS) return false;
    switch (r->type) {
    case SHORE__WIRE_INIT:
        p->in[0] = elems * 4 * (1 + !!(r->flags & SHORE__WIRE_HAS_M) + !!(r->flags & SHORE__WIRE_HAS_V));
        break;
    case SHORE__WIRE_FETCH:
        if (r->kind > SHORE_FETCH_SPILLED_BF16) return false;
        p->out_bytes = p->answer_bytes = r->count * shore__fetch_segment_bytes(plane_bytes, r->kind);
        if (r->kind != SHORE_FETCH_STATE)
            p->answer_bytes = crossing(s, r, shore__fetch_segment_bytes(plane_bytes, r->kind));
        break;
    case SHORE__WIRE_UPDATE:
        if (!cut_update(s, r, p)) return false;
        break;
    case SHORE__WIRE_CALL:
        if (!cut_call(s, r, p)) return false;
        break;
    default:
        p->in[0] = r->count * shore__state_segment_bytes(plane_bytes);
        break;
    }
    for (int i = 0; i < 2; i++)
        if (p->whole_bytes[i] < p->in[i]) p->whole_bytes[i] = p->in[i];
    return p->whole_bytes[0] <= s->plan.slot_bytes && p->out_bytes <= s->plan.slot_bytes &&
           p->out + p->out_bytes <= s->plan.slot_bytes;
}

static int take_offsets(struct shore__serve_job *job, const unsigned char *from, uint32_t bytes) {
    const struct shore__wire_request *r = &job->request;
    size_t n = (size_t)r->count + 1;
    if (bytes != n * 4) return -EINVAL;
    job->offsets = room_for(job->offsets, &job->offsets_room, n * 4);
    if (!job->offsets) return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        job->offsets[i] = shore__get_u32(from + 4 * i);
        if (i ? job->offsets[i] < job->offsets[i - 1] : job->offsets[0] != 0) return -EINVAL;
    }
    return job->offsets[r->count] != r->bytes ? -EINVAL : 0;
}

/* The items of a gradient of form ROWS, which lie in the bulk. */
static int take_rows(struct shore__serve_job *job, struct shore__gather_list *list) {
    const struct shore__wire_request *r = &job->request;
    const struct shore_layout *layout = job->session->config.layout;
    list->count = shore__gather_packed_count(job->memory, r->bytes);
    job->items = room_for(job->items, &job->items_room, ((size_t)list->count + 1) * sizeof *job->items);
    if (!job->items) return -ENOMEM;
    list->item = job->items;
    bool good = r->block < layout->nblocks && shore__gather_unpack(job->memory, r->bytes, job->items);
    return good && !shore__gather_fault(list, &layout->blocks[r->block]) ? 0 : -EINVAL;
}

static int submit_update(struct shore__serve_job *job, const struct cuts *p) {
    struct session *s = job->session;
    const struct shore__wire_request *r = &job->request;
    uint32_t groups_bytes = r->ngroups * SHORE__WIRE_HYPER_BYTES;
    job->groups = room_for(job->groups, &job->groups_room, ((size_t)r->ngroups + 1) * sizeof *job->groups);
    if (!job->groups) return -ENOMEM;
    for (uint32_t i = 0; i < r->ngroups; i++)
        shore__wire_hyper_get(r->tail + (size_t)i * SHORE__WIRE_HYPER_BYTES, &job->groups[i]);
    int rc =
        r->kind == SHORE_GRADIENT_SPARSE ? take_offsets(job, r->tail + groups_bytes, r->tail_bytes - groups_bytes) : 0;
    struct shore__gather_list rows = {0};
    if (!rc && r->kind == SHORE_GRADIENT_ROWS) rc = take_rows(job, &rows);
    if (rc) return rc;
    struct shore_update update = {
        .base_step = r->step,
        .attempt = r->era,
        .block = r->block,
        .segment = r->segment,
        .count = r->count,
        .gradient = r->flags & SHORE__WIRE_SPILLED || rows.item ? NULL : job->memory,
        .form = r->kind,
        .offsets = r->kind == SHORE_GRADIENT_SPARSE ? job->offsets : NULL,
        .residual = p->whole_bytes[1] ? (const uint16_t *)(void *)(job->memory + p->residual) : NULL,
        .coefficient = r->coefficient,
        .groups = job->groups,
        .ngroups = r->ngroups,
        .params_out = p->out_bytes ? job->memory + p->out : NULL,
        .order = r->order,
        .gather = rows.item,
        .ngather = rows.count,
    };
    return s->drive->ops->update(s->drive, &update, (struct shore_completion){finished, job});
}

static int submit(struct shore__serve_job *job, const struct cuts *p) {
    struct session *s = job->session;
    struct shore__drive *d = s->drive;
    const struct shore__wire_request *r = &job->request;
    struct shore_completion done = {finished, job};
    assert(p->residual + p->whole_bytes[1] <= s->plan.slot_bytes && p->out + p->out_bytes <= s->plan.slot_bytes);
    job->out = job->memory + p->out;
    job->out_bytes = p->answer_bytes;
    switch (r->type) {
    case SHORE__WIRE_INIT:
        shore__lane_push(&s->controls, &job->job);
        return 0;
    case SHORE__WIRE_FETCH: {
        struct shore__drive_fetch fetch = {r->step, r->block, r->segment, r->count, r->kind, job->out};
        return d->ops->fetch(d, &fetch, done);
    }
    case SHORE__WIRE_UPDATE:
        return submit_update(job, p);
    case SHORE__WIRE_CALL: {
        struct shore__call call = shore__wire_call_get(r);
        call.in = job->memory;
        call.out = job->out;
        call.seal = job->seal;
        return d->ops->call(d, &call, done);
    }
    default: {
        struct shore_store store = {.base_step = r->step,
                                    .attempt = r->era,
                                    .state = job->memory,
                                    .block = r->block,
                                    .segment = r->segment,
                                    .count = r->count,
                                    .order = r->order};
        return d->ops->store(d, &store, done);
    }
    }
}

static int slot_request(struct link *l, const struct shore__wire_header *h, unsigned char *body,
                        struct shore__wire_request *r, struct shore_diag *diag) {
    struct session *s = l->session;
    struct cuts p;
    if (!cut(s, r, &p) || h->bulk_bytes != p.in[0] + p.in[1])
        return shore__fail(diag, SHORE_ELINK, "a request of type %u came with invalid sizes", h->type);
    struct shore__serve_job *job = take_slot(s);
    if (!job) return shore__fail(diag, SHORE_ELINK, "the connection has ended");
    int rc = take_request(job, l, h, r, body);
    if (rc) shore__fail(diag, rc, "out of memory");
    struct iovec parts[2] = {{job->memory, p.in[0]}, {job->memory + p.residual, p.in[1]}};
    memset(job->memory + p.in[0], 0, p.whole_bytes[0] - p.in[0]);
    memset(job->memory + p.residual + p.in[1], 0, p.whole_bytes[1] - p.in[1]);
    if (!rc) rc = shore__conn_readv(&l->conn, parts, 2, diag);
    if (rc) {
        shore__serve_job_free(job);
        return rc;
    }
    rc = submit(job, &p);
    if (rc) refuse(job, rc);
    return 0;
}

/* ---- requests without one ---------------------------------------------------------------------------------------- */

static int add_result(struct shore__serve_job *job, const void *data, uint32_t bytes) {
    job->result = malloc(bytes);
    if (!job->result) return -ENOMEM;
    memcpy(job->result, data, bytes);
    job->result_bytes = bytes;
    return 0;
}

/* Without memory, the answer goes without it. */
static void add_ledger(struct shore__serve_job *job) {
    unsigned char data[SHORE__WIRE_LEDGER_BYTES];
    struct shore_ledger ledger = {0};
    struct session *s = job->session;
    s->drive->ops->ledger(s->drive, &ledger);
    shore__wire_ledger_put(data, &ledger);
    add_result(job, data, sizeof data);
}

static int give_recovery(struct shore__serve_job *job) {
    unsigned char data[SHORE__WIRE_RECOVERY_BYTES];
    struct shore__drive_recovery found;
    struct shore__drive *d = job->session->drive;
    int rc = d->ops->recovery(d, &found, &job->diag);
    return rc ? rc : add_result(job, data, shore__wire_recovery_put(data, &found));
}

static int give_blob(struct shore__serve_job *job) {
    struct shore__drive *d = job->session->drive;
    uint32_t bytes = 0;
    job->result = malloc(SHORE_BLOB_BYTES);
    if (!job->result) return -ENOMEM;
    int rc = d->ops->blob(d, job->result, &bytes, &job->diag);
    job->result_bytes = rc ? 0 : bytes;
    return rc;
}

static int snapshot(struct shore__serve_job *job) {
    const struct shore__wire_request *r = &job->request;
    struct shore__drive *d = job->session->drive;
    char name[256];
    bool good = r->tail_bytes > 0 && r->tail_bytes < sizeof name && r->kind <= SHORE__SNAPSHOT_REMOVE &&
                !memchr(r->tail, 0, r->tail_bytes) && !memchr(r->tail, '/', r->tail_bytes);
    if (!good) return shore__fail(&job->diag, -EINVAL, "this is not a name for a snapshot");
    memcpy(name, r->tail, r->tail_bytes);
    name[r->tail_bytes] = 0;
    return d->ops->snapshot(d, r->kind, name, &job->diag);
}

static int init(struct shore__serve_job *job) {
    const struct shore__wire_request *r = &job->request;
    struct shore__drive *d = job->session->drive;
    size_t elems = (size_t)r->count * SHORE_SEGMENT_ELEMS;
    const float *master = (const float *)(void *)job->memory, *next = master + elems;
    const float *m = r->flags & SHORE__WIRE_HAS_M ? next : NULL;
    const float *v = r->flags & SHORE__WIRE_HAS_V ? (m ? m + elems : next) : NULL;
    return d->ops->init(d, r->block, r->segment, r->count, master, m, v, &job->diag);
}

/* Runs on the control lane, one at a time, in order of arrival. */
static void run_control(struct shore__serve_job *job) {
    struct shore__drive *d = job->session->drive;
    const struct shore__wire_request *r = &job->request;
    unsigned char sum[16];
    switch (job->type) {
    case SHORE__WIRE_RECOVERY:
        job->rc = give_recovery(job);
        break;
    case SHORE__WIRE_LOAD:
        job->rc = d->ops->load(d, r->step, &job->diag);
        break;
    case SHORE__WIRE_BEGIN:
        job->rc = d->ops->begin(d, r->era, r->step, &job->diag);
        if (!job->rc) add_ledger(job);
        break;
    case SHORE__WIRE_DISCARD:
        d->ops->discard(d, r->era);
        break;
    case SHORE__WIRE_LEAF_SUM:
        job->rc = d->ops->leaf_sum(d, r->flags & SHORE__WIRE_DEEP, sum, &job->diag);
        if (!job->rc) job->rc = add_result(job, sum, sizeof sum);
        break;
    case SHORE__WIRE_SNAPSHOT:
        job->rc = snapshot(job);
        break;
    case SHORE__WIRE_BLOB:
        job->rc = give_blob(job);
        break;
    case SHORE__WIRE_INIT:
        job->rc = init(job);
        break;
    default:
        add_ledger(job);
        break;
    }
    shore__serve_answer(job);
}

void *shore__serve_controls(void *ctx) {
    struct session *s = ctx;
    struct shore__job *job;
    while ((job = shore__lane_pop(&s->controls, true))) {
        run_control((struct shore__serve_job *)job);
        shore__lane_finished(&s->controls);
    }
    return NULL;
}

static void committed(void *ctx, int rc, const struct shore_diag *diag) {
    struct shore__serve_job *job = ctx;
    if (!rc) add_ledger(job);
    finished(job, rc, diag);
}

static int submit_commit(struct shore__serve_job *job) {
    struct shore__drive *d = job->session->drive;
    const struct shore__wire_request *r = &job->request;
    uint32_t metrics_bytes = r->tail_bytes - (uint32_t)r->bytes;
    job->commit = (struct shore_commit){.size = sizeof job->commit,
                                        .step = r->step,
                                        .how = r->kind,
                                        .metrics = r->tail,
                                        .metrics_bytes = metrics_bytes,
                                        .blob = r->tail + metrics_bytes,
                                        .blob_bytes = r->bytes};
    return d->ops->commit(d, &job->commit, (struct shore_completion){committed, job});
}

static int submit_carry(struct shore__serve_job *job) {
    struct shore__drive *d = job->session->drive;
    const struct shore__wire_request *r = &job->request;
    struct shore_store which = {
        .base_step = r->step, .attempt = r->era, .block = r->block, .segment = r->segment, .count = r->count};
    return d->ops->carry(d, &which, (struct shore_completion){finished, job});
}

static int control_request(struct link *l, const struct shore__wire_header *h, unsigned char *body,
                           const struct shore__wire_request *r, struct shore_diag *diag) {
    struct session *s = l->session;
    struct shore__serve_job *job = new_control(s);
    if (!job) return shore__fail(diag, SHORE_ELINK, "the connection has ended");
    if (take_request(job, l, h, r, body)) {
        shore__serve_job_free(job);
        return shore__fail(diag, -ENOMEM, "out of memory");
    }
    if (h->type == SHORE__WIRE_CLOSE) {
        /* answered when the drive is closed: see serve.c */
        pthread_mutex_lock(&s->lock);
        s->leave = job;
        pthread_mutex_unlock(&s->lock);
        return 1;
    }
    if (h->type != SHORE__WIRE_COMMIT && h->type != SHORE__WIRE_CARRY) {
        shore__lane_push(&s->controls, &job->job);
        return 0;
    }
    int rc = h->type == SHORE__WIRE_COMMIT ? submit_commit(job) : submit_carry(job);
    if (rc) refuse(job, rc);
    return 0;
}

int shore__serve_request(struct link *l, const struct shore__wire_header *h, unsigned char *body,
                         struct shore_diag *diag) {
    struct shore__wire_request r;
    if (h->type == SHORE__WIRE_ALIVE) return 0;
    if (h->type <= SHORE__WIRE_ATTACH || h->type == SHORE__WIRE_MEASURE)
        return shore__fail(diag, SHORE_ELINK, "a request of type %u came after the drive was open", h->type);
    int rc = shore__wire_request_get(h, body, &r, diag);
    if (rc) return rc;
    return shore__wire_takes_slot(h->type) ? slot_request(l, h, body, &r, diag) : control_request(l, h, body, &r, diag);
}
