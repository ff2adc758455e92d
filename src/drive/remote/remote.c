/* A remote drive: its table of operations. */
#include "drive/remote/remote.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/units.h"
#include "drive/remote/remote_link.h"

#define CALL_SPAN_BYTES (UINT64_C(1) << 20) /* a seal is the sum over spans of this size, the same for every server */

/* ---- synchronous requests ---------------------------------------------------------------------------------------- */

struct control {
    struct shore__wire_request fields;
    const void *tail;
    uint32_t tail_bytes;
    unsigned char *result; /* the result is copied here if there is room */
    uint32_t result_room, result_bytes;
};

static void look_at_result(struct remote *r, const struct remote_whole *w) {
    struct control *c = w->ctx;
    c->result_bytes = w->result_bytes;
    if (w->result_bytes <= c->result_room && w->result_bytes) memcpy(c->result, w->result, w->result_bytes);
}

static int control(struct remote *r, struct control *c, struct shore_diag *diag) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    struct remote_whole *w = shore__remote_whole(1, shore_wait_completion(&wait));
    if (!w) return shore__fail(diag, -ENOMEM, "%s: out of memory", r->drive.path);
    w->part[0].fields = c->fields;
    w->part[0].tail = c->tail;
    w->part[0].tail_bytes = c->tail_bytes;
    w->look = look_at_result;
    w->ctx = c;
    int rc = shore__remote_send(r, w);
    if (rc) {
        pthread_mutex_lock(&r->lock);
        if (diag) *diag = r->why;
        pthread_mutex_unlock(&r->lock);
        return rc;
    }
    return shore_wait(&wait, diag);
}

static void new_ledger(struct remote *r, const unsigned char *data, uint32_t bytes) {
    struct shore_ledger now = {0};
    if (!shore__wire_ledger_get(data, bytes, &now)) return;
    pthread_mutex_lock(&r->lock);
    r->far = now;
    pthread_mutex_unlock(&r->lock);
}

static int remote_recovery(const struct shore__drive *d, struct shore__drive_recovery *out, struct shore_diag *diag) {
    struct remote *r = remote_of(d);
    unsigned char data[SHORE__WIRE_RECOVERY_BYTES];
    struct control c = {.fields.type = SHORE__WIRE_RECOVERY, .result = data, .result_room = sizeof data};
    int rc = control(r, &c, diag);
    if (!rc && (c.result_bytes > sizeof data || !shore__wire_recovery_get(data, c.result_bytes, out)))
        rc = shore__fail(diag, SHORE_ELINK, "%s: its answer cannot be understood", r->drive.path);
    return rc;
}

static int remote_load(struct shore__drive *d, uint64_t step, struct shore_diag *diag) {
    struct control c = {.fields = {.type = SHORE__WIRE_LOAD, .step = step}};
    return control(remote_of(d), &c, diag);
}

static int remote_begin(struct shore__drive *d, uint64_t epoch, uint64_t step, struct shore_diag *diag) {
    unsigned char data[SHORE__WIRE_LEDGER_BYTES];
    struct control c = {
        .fields = {.type = SHORE__WIRE_BEGIN, .step = step, .era = epoch}, .result = data, .result_room = sizeof data};
    int rc = control(remote_of(d), &c, diag);
    if (!rc && c.result_bytes <= sizeof data) new_ledger(remote_of(d), data, c.result_bytes);
    return rc;
}

static void remote_discard(struct shore__drive *d, uint64_t attempt) {
    struct remote *r = remote_of(d);
    struct control c = {.fields = {.type = SHORE__WIRE_DISCARD, .era = attempt}};
    shore__remote_take_back(r, attempt);
    control(r, &c, NULL); /* if the connection is broken, nothing runs any more */
    shore__remote_drain(r);
}

static int remote_leaf_sum(struct shore__drive *d, bool deep, unsigned char sum[16], struct shore_diag *diag) {
    struct control c = {.fields = {.type = SHORE__WIRE_LEAF_SUM, .flags = deep ? SHORE__WIRE_DEEP : 0},
                        .result = sum,
                        .result_room = 16};
    int rc = control(remote_of(d), &c, diag);
    if (!rc && c.result_bytes != 16)
        rc = shore__fail(diag, SHORE_ELINK, "%s: its answer cannot be understood", d->path);
    return rc;
}

static int remote_snapshot(struct shore__drive *d, enum shore__snapshot_act act, const char *name,
                           struct shore_diag *diag) {
    struct control c = {.fields = {.type = SHORE__WIRE_SNAPSHOT, .kind = act}, .tail = name};
    c.tail_bytes = (uint32_t)strnlen(name, 255);
    return control(remote_of(d), &c, diag);
}

static int remote_init(struct shore__drive *d, uint32_t block, uint32_t segment, uint32_t count, const float *master,
                       const float *m, const float *v, struct shore_diag *diag) {
    struct remote *r = remote_of(d);
    struct shore_wait wait;
    const float *arrays[3] = {master, m, v};
    if (!shore__extent_find(d->desc, block, segment, count))
        return shore__fail(diag, -EINVAL, "%s: initial state has segments that are not on this drive", r->drive.path);
    uint32_t most = shore__remote_span(r, (uint64_t)SHORE_SEGMENT_ELEMS * 4);
    if (m || v) most = shore__remote_span(r, (uint64_t)SHORE_SEGMENT_ELEMS * 12);
    shore_wait_init(&wait);
    struct remote_whole *w =
        shore__remote_over_segments(SHORE__WIRE_INIT, block, segment, count, most, shore_wait_completion(&wait));
    if (!w) return shore__fail(diag, -ENOMEM, "%s: out of memory", r->drive.path);
    for (uint32_t i = 0; i < w->nparts; i++) {
        struct remote_request *q = &w->part[i];
        size_t at = (size_t)(q->fields.segment - segment) * SHORE_SEGMENT_ELEMS;
        q->fields.flags = (m ? SHORE__WIRE_HAS_M : 0) | (v ? SHORE__WIRE_HAS_V : 0);
        for (int k = 0, n = 0; k < 3; k++) {
            if (!arrays[k]) continue;
            q->bulk[n] = arrays[k] + at;
            q->bulk_bytes[n] = (size_t)q->fields.count * SHORE_SEGMENT_ELEMS * 4;
            q->bulk_counter[n++] = SHORE__COUNTER(link_in_state);
        }
    }
    int rc = shore__remote_send(r, w);
    return rc ? shore__fail_of(diag, rc, &r->why, "%s", r->why.text) : shore_wait(&wait, diag);
}

/* ---- others ------------------------------------------------------------------------------------------------------ */

static int remote_fetch(struct shore__drive *d, const struct shore__drive_fetch *fetch, struct shore_completion done) {
    struct remote *r = remote_of(d);
    size_t each = shore__fetch_segment_bytes(r->config.plane_bytes, fetch->kind);
    if (!shore__extent_find(d->desc, fetch->block, fetch->segment, fetch->count)) return -EINVAL;
    struct remote_whole *w = shore__remote_over_segments(SHORE__WIRE_FETCH, fetch->block, fetch->segment, fetch->count,
                                                         shore__remote_span(r, each), done);
    if (!w) return -ENOMEM;
    for (uint32_t i = 0; i < w->nparts; i++) {
        struct remote_request *q = &w->part[i];
        q->fields.step = fetch->step;
        q->fields.kind = fetch->kind;
        size_t bytes = q->fields.count * each;
        q->dst = (unsigned char *)fetch->dst + (q->fields.segment - fetch->segment) * each;
        q->dst_bytes = fetch->kind == SHORE_FETCH_STATE ? bytes : shore__remote_crossing(r, &q->fields, each);
        memset((unsigned char *)q->dst + q->dst_bytes, 0, bytes - q->dst_bytes);
        q->dst_counter = shore__counter_of_fetch(fetch->kind);
    }
    return shore__remote_send(r, w);
}

static int remote_store(struct shore__drive *d, const struct shore_store *store, struct shore_completion done) {
    struct remote *r = remote_of(d);
    size_t each = shore__state_segment_bytes(r->config.plane_bytes);
    if (!shore__extent_find(d->desc, store->block, store->segment, store->count)) return -EINVAL;
    struct remote_whole *w = shore__remote_over_segments(SHORE__WIRE_STORE, store->block, store->segment, store->count,
                                                         shore__remote_span(r, each), done);
    if (!w) return -ENOMEM;
    for (uint32_t i = 0; i < w->nparts; i++) {
        struct remote_request *q = &w->part[i];
        q->fields.step = store->base_step;
        q->fields.era = store->attempt;
        q->fields.order = store->order;
        q->rank = (uint64_t)store->order + 1;
        q->bulk[0] = (const unsigned char *)store->state + (q->fields.segment - store->segment) * each;
        q->bulk_bytes[0] = q->fields.count * each;
        q->bulk_counter[0] = SHORE__COUNTER(link_in_state);
    }
    return shore__remote_send(r, w);
}

static void fill_call(const struct remote *r, struct remote_request *q, const struct shore__call *part) {
    const struct shore__function *f = shore__function(part->function);
    const uint64_t in = shore__call_in_bytes(part), out = shore__call_out_bytes(part);
    shore__wire_call_put(&q->fields, part);
    q->tail = part->argument;
    q->tail_bytes = part->argument_bytes;
    q->bulk[0] = part->in;
    q->bulk_bytes[0] = shore__call_crossing(part, r->config.layout, in);
    q->bulk_counter[0] = f->link_in;
    q->dst = part->out;
    q->dst_bytes = shore__call_crossing(part, r->config.layout, out);
    q->dst_counter = f->link_out;
    if (out) memset((unsigned char *)part->out + q->dst_bytes, 0, out - q->dst_bytes);
}

/* Units of a part. 0: it fits no slot. */
static uint64_t call_span(const struct remote *r, const struct shore__call *call) {
    const struct shore__function *f = shore__function(call->function);
    const uint64_t units = shore__call_units(call), grain = f->over == SHORE__OVER_SCRATCH ? SHORE__IO_ALIGN : 1;
    if (!f->run)
        return f->over == SHORE__OVER_SEGMENTS ? shore__remote_span(r, shore__call_unit_bytes(call)) : CALL_SPAN_BYTES;
    for (uint64_t span = units; span; span = span / 2 / grain * grain) {
        struct shore__call part = shore__call_part(call, 0, span);
        if (part.in_bytes <= r->info.slot_bytes && part.out_bytes <= r->info.slot_bytes &&
            shore__arena_round(part.in_bytes) + part.out_bytes <= r->info.slot_bytes)
            return span;
        if (!f->cuttable) break;
    }
    return 0;
}

/* Runs a function. A seal is the sum of its spans' seals; put and get cut alike, so it is the same for both. */
static int remote_call(struct shore__drive *d, const struct shore__call *call, struct shore_completion done) {
    struct remote *r = remote_of(d);
    struct shore_diag why;
    int rc = shore__call_check(call, r->drive.desc, &why);
    const uint64_t units = rc ? 0 : shore__call_units(call), most = rc ? 0 : call_span(r, call);
    if (!rc && !most)
        rc = shore__fail(&why, -E2BIG, "%s takes and gives more than the %s that its server has for a request",
                         shore__function(call->function)->name, shore__format_size(r->info.slot_bytes).text);
    if (rc) return shore__call_refuse(done, rc, d->path, &why);
    struct remote_whole *w = shore__remote_whole(units ? (uint32_t)((units + most - 1) / most) : 1, done);
    if (!w) return -ENOMEM;
    if (shore__function(call->function)->seals) w->seal = call->seal;
    for (uint32_t i = 0; i < w->nparts; i++) {
        uint64_t at = i * most;
        struct shore__call part = shore__call_part(call, at, units - at < most ? units - at : most);
        fill_call(r, &w->part[i], &part);
    }
    return shore__remote_send(r, w);
}

static void look_at_commit(struct remote *r, const struct remote_whole *w) {
    new_ledger(r, w->result, w->result_bytes);
}

static int remote_commit(struct shore__drive *d, const struct shore_commit *commit, struct shore_completion done) {
    struct remote *r = remote_of(d);
    struct remote_whole *w = shore__remote_whole(1, done);
    if (!w) return -ENOMEM;
    w->look = look_at_commit;
    w->part[0].fields = (struct shore__wire_request){
        .type = SHORE__WIRE_COMMIT, .step = commit->step, .kind = commit->how, .bytes = commit->blob_bytes};
    w->part[0].tail = commit->metrics;
    w->part[0].tail_bytes = commit->metrics_bytes;
    w->part[0].blob = commit->blob;
    w->part[0].blob_bytes = (uint32_t)commit->blob_bytes;
    return shore__remote_send(r, w);
}

/* The server's answer about its drive, if it knows the question. */
static int remote_can_carry(const struct shore__drive *d, struct shore_diag *diag) {
    struct remote *r = remote_of(d);
    if (r->info.caps & SHORE__DRIVE_CARRIES) return 0;
    return shore__fail(diag, -ENOTSUP,
                       "%s: its volume has an older format, which holds no blob and carries no segments",
                       r->drive.path);
}

static int remote_carry(struct shore__drive *d, const struct shore_store *which, struct shore_completion done) {
    struct remote *r = remote_of(d);
    struct shore_diag why;
    if (!shore__extent_find(d->desc, which->block, which->segment, which->count)) return -EINVAL;
    int rc = remote_can_carry(d, &why);
    if (rc) {
        done.fn(done.ctx, rc, &why);
        return 0;
    }
    struct remote_whole *w =
        shore__remote_over_segments(SHORE__WIRE_CARRY, which->block, which->segment, which->count, which->count, done);
    if (!w) return -ENOMEM;
    w->part[0].fields.step = which->base_step;
    w->part[0].fields.era = which->attempt;
    return shore__remote_send(r, w);
}

static int remote_blob(struct shore__drive *d, void *blob, uint32_t *bytes, struct shore_diag *diag) {
    struct remote *r = remote_of(d);
    struct control c = {.fields.type = SHORE__WIRE_BLOB, .result = blob, .result_room = SHORE_BLOB_BYTES};
    *bytes = 0;
    if (remote_can_carry(d, NULL)) return 0; /* then it was given none */
    int rc = control(r, &c, diag);
    if (!rc && c.result_bytes > SHORE_BLOB_BYTES)
        rc = shore__fail(diag, SHORE_ELINK, "%s: its answer cannot be understood", r->drive.path);
    if (!rc) *bytes = c.result_bytes;
    return rc;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

void shore__remote_link_bytes(const struct shore__drive *d, uint64_t *in, uint64_t *out) {
    struct remote *r = remote_of(d);
    *in = r->closed_in;
    *out = r->closed_out;
    for (unsigned i = 0; i < r->nlinks; i++) {
        *in += r->links[i].way.conn.in_bytes;
        *out += r->links[i].way.conn.out_bytes;
    }
}

uint64_t shore__remote_link_ns(const struct shore__drive *d) {
    return shore__busy_ns(&remote_of(d)->link_busy);
}

/* Bulk counts where its request says; all other bytes are control. */
static void remote_ledger(const struct shore__drive *d, struct shore_ledger *add_to) {
    struct remote *r = remote_of(d);
    uint64_t in, out, bulk = 0;
    pthread_mutex_lock(&r->lock);
    shore__wire_ledger_add(add_to, &r->far_before);
    shore__wire_ledger_add(add_to, &r->far);
    for (size_t i = 1; i < SHORE__COUNTERS; i++) {
        *shore__counter(add_to, i) += r->crossed[i];
        bulk += r->crossed[i];
    }
    pthread_mutex_unlock(&r->lock);
    shore__remote_link_bytes(d, &in, &out);
    add_to->link_control += in + out - bulk;
}

static int remote_describe(const struct shore__drive *d, char *text, size_t bytes) {
    const struct remote *r = remote_of(d);
    snprintf(text, bytes, "%s: %s", r->drive.path, r->describe);
    return 0;
}

static void remote_close(struct shore__drive *d) {
    struct remote *r = remote_of(d);
    struct control c = {.fields = {.type = SHORE__WIRE_CLOSE}};
    if (r->slot) control(r, &c, NULL); /* releases its lock */
    shore__remote_stop(r);
    shore__wire_open_free(&r->info);
    shore__busy_fini(&r->link_busy);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->due);
    pthread_cond_destroy(&r->idle);
    free(r->describe);
    free(r);
}

static void remote_forked(struct shore__drive *d) {
    struct remote *r = remote_of(d);
    for (unsigned i = 0; i < r->nlinks; i++)
        shore__conn_fini(&r->links[i].way.conn);
}

const struct shore__drive_ops shore__remote_ops = {
    .caps = SHORE__DRIVE_DURABLE | SHORE__DRIVE_KEEPS_DATA | SHORE__DRIVE_COUNTS_LINK,
    .recovery = remote_recovery,
    .load = remote_load,
    .begin = remote_begin,
    .init = remote_init,
    .fetch = remote_fetch,
    .update = shore__remote_update,
    .store = remote_store,
    .carry = remote_carry,
    .call = remote_call,
    .commit = remote_commit,
    .blob = remote_blob,
    .can_carry = remote_can_carry,
    .discard = remote_discard,
    .leaf_sum = remote_leaf_sum,
    .snapshot = remote_snapshot,
    .ledger = remote_ledger,
    .describe = remote_describe,
    .close = remote_close,
    .forked = remote_forked,
};

bool shore__is_remote(const struct shore__drive *d) {
    return d->ops == &shore__remote_ops;
}

bool shore__remote_is_broken(const struct shore__drive *d, struct shore_diag *why) {
    struct remote *r = remote_of(d);
    pthread_mutex_lock(&r->lock);
    bool broken = r->broken;
    if (broken && why) *why = r->why;
    pthread_mutex_unlock(&r->lock);
    return broken;
}
