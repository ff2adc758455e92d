/* Threads of a remote drive: one that sends and one that receives for each connection. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/thread.h"
#include "base/units.h"
#include "drive/layout.h"
#include "drive/remote/remote_link.h"
#include "number/gather.h"

_Static_assert(SHORE__WIRE_SLOTS_MOST + REMOTE_CONTROLS <= 0x10000, "16 bits of an id are its slot");

/* ---- ends -------------------------------------------------------------------------------------------------------- */

/* Ends one span. Called without the lock. */
static void finish(struct remote *r, struct remote_request *q, int rc, const struct shore_diag *diag) {
    struct remote_whole *w = q->whole;
    pthread_mutex_lock(&r->lock);
    if (rc && !w->rc) {
        w->rc = rc;
        if (diag && diag->text[0])
            w->diag = *diag;
        else
            shore__fail(&w->diag, rc, "%s: %s", r->drive.path, shore_error_text(rc));
    }
    assert(w->left > 0);
    bool last = --w->left == 0;
    pthread_mutex_unlock(&r->lock);
    if (!last) return;
    if (!w->rc && w->seal) memcpy(w->seal, w->seal_sum, sizeof w->seal_sum);
    if (!w->rc && w->look) w->look(r, w);
    w->done.fn(w->done.ctx, w->rc, w->rc ? &w->diag : NULL);
    free(w->result);
    free(w);
    pthread_mutex_lock(&r->lock);
    assert(r->under_way > 0);
    if (--r->under_way == 0) pthread_cond_broadcast(&r->idle);
    pthread_mutex_unlock(&r->lock);
}

static void break_off(struct remote *r, int rc, const struct shore_diag *why) {
    pthread_mutex_lock(&r->lock);
    if (!r->broken) {
        r->broken = true;
        r->broken_rc = rc == -ENOMEM ? rc : SHORE_ELINK;
        shore__fail(&r->why, rc, "%s: %.600s", r->drive.path, why->text);
        r->reason = *why;
    }
    pthread_cond_broadcast(&r->due);
    unsigned n = r->nlinks;
    pthread_mutex_unlock(&r->lock);
    for (unsigned i = 0; i < n; i++)
        shore__conn_end(&r->links[i].way.conn);
}

/* Fails everything. Called by the last thread, when no one reads or writes callers' buffers any more. */
static void fail_all(struct remote *r) {
    struct shore_diag why;
    if (r->at)
        shore__way_explain(r->at, &r->links[0].way, SHORE_ELINK, &r->reason, &why);
    else
        why = r->why;
    pthread_mutex_lock(&r->lock);
    assert(!r->threads);
    r->why = why;
    struct remote_request *q = r->queue, *rest = r->controls;
    r->queue = r->controls = NULL;
    pthread_mutex_unlock(&r->lock);
    for (struct remote_request *next; q || rest; q = next) {
        if (!q) {
            q = rest;
            rest = NULL;
        }
        next = q->next;
        finish(r, q, r->broken_rc, &why);
    }
    for (uint32_t i = 0; i < r->nslots + REMOTE_CONTROLS; i++) {
        q = r->slot[i];
        r->slot[i] = NULL;
        if (q) finish(r, q, r->broken_rc, &why);
    }
    r->used_slots = r->updates_out = 0;
}

static void thread_ends(struct remote *r) {
    pthread_mutex_lock(&r->lock);
    assert(r->threads > 0);
    bool last = --r->threads == 0;
    pthread_mutex_unlock(&r->lock);
    if (last) fail_all(r);
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

static bool is_update(const struct remote_request *q) {
    return q->fields.type == SHORE__WIRE_UPDATE || q->fields.type == SHORE__WIRE_STORE;
}

/* Called with the lock. Updates leave a quarter of the slots to other requests, which somebody waits for. */
static bool slot_is_free(const struct remote *r, const struct remote_request *q) {
    if (r->used_slots == r->nslots) return false;
    return !is_update(q) || r->nslots < 4 || r->updates_out < r->nslots - r->nslots / 4;
}

static void take_slot(struct remote *r, struct remote_link *l, struct remote_request *q, uint32_t first, uint32_t end) {
    uint32_t i = first;
    while (i < end && r->slot[i])
        i++;
    assert(i < end); /* the caller has seen a free one */
    q->id = (uint64_t)++r->serial << 16 | i;
    q->link = l;
    l->sends = true;
    q->state = REMOTE_SENDING;
    q->next = NULL;
    r->slot[i] = q;
}

static struct remote_request *next_request(struct remote *r, struct remote_link *l) {
    struct remote_request *q = r->controls;
    for (uint32_t i = r->nslots; q && i < r->nslots + REMOTE_CONTROLS; i++) {
        if (r->slot[i]) continue;
        r->controls = q->next;
        take_slot(r, l, q, i, i + 1);
        return q;
    }
    for (struct remote_request **at = &r->queue; (q = *at); at = &q->next) {
        if (!slot_is_free(r, q)) {
            if (r->used_slots == r->nslots) return NULL;
            continue;
        }
        *at = q->next;
        take_slot(r, l, q, 0, r->nslots);
        r->used_slots++;
        r->updates_out += is_update(q);
        assert(r->used_slots <= r->nslots && r->updates_out <= r->used_slots);
        return q;
    }
    return NULL;
}

/* body: has room for SHORE__WIRE_COMMIT_BYTES. 0: the tail does not fit. */
static uint32_t put_body(unsigned char *body, struct remote_request *q) {
    unsigned char *at = body + SHORE__WIRE_FIELDS_BYTES;
    const struct shore_update *u = q->update;
    size_t offsets = u && u->form == SHORE_GRADIENT_SPARSE ? (size_t)q->fields.count + 1 : 0;
    size_t tail = u ? (size_t)u->ngroups * SHORE__WIRE_HYPER_BYTES + 4 * offsets : q->tail_bytes;
    if (tail > SHORE__WIRE_BODY_BYTES - SHORE__WIRE_FIELDS_BYTES) return 0;
    for (uint32_t i = 0; u && i < u->ngroups; i++, at += SHORE__WIRE_HYPER_BYTES)
        shore__wire_hyper_put(at, &u->groups[i]);
    const uint32_t *from = offsets ? u->offsets + (q->fields.segment - u->segment) : NULL;
    for (size_t i = 0; i < offsets; i++, at += 4)
        shore__put_u32(at, from[i] - from[0]);
    if (!u && tail) memcpy(at, q->tail, tail);
    if (q->blob_bytes) memcpy(at + tail, q->blob, q->blob_bytes);
    q->fields.tail_bytes = (uint32_t)tail + q->blob_bytes;
    shore__wire_request_put(body, &q->fields);
    return SHORE__WIRE_FIELDS_BYTES + q->fields.tail_bytes;
}

static void count_sent(struct remote *r, const struct remote_request *q) {
    for (int i = 0; i < REMOTE_PARTS; i++)
        r->crossed[q->bulk_counter[i]] += q->bulk_bytes[i];
    if (q->update && q->update->form == SHORE_GRADIENT_SPARSE)
        r->crossed[SHORE__COUNTER(link_in_compressed)] += 4 * ((uint64_t)q->fields.count + 1);
}

/* Gathers the gradient of a request with a gather list, while its slot on the far side waits. */
static int gather(struct remote_link *l, struct remote_request *q, struct shore_diag *diag) {
    const struct shore_update *u = q->update;
    const struct shore_layout *layout = l->remote->config.layout;
    if (!u || !u->gather) return 0;
    size_t bytes = q->bulk_bytes[0];
    if (l->gathered_bytes < bytes) {
        void *more = realloc(l->gathered, bytes);
        if (!more) return shore__fail(diag, -ENOMEM, "out of memory");
        l->gathered = more;
        l->gathered_bytes = bytes;
    }
    const struct shore__gather_list list = {u->gather, u->ngather};
    uint64_t first = (uint64_t)q->fields.segment * SHORE_SEGMENT_ELEMS;
    if (q->fields.kind == SHORE_GRADIENT_ROWS)
        shore__gather_pack(&list, first,
                           shore__layout_elems(layout, q->fields.block, q->fields.segment, q->fields.count),
                           l->gathered);
    else if (u->form == SHORE_GRADIENT_BF16)
        shore__gather_fill_bf16(&list, first, bytes / sizeof(uint16_t), l->gathered);
    else
        shore__gather_fill(&list, first, bytes / sizeof(float), l->gathered);
    q->bulk[0] = l->gathered;
    return 0;
}

/* Returns when the link was done; 0: nothing is recorded. */
static uint64_t record_link(struct remote *r, enum shore_lane lane, uint64_t start, uint64_t bytes) {
    const uint64_t now = start ? shore__now_ns() : 0;
    if (start && bytes) shore__recorder_worked(r->drive.recorder, lane, r->drive.desc->drive, start, now, bytes);
    return now;
}

static int send_request(struct remote *r, struct remote_link *l, struct remote_request *q, unsigned char *body,
                        struct shore_diag *diag) {
    struct shore__frame frame = {.type = q->fields.type, .id = q->id, .body = body, .body_bytes = put_body(body, q)};
    if (!frame.body_bytes) return shore__fail(diag, -E2BIG, "a request does not fit a frame");
    int rc = gather(l, q, diag);
    if (rc) return rc;
    for (int i = 0; i < REMOTE_PARTS; i++)
        if (q->bulk_bytes[i])
            frame.bulk[frame.nbulk++] = (struct iovec){(void *)(uintptr_t)q->bulk[i], q->bulk_bytes[i]};
    const uint64_t start = shore__recorder_clock(r->drive.recorder);
    shore__busy_begin(&r->link_busy);
    rc = shore__conn_send(&l->way.conn, &frame, diag);
    shore__busy_end(&r->link_busy);
    const uint64_t sent_ns = record_link(r, SHORE_LANE_LINK_IN, start, q->bulk_bytes[0] + q->bulk_bytes[1]);
    pthread_mutex_lock(&r->lock);
    if (!rc) count_sent(r, q);
    q->sent_ns = sent_ns;
    bool answered = q->state == REMOTE_ANSWERED;
    q->state = REMOTE_SENT;
    l->sends = false;
    pthread_mutex_unlock(&r->lock);
    if (answered) { /* the answer was faster than this thread */
        struct shore_diag *why = q->diag;
        finish(r, q, q->rc, why);
        free(why);
    }
    return rc;
}

static void *writer(void *ctx) {
    struct remote_link *l = ctx;
    struct remote *r = l->remote;
    struct shore_diag diag;
    unsigned char *body = malloc(SHORE__WIRE_COMMIT_BYTES);
    int rc = body ? 0 : shore__fail(&diag, -ENOMEM, "out of memory");
    while (!rc) {
        struct timespec until;
        shore__conn_next_beat(&l->way.conn, &until);
        int waited = 0;
        struct remote_request *q = NULL;
        pthread_mutex_lock(&r->lock);
        while (!r->broken && !(q = next_request(r, l)) && !waited)
            waited = pthread_cond_timedwait(&r->due, &r->lock, &until);
        bool broken = r->broken;
        pthread_mutex_unlock(&r->lock);
        if (q) {
            /* also if the connection has just broken: the request has its slot already */
            rc = send_request(r, l, q, body, &diag);
        } else if (broken) {
            break;
        } else {
            struct shore__frame alive = {.type = SHORE__WIRE_ALIVE};
            rc = shore__conn_send(&l->way.conn, &alive, &diag);
        }
    }
    if (rc) break_off(r, rc, &diag);
    free(body);
    free(l->gathered);
    l->gathered = NULL;
    l->gathered_bytes = 0;
    thread_ends(r);
    return NULL;
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */

static int keep_result(struct remote_request *q, const struct shore__wire_answer *a, struct remote *r) {
    struct remote_whole *w = q->whole;
    if (w->seal) {
        if (a->result_bytes != 16) return -EINVAL;
        pthread_mutex_lock(&r->lock);
        shore__sum_add(w->seal_sum, a->result);
        pthread_mutex_unlock(&r->lock);
    } else if (a->result_bytes && w->nparts == 1) {
        w->result = malloc(a->result_bytes);
        if (!w->result) return -ENOMEM;
        memcpy(w->result, a->result, a->result_bytes);
        w->result_bytes = a->result_bytes;
    }
    return 0;
}

/* What the drive did between a request and its answer. */
static void record_drive(struct remote *r, const struct remote_request *q, uint64_t came_ns) {
    enum shore_lane lane = SHORE_LANE_DRIVE_READ;
    if (q->fields.type == SHORE__WIRE_UPDATE)
        lane = SHORE_LANE_DRIVE_UPDATE;
    else if (q->fields.type == SHORE__WIRE_CALL && shore__function(q->fields.kind)->run)
        lane = SHORE_LANE_DRIVE_UPDATE;
    else if (q->fields.type == SHORE__WIRE_CALL && q->bulk_bytes[0])
        lane = SHORE_LANE_DRIVE_WRITE;
    else if (q->fields.type != SHORE__WIRE_FETCH && q->fields.type != SHORE__WIRE_CALL)
        return;
    shore__recorder_worked(r->drive.recorder, lane, r->drive.desc->drive, q->sent_ns, came_ns, 0);
}

/* Takes an answer whose bulk is still to be read. */
static int take_answer(struct remote *r, struct remote_link *l, const struct shore__wire_header *h,
                       const unsigned char *body, struct shore_diag *diag) {
    struct shore__wire_answer a;
    struct shore_diag *why = NULL;
    int rc = shore__wire_answer_get(h, body, &a, diag);
    if (rc) return rc;
    uint32_t index = h->id & 0xFFFF;
    pthread_mutex_lock(&r->lock);
    struct remote_request *q = index < r->nslots + REMOTE_CONTROLS ? r->slot[index] : NULL;
    if (q && (q->id != h->id || q->link != l)) q = NULL;
    pthread_mutex_unlock(&r->lock);
    if (!q) return shore__fail(diag, SHORE_ELINK, "an answer came that belongs to no request");
    if (h->bulk_bytes != (a.rc ? 0 : q->dst_bytes))
        return shore__fail(diag, SHORE_ELINK, "an answer came with %llu bytes instead of %llu",
                           (unsigned long long)h->bulk_bytes, (unsigned long long)q->dst_bytes);
    const uint64_t came_ns = shore__recorder_clock(r->drive.recorder);
    if (h->bulk_bytes) {
        shore__busy_begin(&r->link_busy);
        rc = shore__conn_read(&l->way.conn, q->dst, q->dst_bytes, diag);
        shore__busy_end(&r->link_busy);
        record_link(r, SHORE_LANE_LINK_OUT, came_ns, h->bulk_bytes);
    }
    if (!rc && !a.rc) rc = keep_result(q, &a, r);
    if (rc == -EINVAL) rc = shore__fail(diag, SHORE_ELINK, "an answer came with invalid results");
    if (rc) return rc == -ENOMEM ? shore__fail(diag, rc, "out of memory") : rc;
    if (a.rc) {
        why = malloc(sizeof *why);
        if (why) shore__wire_answer_fail(&a, r->drive.path, why);
    }
    pthread_mutex_lock(&r->lock);
    r->crossed[q->dst_counter] += h->bulk_bytes;
    r->slot[index] = NULL;
    if (index < r->nslots) {
        assert(r->used_slots > 0 && r->updates_out >= is_update(q));
        r->used_slots--;
        r->updates_out -= is_update(q);
    }
    bool sent = q->state == REMOTE_SENT;
    if (sent && q->sent_ns && came_ns) record_drive(r, q, came_ns);
    if (!sent) {
        q->state = REMOTE_ANSWERED;
        q->rc = a.rc;
        q->diag = why;
    }
    pthread_cond_broadcast(&r->due);
    pthread_mutex_unlock(&r->lock);
    if (sent) {
        finish(r, q, a.rc, why);
        free(why);
    }
    return 0;
}

/* Checks the server's progress. None is needed while this side still sends, or waits for nothing. */
static int check_progress(struct remote *r, struct remote_link *l, const struct shore__wire_header *h,
                          struct shore_diag *diag) {
    pthread_mutex_lock(&r->lock);
    bool waits = r->under_way;
    for (unsigned i = 0; i < r->nlinks; i++)
        waits = waits && !r->links[i].sends;
    pthread_mutex_unlock(&r->lock);
    if (!waits) shore__conn_expect(&l->way.conn);
    return shore__conn_gets_on(&l->way.conn, h, diag);
}

static void *reader(void *ctx) {
    struct remote_link *l = ctx;
    struct remote *r = l->remote;
    struct shore__wire_header h;
    struct shore_diag diag;
    unsigned char *body = NULL;
    size_t room = 0;
    int rc = 0;
    while (!rc) {
        rc = shore__conn_receive(&l->way.conn, false, &h, &body, &room, &diag);
        if (!rc) rc = check_progress(r, l, &h, &diag);
        if (!rc && h.type == SHORE__WIRE_DONE) rc = take_answer(r, l, &h, body, &diag);
    }
    break_off(r, rc, &diag);
    free(body);
    thread_ends(r);
    return NULL;
}

/* ---- for the drive ----------------------------------------------------------------------------------------------- */

int shore__remote_submit(struct remote *r, struct remote_whole *w) {
    assert(w->nparts > 0);
    pthread_mutex_lock(&r->lock);
    int rc = r->broken ? r->broken_rc : 0;
    for (uint32_t i = 0; !rc && i < w->nparts; i++) {
        struct remote_request *q = &w->part[i], **at;
        q->whole = w;
        q->state = REMOTE_QUEUED;
        at = shore__wire_takes_slot(q->fields.type) ? &r->queue : &r->controls;
        while (*at && (*at)->rank <= q->rank)
            at = &(*at)->next;
        q->next = *at;
        *at = q;
    }
    if (!rc) {
        w->left = w->nparts;
        r->under_way++;
        pthread_cond_broadcast(&r->due);
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

void shore__remote_take_back(struct remote *r, uint64_t attempt) {
    struct remote_request *taken = NULL;
    pthread_mutex_lock(&r->lock);
    for (struct remote_request **at = &r->queue, *q; (q = *at);) {
        if (is_update(q) && q->fields.era != attempt) {
            *at = q->next;
            q->next = taken;
            taken = q;
        } else {
            at = &q->next;
        }
    }
    pthread_mutex_unlock(&r->lock);
    for (struct remote_request *next; taken; taken = next) {
        next = taken->next;
        finish(r, taken, SHORE_EDISCARDED, NULL);
    }
}

void shore__remote_drain(struct remote *r) {
    pthread_mutex_lock(&r->lock);
    while (r->under_way)
        pthread_cond_wait(&r->idle, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

int shore__remote_start(struct remote *r) {
    int rc = 0;
    assert(!r->under_way && !r->queue && !r->controls && r->nslots <= SHORE__WIRE_SLOTS_MOST);
    r->slot = calloc(r->nslots + REMOTE_CONTROLS, sizeof *r->slot);
    if (!r->slot) return -ENOMEM;
    r->threads = 2 * r->nlinks;
    for (unsigned i = 0; !rc && i < r->nlinks; i++) {
        struct remote_link *l = &r->links[i];
        l->remote = r;
        rc = shore__thread_start(&l->writer, "shore-send", writer, l);
        l->writes = !rc;
        if (!rc) rc = shore__thread_start(&l->reader, "shore-receive", reader, l);
        l->reads = !rc;
    }
    if (rc) { /* threads that were not started count as ended */
        pthread_mutex_lock(&r->lock);
        for (unsigned i = 0; i < r->nlinks; i++)
            r->threads -= !r->links[i].reads + !r->links[i].writes;
        pthread_mutex_unlock(&r->lock);
    }
    return rc;
}

void shore__remote_stop(struct remote *r) {
    struct shore_diag why;
    shore__fail(&why, SHORE_ELINK, "the connection has ended");
    break_off(r, SHORE_ELINK, &why);
    for (unsigned i = 0; i < r->nlinks; i++) {
        struct remote_link *l = &r->links[i];
        if (l->writes) pthread_join(l->writer, NULL);
        if (l->reads) pthread_join(l->reader, NULL);
        l->writes = l->reads = false;
    }
    for (unsigned i = 0; i < r->nlinks; i++) {
        struct shore__conn *c = &r->links[i].way.conn;
        r->closed_in += c->in_bytes;
        r->closed_out += c->out_bytes;
        c->in_bytes = c->out_bytes = 0;
        shore__way_close(&r->links[i].way);
    }
    r->nlinks = 0;
    free(r->slot);
    r->slot = NULL;
}
