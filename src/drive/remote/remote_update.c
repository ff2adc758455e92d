/* Updates of a remote drive, cut into spans that each fit a slot there. */
#include <errno.h>
#include <string.h>

#include "drive/remote/remote_link.h"

/* Bytes of a span of an update in a slot: each of its three buffers starts at a page. */
static uint64_t update_bytes(const struct remote *r, const struct shore_update *u, uint32_t at, uint32_t count) {
    uint64_t elems = (uint64_t)count * SHORE_SEGMENT_ELEMS, gradient = 0;
    if (u->form == SHORE_GRADIENT_SPARSE)
        gradient = u->offsets[at + count] - u->offsets[at];
    else if (u->form == SHORE_GRADIENT_ROWS)
        gradient = elems * sizeof(float); /* the most */
    else if (!shore__update_is_spilled(u))
        gradient = count * shore__gradient_segment_bytes(u->form);
    return (gradient + SHORE__IO_ALIGN - 1) / SHORE__IO_ALIGN * SHORE__IO_ALIGN + (u->residual ? elems * 2 : 0) +
           (u->params_out ? elems * (r->config.fp32_params ? 4 : 2) : 0);
}

/* The largest number of segments such that each span fits a slot. 0: not even one fits. */
static uint32_t update_span(const struct remote *r, const struct shore_update *u) {
    for (uint32_t n = r->info.span_segments; n; n--) {
        bool fits = true;
        for (uint32_t at = 0; fits && at < u->count; at += n)
            fits = update_bytes(r, u, at, u->count - at < n ? u->count - at : n) <= r->info.slot_bytes;
        if (fits) return n;
    }
    return 0;
}

static void fill_update(struct remote *r, struct remote_request *q, const struct shore_update *u) {
    struct shore__wire_request *f = &q->fields;
    uint32_t at = f->segment - u->segment;
    size_t elem = (size_t)at * SHORE_SEGMENT_ELEMS;
    f->step = u->base_step;
    f->era = u->attempt;
    f->kind = u->form;
    f->order = u->order;
    f->coefficient = u->coefficient;
    f->ngroups = u->ngroups;
    q->rank = (uint64_t)u->order + 1; /* requests that somebody waits for go first */
    q->update = u;
    if (u->form == SHORE_GRADIENT_SPARSE) {
        q->bulk[0] = (const unsigned char *)u->gradient + u->offsets[at];
        q->bulk_bytes[0] = u->offsets[at + f->count] - u->offsets[at];
        q->bulk_counter[0] = SHORE__COUNTER(link_in_compressed);
    } else if (u->form == SHORE_GRADIENT_ROWS) {
        const struct shore_update part = shore__update_part(&r->config, u, f->segment, f->count);
        q->bulk_bytes[0] = shore__update_gradient_bytes(&r->config, &part);
        q->bulk_counter[0] = SHORE__COUNTER(link_in_gradients);
        /* rows that are as many bytes as all elements travel as those */
        if (q->bulk_bytes[0] == shore__remote_crossing(r, f, SHORE_SEGMENT_ELEMS * sizeof(float)))
            f->kind = SHORE_GRADIENT_FP32;
    } else if (!shore__update_is_spilled(u)) {
        size_t each = shore__gradient_segment_bytes(u->form);
        q->bulk[0] = u->gather ? NULL : (const unsigned char *)u->gradient + at * each;
        q->bulk_bytes[0] = shore__remote_crossing(r, f, each);
        q->bulk_counter[0] = SHORE__COUNTER(link_in_gradients);
    } else {
        f->flags |= SHORE__WIRE_SPILLED;
    }
    f->bytes = q->bulk_bytes[0];
    if (u->residual) {
        f->flags |= SHORE__WIRE_RESIDUAL;
        q->bulk[1] = u->residual + elem;
        q->bulk_bytes[1] = shore__remote_crossing(r, f, (size_t)SHORE_SEGMENT_ELEMS * 2);
        q->bulk_counter[1] = SHORE__COUNTER(link_in_state);
    }
    if (u->params_out) {
        size_t each = (size_t)SHORE_SEGMENT_ELEMS * (r->config.fp32_params ? 4 : 2);
        f->flags |= SHORE__WIRE_PARAMS;
        q->dst = (unsigned char *)u->params_out + at * each;
        q->dst_bytes = shore__remote_crossing(r, f, each);
        memset((unsigned char *)q->dst + q->dst_bytes, 0, f->count * each - q->dst_bytes);
        q->dst_counter = SHORE__COUNTER(link_out_params);
    }
}

int shore__remote_update(struct shore__drive *d, const struct shore_update *update, struct shore_completion done) {
    struct remote *r = remote_of(d);
    int rc = shore__update_check(&r->config, update);
    if (rc) return rc;
    if (!shore__extent_find(d->desc, update->block, update->segment, update->count)) return -EINVAL;
    struct shore_update u = *update;
    /* if it is not stored, it need not be sent */
    if (!r->config.plane_bytes[SHORE_PLANE_R]) u.residual = NULL;
    if (u.ngroups > SHORE__WIRE_GROUPS_MOST) u.ngroups = SHORE__WIRE_GROUPS_MOST;
    uint32_t most = update_span(r, &u);
    if (!most) return -EINVAL;
    struct remote_whole *w = shore__remote_over_segments(SHORE__WIRE_UPDATE, u.block, u.segment, u.count, most, done);
    if (!w) return -ENOMEM;
    w->update = u;
    for (uint32_t i = 0; i < w->nparts; i++)
        fill_update(r, &w->part[i], &w->update);
    return shore__remote_send(r, w);
}
