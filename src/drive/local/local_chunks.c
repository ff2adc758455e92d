#include "drive/local/local_chunks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "drive/local/on_device.h"
#include "near/opencl/opencl.h"
#include "storage/room.h"

/* The most operations of a chunk. A plane of a chunk is one extent, except for 8-bit moments, where each segment ends
 * in unused bytes. One more for a spilled gradient, or for a pause. */
unsigned shore__local_chunk_ops(const struct shore__drive_config *config) {
    unsigned moments = config->moments == SHORE_MOMENTS_FP32 ? 0 : 2 * (config->chunk_segments - 1);
    return SHORE_PLANE_COUNT + 1 + moments;
}

/* When a gate lets such work for the chunk end; 0: no gate. */
static uint64_t gate_ns(const struct shore__local *l, const struct chunk *c, enum shore_lane lane, uint64_t amount) {
    return shore__front_is_of_attempt(&l->front, c->job) ? shore__local_gate_ns(l, lane, amount) : 0;
}

static void submit_op(struct shore__pipeline *p, struct chunk *c, struct shore__io_op what) {
    struct shore__io_op *op = &c->op[c->pending];
    assert(c->pending < shore__local_chunk_ops(&p->l->front.config));
    *op = what;
    op->user = c;
    if (shore__local_io_begin(p->l, p->l->update_io, c->job, op))
        c->pending++;
    else
        c->failed = true;
}

void shore__chunk_move(struct shore__pipeline *p, struct chunk *c, enum shore__io_kind kind, void *buffer,
                       uint64_t offset, size_t bytes) {
    enum shore_lane lane = kind == SHORE__IO_WRITE ? SHORE_LANE_DRIVE_WRITE : SHORE_LANE_DRIVE_READ;
    submit_op(p, c,
              (struct shore__io_op){.kind = kind,
                                    .buffer = buffer,
                                    .offset = offset,
                                    .bytes = (uint32_t)bytes,
                                    .not_before_ns = gate_ns(p->l, c, lane, bytes)});
}

/* Amount of a lane's work in the chunk, other than moving state: bytes on the host link, or elements. */
static uint64_t amount_of(const struct shore__local *l, const struct chunk *c, enum shore_lane lane) {
    if (c->job->kind == SHORE__LOCAL_STORE)
        return lane == SHORE_LANE_LINK_IN ? c->count * shore__state_segment_bytes(l->front.config.plane_bytes) : 0;
    if (lane == SHORE_LANE_DRIVE_UPDATE) return (uint64_t)c->count * SHORE_SEGMENT_ELEMS;
    struct shore_update part = shore__update_part(&l->front.config, &c->job->update, c->segment, c->count);
    return lane == SHORE_LANE_LINK_IN ? shore__update_bytes_in(&l->front.config, &part)
                                      : shore__update_bytes_out(&l->front.config, &part);
}

void shore__chunk_hold(struct shore__pipeline *p, struct chunk *c, enum shore_lane lane) {
    if (!p->l->front.drive.gate || !shore__front_is_of_attempt(&p->l->front, c->job)) return;
    uint64_t amount = amount_of(p->l, c, lane);
    if (!amount) return;
    uint64_t over_ns = gate_ns(p->l, c, lane, amount);
    submit_op(p, c, (struct shore__io_op){.kind = SHORE__IO_PAUSE, .not_before_ns = over_ns});
}

bool shore__chunk_reads(const struct shore__local_job *job, enum shore_plane plane) {
    return job->kind != SHORE__LOCAL_UPDATE || plane != SHORE_PLANE_R;
}

/* Submits the used extents of a plane. Returns the bytes. */
static uint64_t submit_plane(struct shore__pipeline *p, struct chunk *c, enum shore__io_kind kind, unsigned slot,
                             enum shore_plane plane) {
    const struct shore__drive_config *config = &p->l->front.config;
    size_t each = config->plane_bytes[plane];
    uint64_t total = 0;
    for (uint32_t i = 0; each && i < c->count;) {
        unsigned char *first = c->stored.plane[plane] + i * each;
        uint64_t offset = shore__volume_plane_offset(&p->l->volume, slot, plane, c->local + i);
        size_t bytes = 0, stored = each;
        for (; stored == each && i < c->count; i++) {
            stored = shore__stored_bytes(config, c->job->block, c->segment + i, plane);
            if (kind == SHORE__IO_READ) shore__stored_end(config, c->job->block, c->segment + i, plane, first + bytes);
            bytes += stored;
        }
        if (kind == SHORE__IO_WRITE && shore__room_leave_out(&p->l->volume, c->job->block, first, offset, bytes))
            continue;
        shore__chunk_move(p, c, kind, first, offset, bytes);
        total += bytes;
    }
    return total;
}

uint64_t shore__chunk_planes(struct shore__pipeline *p, struct chunk *c, enum shore__io_kind kind, unsigned slot) {
    uint64_t total = 0;
    for (int plane = 0; plane < SHORE_PLANE_COUNT; plane++)
        if (kind != SHORE__IO_READ || shore__chunk_reads(c->job, plane)) total += submit_plane(p, c, kind, slot, plane);
    return total;
}

static int compute_here(struct shore__engine_job *work) {
    const struct chunk *c = work->user;
    return shore__chunk_update(&c->l->front.config, &work->update, &c->stored, &c->stored, &work->diag);
}

/* The chunk's planes lie one behind the other. Returns where they end. */
static unsigned char *lay_planes(const struct shore__drive_config *config, struct chunk *c, unsigned char *at) {
    for (int plane = 0; plane < SHORE_PLANE_COUNT; plane++) {
        c->stored.plane[plane] = at;
        at += (size_t)config->chunk_segments * config->plane_bytes[plane];
    }
    return at;
}

struct shore__pipeline *shore__pipeline_new(struct shore__local *l) {
    size_t nops = shore__local_chunk_ops(&l->front.config);
    size_t chunk_bytes = sizeof(struct chunk) + nops * sizeof(struct shore__io_op);
    struct shore__pipeline *p = calloc(1, sizeof *p + l->front.config.ring_buffers * chunk_bytes);
    if (!p) return NULL;
    p->l = l;
    p->nchunks = l->front.config.ring_buffers;
    p->on_device = l->engine != &l->host;
    struct shore__io_op *ops = (struct shore__io_op *)(void *)&p->chunk[p->nchunks];
    unsigned char *at = l->ring;
    for (uint32_t i = 0; i < p->nchunks; i++) {
        at = lay_planes(&l->front.config, &p->chunk[i], at);
        p->chunk[i].l = l;
        p->chunk[i].work.here = compute_here;
        p->chunk[i].work.user = &p->chunk[i];
        p->chunk[i].op = ops + i * nops;
        p->chunk[i].work.slot = i;
        p->chunk[i].gradient = at;
        if (p->on_device) {
            shore__on_device_lay_out(&p->chunk[i].work, at, l->front.config.chunk_segments);
            at += (size_t)l->front.config.chunk_segments * shore__on_device_segment_bytes();
        } else if (l->front.spilled) {
            at += (size_t)l->front.config.chunk_segments * SHORE_SEGMENT_ELEMS * 4;
        }
    }
    return p;
}

int shore__pipeline_attach(struct shore__pipeline *p, struct shore_diag *diag) {
    int rc = 0;
    for (uint32_t i = 0; p->on_device && !rc && i < p->nchunks; i++) {
        unsigned char *planes = p->chunk[i].stored.plane[0];
        rc = shore__opencl_attach(p->l->engine, i, &planes, diag);
        lay_planes(&p->l->front.config, &p->chunk[i], planes);
    }
    if (rc || !p->on_device) return rc;
    return shore__on_device_check(p->l, &p->chunk[0].work, p->chunk[0].stored.plane[0], diag);
}
