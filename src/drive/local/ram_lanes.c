/* Lanes of a drive in memory: UPDATE from one slot to the other, without copies. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/local/ram.h"
#include "number/bf16.h"

#define STEP_SEGMENTS 16u /* between two checks of the attempt */

/* Copies between a state image and the planes of a segment. */
static void copy_image(struct ram *r, unsigned slot, uint32_t local, unsigned char *image, bool store) {
    for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
        void *plane = shore__ram_plane(r, slot, p, local);
        size_t bytes = r->desc.plane_bytes[p];
        if (bytes) memcpy(store ? plane : image, store ? image : plane, bytes);
        image += bytes;
    }
}

static void fetch_moment(struct ram *r, const struct shore__local_job *job, enum shore_plane plane) {
    const struct shore__drive_fetch *fetch = &job->fetch;
    for (uint32_t i = 0; i < fetch->count; i++)
        shore__moments_load(&r->front.config.layout->blocks[fetch->block], fetch->segment + i, r->front.config.moments,
                            plane, shore__ram_plane(r, job->slot, plane, job->local + i),
                            (float *)fetch->dst + (size_t)i * SHORE_SEGMENT_ELEMS);
}

/* Fetches segments that lie in a row. */
static void fetch_run(struct ram *r, const struct shore__local_job *job) {
    size_t elems = (size_t)job->fetch.count * SHORE_SEGMENT_ELEMS;
    size_t bytes = elems * 4, image = shore__state_segment_bytes(r->desc.plane_bytes);
    const void *hi = shore__ram_plane(r, job->slot, SHORE_PLANE_HI, job->local);
    switch (job->fetch.kind) {
    case SHORE_FETCH_BF16:
        bytes = elems * 2;
        memcpy(job->fetch.dst, hi, bytes);
        break;
    case SHORE_FETCH_MASTER:
        shore__f32_join(job->fetch.dst, hi, shore__ram_plane(r, job->slot, SHORE_PLANE_LO, job->local), elems);
        break;
    case SHORE_FETCH_M:
    case SHORE_FETCH_V: {
        enum shore_plane plane = job->fetch.kind == SHORE_FETCH_M ? SHORE_PLANE_M : SHORE_PLANE_V;
        fetch_moment(r, job, plane);
        bytes = job->fetch.count * (size_t)r->desc.plane_bytes[plane];
        break;
    }
    case SHORE_FETCH_R:
        bytes = elems * 2;
        memcpy(job->fetch.dst, shore__ram_plane(r, job->slot, SHORE_PLANE_R, job->local), bytes);
        break;
    case SHORE_FETCH_SPILLED:
    case SHORE_FETCH_SPILLED_BF16:
        bytes = job->fetch.count * shore__gradient_segment_bytes(shore__fetch_form(job->fetch.kind));
        memcpy(job->fetch.dst, r->spill + job->local * (bytes / job->fetch.count), bytes);
        r->front.read_spill += bytes;
        return;
    case SHORE_FETCH_STATE:
        bytes = job->fetch.count * image;
        for (uint32_t i = 0; i < job->fetch.count; i++)
            copy_image(r, job->slot, job->local + i, (unsigned char *)job->fetch.dst + i * image, false);
        break;
    }
    r->front.read_fetch += bytes;
}

static int run_fetch(struct ram *r, struct shore__local_job *job) {
    struct shore__local_job part = *job;
    const struct shore__drive_fetch *whole = &job->fetch;
    for (uint32_t at = 0; at < whole->count; at += part.fetch.count) {
        part.local = job->local + at;
        part.fetch.segment = whole->segment + at;
        part.fetch.count = shore__slot_map_run(&r->map, job->slot, part.local, whole->count - at);
        part.fetch.dst =
            (unsigned char *)whole->dst + at * shore__fetch_segment_bytes(r->desc.plane_bytes, whole->kind);
        fetch_run(r, &part);
    }
    return 0;
}

static int run_init(struct ram *r, struct shore__local_job *job) {
    struct shore__stored to = shore__ram_stored(r, 0, job->local);
    shore__chunk_init(&r->front.config, job->block, job->segment, job->count, job->init.master, job->init.m,
                      job->init.v, &to);
    memset(r->front.written + job->local, 1, job->count);
    return 0;
}

static int run_update(struct ram *r, struct shore__local_job *job) {
    const struct shore_update *u = &job->update;
    int worst = 0;
    for (uint32_t at = 0, count; at < u->count; at += count) {
        if (shore__front_is_discarded(&r->front, job)) return SHORE_EDISCARDED;
        uint32_t local = job->local + at;
        count = u->count - at < STEP_SEGMENTS ? u->count - at : STEP_SEGMENTS;
        count = shore__slot_map_run(&r->map, job->slot, local, count);
        shore__slot_map_update(&r->map, 1 - job->slot, local, count);
        struct shore_update part = shore__update_part(&r->front.config, u, u->segment + at, count);
        if (shore__update_is_spilled(u)) part.gradient = r->spill + local * shore__gradient_segment_bytes(u->form);
        struct shore__stored in = shore__ram_stored(r, job->slot, local),
                             out = shore__ram_stored(r, 1 - job->slot, local);
        uint64_t start = shore__now_ns();
        int rc = shore__chunk_update(&r->front.config, &part, &in, &out, &job->diag);
        if (r->desc.plane_bytes[SHORE_PLANE_R])
            shore__update_residual(&part, shore__ram_plane(r, 1 - job->slot, SHORE_PLANE_R, local));
        r->front.compute_ns += shore__now_ns() - start;
        r->front.read_state += count * shore__state_segment_bytes(r->desc.plane_bytes);
        r->front.write_state += count * shore__state_segment_bytes(r->desc.plane_bytes);
        if (shore__update_is_spilled(u)) r->front.read_spill += count * shore__gradient_segment_bytes(u->form);
        if (rc && !worst) worst = rc;
        memset(r->front.written + local, 1, count);
    }
    return worst;
}

static int run_store(struct ram *r, struct shore__local_job *job) {
    size_t image = shore__state_segment_bytes(r->desc.plane_bytes);
    const unsigned slot = 1 - job->slot;
    if (shore__front_is_discarded(&r->front, job)) return SHORE_EDISCARDED;
    shore__slot_map_update(&r->map, slot, job->local, job->store.count);
    for (uint32_t i = 0; i < job->store.count; i++)
        copy_image(r, slot, job->local + i, (unsigned char *)(uintptr_t)job->store.state + i * image, true);
    memset(r->front.written + job->local, 1, job->store.count);
    if (!r->front.created) r->front.write_state += job->store.count * image;
    return 0;
}

static int run_carry(struct ram *r, struct shore__local_job *job) {
    if (shore__front_is_discarded(&r->front, job)) return SHORE_EDISCARDED;
    shore__slot_map_carry(&r->map, 1 - job->slot, job->local, job->count);
    memset(r->front.written + job->local, 1, job->count);
    return 0;
}

static int run_call(struct ram *r, struct shore__local_job *job) {
    const struct shore__call *c = &job->call;
    const struct shore__function *function = shore__function(c->function);
    if (function->run) return shore__ram_run(r, job);
    const bool brings = function->link_in != 0;
    uint64_t bytes = brings ? shore__call_in_bytes(c) : shore__call_out_bytes(c);
    bool spill = c->function == SHORE__SPILL;
    unsigned char *stored = spill ? r->spill + job->local * shore__call_unit_bytes(c) : r->scratch + c->start;
    if (brings)
        memcpy(stored, c->in, bytes);
    else
        memcpy(c->out, stored, bytes);
    if (spill) memset(r->front.spilled + job->local, 1 + (int)c->form, c->count);
    r->front.moved[brings ? function->writes : function->reads] += bytes;
    struct shore__leaf seal;
    if (function->seals) {
        shore__leaf_make(stored, bytes, c->start, &seal);
        memcpy(c->seal, seal.hash, 16);
    }
    return 0;
}

static int run_begin(struct ram *r, struct shore__local_job *job) {
    uint64_t loaded, epoch = job->begin.epoch, step = job->begin.step;
    if (epoch <= r->front.epoch)
        return shore__fail(&job->diag, SHORE_ESTALE, "ram: is in epoch %" PRIu64 ", so epoch %" PRIu64 " cannot begin",
                           r->front.epoch, epoch);
    r->front.epoch = epoch;
    if (!r->front.created) {
        shore__slots_active(&r->front.slots, &loaded);
        return loaded == step ? 0 : shore__fail(&job->diag, -EINVAL, "ram: step %" PRIu64 " was not loaded", step);
    }
    int rc = shore__front_check_written(&r->front, "given its initial state", &job->diag);
    if (rc) return rc;
    shore__front_begin_attempt(&r->front);
    shore__slots_set(&r->front.slots, 0, step);
    r->front.created = false;
    return 0;
}

static int keep_blob(struct ram *r, unsigned slot, const struct shore_commit *commit) {
    if (commit->blob_bytes && !r->blob[slot]) r->blob[slot] = malloc(SHORE_BLOB_BYTES);
    if (commit->blob_bytes && !r->blob[slot]) return -ENOMEM;
    if (commit->blob_bytes) memcpy(r->blob[slot], commit->blob, commit->blob_bytes);
    r->blob_bytes[slot] = (uint32_t)commit->blob_bytes;
    return 0;
}

static int run_commit(struct ram *r, struct shore__local_job *job) {
    const struct shore_commit *commit = job->commit;
    bool skip = commit->how == SHORE_COMMIT_SKIPPED;
    unsigned active = shore__slots_active(&r->front.slots, NULL);
    int rc = skip ? 0 : shore__front_check_attempt(&r->front, &job->diag);
    if (!rc) rc = keep_blob(r, skip ? active : 1 - active, commit);
    if (rc) return rc;
    shore__front_begin_attempt(&r->front);
    r->metrics_bytes = commit->metrics_bytes;
    if (r->metrics_bytes) memcpy(r->metrics, commit->metrics, r->metrics_bytes);
    shore__slots_commit(&r->front.slots, commit->step, skip);
    return 0;
}

static int run_discard(struct ram *r, struct shore__local_job *job) {
    shore__front_begin_attempt(&r->front);
    return 0;
}

/* other kinds of jobs are for volumes alone */
static int (*const run[])(struct ram *r, struct shore__local_job *job) = {
    [SHORE__LOCAL_FETCH] = run_fetch, [SHORE__LOCAL_INIT] = run_init,     [SHORE__LOCAL_UPDATE] = run_update,
    [SHORE__LOCAL_STORE] = run_store, [SHORE__LOCAL_CARRY] = run_carry,   [SHORE__LOCAL_CALL] = run_call,
    [SHORE__LOCAL_BEGIN] = run_begin, [SHORE__LOCAL_COMMIT] = run_commit, [SHORE__LOCAL_DISCARD] = run_discard,
};

/* ---- a drive that keeps nothing ---------------------------------------------------------------------------------- */

static int return_zeros(struct ram *r, struct shore__local_job *job) {
    memset(job->fetch.dst, 0, job->fetch.count * shore__fetch_segment_bytes(r->desc.plane_bytes, job->fetch.kind));
    return 0;
}

static int take_it(struct ram *r, struct shore__local_job *job) {
    if (shore__front_is_discarded(&r->front, job)) return SHORE_EDISCARDED;
    memset(r->front.written + job->local, 1, job->count);
    return 0;
}

static int take_update(struct ram *r, struct shore__local_job *job) {
    const struct shore_update *u = &job->update;
    if (u->params_out)
        memset(u->params_out, 0, (size_t)u->count * SHORE_SEGMENT_ELEMS * (r->front.config.fp32_params ? 4 : 2));
    return take_it(r, job);
}

static int take_call(struct ram *r, struct shore__local_job *job) {
    const struct shore__call *c = &job->call;
    if (c->out) memset(c->out, 0, shore__call_out_bytes(c));
    if (shore__function(c->function)->seals) memset(c->seal, 0, 16);
    if (c->function == SHORE__SPILL) memset(r->front.spilled + job->local, 1 + (int)c->form, c->count);
    return 0;
}

static int (*const run_null[])(struct ram *r, struct shore__local_job *job) = {
    [SHORE__LOCAL_FETCH] = return_zeros, [SHORE__LOCAL_INIT] = take_it,      [SHORE__LOCAL_UPDATE] = take_update,
    [SHORE__LOCAL_STORE] = take_it,      [SHORE__LOCAL_CARRY] = take_it,     [SHORE__LOCAL_CALL] = take_call,
    [SHORE__LOCAL_BEGIN] = run_begin,    [SHORE__LOCAL_COMMIT] = run_commit, [SHORE__LOCAL_DISCARD] = run_discard,
};

static void record(const struct ram *r, const struct shore__local_job *job, uint64_t start) {
    bool update = job->kind == SHORE__LOCAL_UPDATE, read = job->kind == SHORE__LOCAL_FETCH;
    const struct shore__function *called = job->kind == SHORE__LOCAL_CALL ? shore__function(job->call.function) : NULL;
    if (!update && !read && !called) return;
    enum shore_lane lane = update || (called && called->run) ? SHORE_LANE_DRIVE_UPDATE
                           : called && called->link_in       ? SHORE_LANE_DRIVE_WRITE
                                                             : SHORE_LANE_DRIVE_READ;
    shore__recorder_worked(r->front.drive.recorder, lane, r->desc.drive, start, shore__now_ns(), 0);
}

static void *run_lane(struct ram *r, struct shore__lane *lane) {
    struct shore__local_job *job;
    while ((job = (struct shore__local_job *)shore__lane_pop(lane, true))) {
        const uint64_t start = shore__recorder_clock(r->front.drive.recorder);
        job->rc = (r->keeps ? run : run_null)[job->kind](r, job);
        if (start) record(r, job, start);
        shore__front_finish(&r->front, lane, job);
    }
    return NULL;
}

void *shore__ram_fetch_lane(void *ctx) {
    struct ram *r = ctx;
    return run_lane(r, &r->front.fetches);
}

void *shore__ram_update_lane(void *ctx) {
    struct ram *r = ctx;
    return run_lane(r, &r->front.updates);
}
