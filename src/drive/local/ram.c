/* The state in memory: two slots, UPDATE from one to the other, no copies. Nothing is hashed but for a digest, so it
 * runs as fast as memory allows. Two lanes as on a local drive, so that UPDATE overlaps computing. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/units.h"
#include "drive/chunk.h"
#include "drive/function.h"
#include "drive/lane.h"
#include "drive/local/cache.h"
#include "number/bf16.h"

#define STEP_SEGMENTS 16u /* between two looks at the attempt */

enum job_kind { JOB_FETCH, JOB_UPDATE, JOB_STORE, JOB_CARRY, JOB_CALL, JOB_BEGIN, JOB_COMMIT, JOB_DISCARD };

struct ram_job {
    struct shore__job job;
    enum job_kind kind;
    struct shore_completion done;
    unsigned slot;  /* that is read */
    uint32_t local; /* first local segment */
    union {
        struct shore__drive_fetch fetch;
        struct shore_update update;
        struct shore__call call;
        struct shore_store store;
        struct {
            uint64_t epoch, step;
        } begin;
        const struct shore_commit *commit;
    };
};

struct ram {
    struct shore__drive drive;
    struct shore__drive_config config;
    struct shore__volume_desc desc;
    struct shore__extent *extents;
    unsigned char *plane[2][SHORE_PLANE_COUNT];
    struct shore__slot_map map;
    unsigned char *spill;
    unsigned char *spilled; /* by local segment: 1 + the form */
    unsigned char *scratch;
    struct shore__cache *cache;
    struct shore__slots slots;
    struct shore__lane fetches, updates;
    unsigned char *written; /* by local segment: updated in this attempt. Update lane */
    int attempt_rc;
    struct shore_diag attempt_diag;
    _Atomic bool begun; /* read where requests come in */
    uint64_t epoch;
    unsigned char metrics[SHORE__METRICS_BYTES]; /* of the committed step. Update lane, or drained */
    uint32_t metrics_bytes;
    unsigned char *blob[2]; /* of the step in each slot: the same */
    uint32_t blob_bytes[2];
    atomic_uint_fast64_t read_state, write_state, read_fetch, read_spill, compute_ns;
    atomic_uint_fast64_t moved[SHORE__FUNCTIONS];
};

static void *plane_at(const struct ram *r, unsigned slot, enum shore_plane plane, uint32_t local) {
    unsigned char *planes = r->plane[shore__slot_map_data(&r->map, slot, local)][plane];
    return planes ? planes + local * (size_t)r->desc.plane_bytes[plane] : NULL;
}

static struct shore__stored stored_at(const struct ram *r, unsigned slot, uint32_t local) {
    struct shore__stored stored;
    for (int p = 0; p < SHORE_PLANE_COUNT; p++)
        stored.plane[p] = plane_at(r, slot, p, local);
    return stored;
}

static struct ram *ram_of(const struct shore__drive *d) {
    return (struct ram *)d;
}

/* Between a state image and the planes of a segment. */
static void copy_image(struct ram *r, unsigned slot, uint32_t local, unsigned char *image, bool store) {
    for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
        void *plane = plane_at(r, slot, p, local);
        size_t bytes = r->desc.plane_bytes[p];
        if (bytes) memcpy(store ? plane : image, store ? image : plane, bytes);
        image += bytes;
    }
}

/* ---- the lanes ---- */

static void fetch_moment(struct ram *r, const struct ram_job *job, enum shore_plane plane) {
    const struct shore__drive_fetch *fetch = &job->fetch;
    for (uint32_t i = 0; i < fetch->count; i++)
        shore__moments_load(&r->config.layout->blocks[fetch->block], fetch->segment + i, r->config.moments, plane,
                            plane_at(r, job->slot, plane, job->local + i),
                            (float *)fetch->dst + (size_t)i * SHORE_SEGMENT_ELEMS);
}

/* Of segments that lie one behind the other. */
static void fetch_run(struct ram *r, const struct ram_job *job) {
    size_t elems = (size_t)job->fetch.count * SHORE_SEGMENT_ELEMS;
    size_t bytes = elems * 4, image = shore__state_segment_bytes(r->desc.plane_bytes);
    const void *hi = plane_at(r, job->slot, SHORE_PLANE_HI, job->local);
    switch (job->fetch.kind) {
    case SHORE_FETCH_BF16:
        bytes = elems * 2;
        memcpy(job->fetch.dst, hi, bytes);
        break;
    case SHORE_FETCH_MASTER:
        shore__f32_join(job->fetch.dst, hi, plane_at(r, job->slot, SHORE_PLANE_LO, job->local), elems);
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
        memcpy(job->fetch.dst, plane_at(r, job->slot, SHORE_PLANE_R, job->local), bytes);
        break;
    case SHORE_FETCH_SPILLED:
    case SHORE_FETCH_SPILLED_BF16:
        bytes = job->fetch.count * shore__gradient_segment_bytes(shore__fetch_form(job->fetch.kind));
        memcpy(job->fetch.dst, r->spill + job->local * (bytes / job->fetch.count), bytes);
        r->read_spill += bytes;
        return;
    case SHORE_FETCH_STATE:
        bytes = job->fetch.count * image;
        for (uint32_t i = 0; i < job->fetch.count; i++)
            copy_image(r, job->slot, job->local + i, (unsigned char *)job->fetch.dst + i * image, false);
        break;
    }
    r->read_fetch += bytes;
}

static int run_fetch(struct ram *r, const struct ram_job *job) {
    struct ram_job part = *job;
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

static int run_update(struct ram *r, struct ram_job *job, struct shore_diag *diag) {
    const struct shore_update *u = &job->update;
    int worst = 0;
    for (uint32_t at = 0, count; at < u->count; at += count) {
        if (!shore__slots_holds(&r->slots, job->slot, u->base_step, u->attempt)) return SHORE_EDISCARDED;
        uint32_t local = job->local + at;
        count = u->count - at < STEP_SEGMENTS ? u->count - at : STEP_SEGMENTS;
        count = shore__slot_map_run(&r->map, job->slot, local, count);
        shore__slot_map_update(&r->map, 1 - job->slot, local, count);
        struct shore_update part = shore__update_part(&r->config, u, u->segment + at, count);
        if (shore__update_is_spilled(u)) part.gradient = r->spill + local * shore__gradient_segment_bytes(u->form);
        struct shore__stored in = stored_at(r, job->slot, local), out = stored_at(r, 1 - job->slot, local);
        uint64_t start = shore__now_ns();
        int rc = shore__chunk_update(&r->config, &part, &in, &out, diag);
        if (r->desc.plane_bytes[SHORE_PLANE_R])
            shore__update_residual(&part, plane_at(r, 1 - job->slot, SHORE_PLANE_R, local));
        r->compute_ns += shore__now_ns() - start;
        r->read_state += count * shore__state_segment_bytes(r->desc.plane_bytes);
        r->write_state += count * shore__state_segment_bytes(r->desc.plane_bytes);
        if (shore__update_is_spilled(u)) r->read_spill += count * shore__gradient_segment_bytes(u->form);
        if (rc && !worst) worst = rc;
        memset(r->written + local, 1, count);
    }
    return worst;
}

static int run_store(struct ram *r, struct ram_job *job) {
    size_t image = shore__state_segment_bytes(r->desc.plane_bytes);
    const struct shore_store *store = &job->store;
    if (r->begun && !shore__slots_holds(&r->slots, 1 - job->slot, store->base_step, store->attempt))
        return SHORE_EDISCARDED;
    shore__slot_map_update(&r->map, job->slot, job->local, job->store.count);
    for (uint32_t i = 0; i < job->store.count; i++)
        copy_image(r, job->slot, job->local + i, (unsigned char *)(uintptr_t)job->store.state + i * image, true);
    memset(r->written + job->local, 1, job->store.count);
    if (r->begun) r->write_state += job->store.count * image;
    return 0;
}

static int run_carry(struct ram *r, const struct ram_job *job) {
    const struct shore_store *which = &job->store;
    if (!shore__slots_holds(&r->slots, job->slot, which->base_step, which->attempt)) return SHORE_EDISCARDED;
    shore__slot_map_carry(&r->map, 1 - job->slot, job->local, which->count);
    memset(r->written + job->local, 1, which->count);
    return 0;
}

static void run_call(struct ram *r, struct ram_job *job) {
    const struct shore__call *c = &job->call;
    uint64_t bytes = shore__call_bytes(c);
    bool spill = c->function == SHORE__SPILL;
    unsigned char *stored = spill ? r->spill + job->local * shore__call_unit_bytes(c) : r->scratch + c->start;
    if (shore__function(c->function)->brings)
        memcpy(stored, c->in, bytes);
    else
        memcpy(c->out, stored, bytes);
    if (spill) memset(r->spilled + job->local, 1 + (int)c->form, c->count);
    r->moved[c->function] += bytes;
    if (!shore__function(c->function)->seals) return;
    struct shore__leaf seal;
    shore__leaf_make(stored, bytes, c->start, &seal);
    memcpy(c->seal, seal.hash, 16);
}

static int run_begin(struct ram *r, struct ram_job *job, struct shore_diag *diag) {
    uint64_t loaded, epoch = job->begin.epoch, step = job->begin.step;
    if (epoch <= r->epoch)
        return shore__fail(diag, SHORE_ESTALE, "ram: is in epoch %" PRIu64 ", so epoch %" PRIu64 " cannot begin",
                           r->epoch, epoch);
    r->epoch = epoch;
    if (r->begun) {
        shore__slots_active(&r->slots, &loaded);
        return loaded == step ? 0 : shore__fail(diag, -EINVAL, "ram: step %" PRIu64 " was not loaded", step);
    }
    for (uint32_t i = 0; i < r->desc.segments; i++) {
        if (!r->written[i]) return shore__fail(diag, -EINVAL, "not every block was given its initial state");
    }
    memset(r->written, 0, r->desc.segments);
    shore__slots_set(&r->slots, 0, step);
    r->begun = true;
    return 0;
}

static int keep_blob(struct ram *r, unsigned slot, const struct shore_commit *commit) {
    if (commit->blob_bytes && !r->blob[slot]) r->blob[slot] = malloc(SHORE_BLOB_BYTES);
    if (commit->blob_bytes && !r->blob[slot]) return -ENOMEM;
    if (commit->blob_bytes) memcpy(r->blob[slot], commit->blob, commit->blob_bytes);
    r->blob_bytes[slot] = (uint32_t)commit->blob_bytes;
    return 0;
}

static int run_commit(struct ram *r, struct ram_job *job, struct shore_diag *diag) {
    const struct shore_commit *commit = job->commit;
    bool skip = commit->how == SHORE_COMMIT_SKIPPED;
    if (!skip) {
        if (r->attempt_rc) {
            if (diag) *diag = r->attempt_diag;
            return r->attempt_rc;
        }
        for (uint32_t i = 0; i < r->desc.segments; i++) {
            if (r->written[i]) continue;
            return shore__fail(diag, -EINVAL, "commit: not every segment was updated or carried in this step");
        }
    }
    unsigned active = shore__slots_active(&r->slots, NULL);
    int rc = keep_blob(r, skip ? active : 1 - active, commit);
    if (rc) return rc;
    memset(r->written, 0, r->desc.segments);
    r->attempt_rc = 0;
    r->metrics_bytes = commit->metrics_bytes;
    if (r->metrics_bytes) memcpy(r->metrics, commit->metrics, r->metrics_bytes);
    shore__slots_commit(&r->slots, commit->step, skip);
    return 0;
}

static void run_job(struct ram *r, struct ram_job *job) {
    struct shore_diag diag = {""};
    int rc = 0;
    switch (job->kind) {
    case JOB_FETCH:
        rc = run_fetch(r, job);
        break;
    case JOB_UPDATE:
        rc = run_update(r, job, &diag);
        if (rc && rc != SHORE_EDISCARDED && !r->attempt_rc) {
            r->attempt_rc = rc;
            r->attempt_diag = diag;
        }
        break;
    case JOB_STORE:
        rc = run_store(r, job);
        break;
    case JOB_CARRY:
        rc = run_carry(r, job);
        break;
    case JOB_CALL:
        run_call(r, job);
        break;
    case JOB_BEGIN:
        rc = run_begin(r, job, &diag);
        break;
    case JOB_COMMIT:
        rc = run_commit(r, job, &diag);
        break;
    case JOB_DISCARD:
        memset(r->written, 0, r->desc.segments);
        r->attempt_rc = 0;
        break;
    }
    if (rc && !diag.text[0]) shore__fail(&diag, rc, "%s", shore_error_text(rc));
    struct shore_completion done = job->done;
    if (job->kind != JOB_DISCARD) free(job);
    done.fn(done.ctx, rc, rc ? &diag : NULL);
}

static void *fetch_lane(void *ctx) {
    struct ram *r = ctx;
    struct shore__job *job;
    while ((job = shore__lane_pop(&r->fetches, true))) {
        run_job(r, (struct ram_job *)job);
        shore__lane_finished(&r->fetches);
    }
    return NULL;
}

static void *update_lane(void *ctx) {
    struct ram *r = ctx;
    struct shore__job *job;
    while ((job = shore__lane_pop(&r->updates, true))) {
        run_job(r, (struct ram_job *)job);
        shore__lane_finished(&r->updates);
    }
    return NULL;
}

/* ---- the table ---- */

static struct ram_job *job_new(enum job_kind kind, struct shore_completion done) {
    struct ram_job *job = calloc(1, sizeof *job);
    if (job) {
        job->kind = kind;
        job->done = done;
    }
    return job;
}

/* What a record would say, for a fleet that goes back because another drive was lost. */
static int ram_recovery(const struct shore__drive *d, struct shore__drive_recovery *out, struct shore_diag *diag) {
    struct ram *r = ram_of(d);
    struct shore__record *record = &out->record;
    memset(out, 0, sizeof *out);
    if (!r->begun) return 0;
    uint64_t step;
    out->valid = true;
    record->active = shore__slots_active(&r->slots, &step);
    record->sequence = record->epoch = r->epoch;
    record->slot[record->active].step = step;
    /* the other slot still holds the step before, unless it is being written */
    bool whole = step && shore__slots_find(&r->slots, step - 1) == (int)(1 - record->active);
    record->slot[1 - record->active].step = whole ? step - 1 : SHORE__STEP_NONE;
    record->metrics_bytes = r->metrics_bytes;
    memcpy(record->metrics, r->metrics, r->metrics_bytes);
    return 0;
}

static int ram_load(struct shore__drive *d, uint64_t step, struct shore_diag *diag) {
    struct ram *r = ram_of(d);
    if (!r->begun) return shore__fail(diag, SHORE_EMISSING, "ram: keeps nothing after its process has ended");
    int slot = shore__slots_find(&r->slots, step);
    if (slot < 0) return shore__fail(diag, SHORE_ESTALE, "ram: holds no whole state of step %" PRIu64, step);
    shore__slots_set(&r->slots, (unsigned)slot, step);
    return 0;
}

static int run_and_wait(struct ram *r, struct ram_job *job, struct shore_diag *diag) {
    return shore__lane_ask(&r->updates, &job->job, &job->done, diag);
}

static int ram_begin(struct shore__drive *d, uint64_t epoch, uint64_t step, struct shore_diag *diag) {
    struct ram_job *job = job_new(JOB_BEGIN, (struct shore_completion){0});
    if (!job) return shore__fail(diag, -ENOMEM, "out of memory");
    job->begin.epoch = epoch;
    job->begin.step = step;
    return run_and_wait(ram_of(d), job, diag);
}

static int ram_init(struct shore__drive *d, uint32_t block, uint32_t segment, uint32_t count, const float *master,
                    const float *m, const float *v, struct shore_diag *diag) {
    struct ram *r = ram_of(d);
    const struct shore__extent *extent = shore__extent_find(&r->desc, block, segment, count);
    if (!extent || r->begun) return shore__fail(diag, -EINVAL, "initial state of segments that are not of this drive");
    uint32_t local = extent->local + (segment - extent->first);
    struct shore__stored to = stored_at(r, 0, local);
    shore__chunk_init(&r->config, block, segment, count, master, m, v, &to);
    memset(r->written + local, 1, count);
    return 0;
}

static int ram_fetch(struct shore__drive *d, const struct shore__drive_fetch *fetch, struct shore_completion done) {
    struct ram *r = ram_of(d);
    const struct shore__extent *extent = shore__extent_find(&r->desc, fetch->block, fetch->segment, fetch->count);
    bool spilled = shore__fetch_is_spilled(fetch->kind);
    int slot = spilled ? 0 : shore__slots_find(&r->slots, fetch->step);
    if (!extent || slot < 0) return -EINVAL;
    if (spilled && (!r->spill || !shore__all_spilled(r->spilled + extent->local + (fetch->segment - extent->first),
                                                     fetch->count, shore__fetch_form(fetch->kind))))
        return -EINVAL;
    if (fetch->kind == SHORE_FETCH_M && !r->plane[0][SHORE_PLANE_M]) return -EINVAL;
    if (fetch->kind == SHORE_FETCH_V && !r->plane[0][SHORE_PLANE_V]) return -EINVAL;
    if (fetch->kind == SHORE_FETCH_R && !r->plane[0][SHORE_PLANE_R]) return -EINVAL;
    struct ram_job *job = job_new(JOB_FETCH, done);
    if (!job) return -ENOMEM;
    job->fetch = *fetch;
    job->slot = (unsigned)slot;
    job->local = extent->local + (fetch->segment - extent->first);
    shore__lane_push(&r->fetches, &job->job);
    return 0;
}

static int ram_update(struct shore__drive *d, const struct shore_update *update, struct shore_completion done) {
    struct ram *r = ram_of(d);
    int rc = shore__update_check(&r->config, update);
    if (rc) return rc;
    const struct shore__extent *extent = shore__extent_find(&r->desc, update->block, update->segment, update->count);
    if (!extent) return -EINVAL;
    uint32_t local = extent->local + (update->segment - extent->first);
    if (shore__update_is_spilled(update)) {
        if (!r->spill || !shore__all_spilled(r->spilled + local, update->count, update->form)) return -EINVAL;
    }
    struct ram_job *job = job_new(JOB_UPDATE, done);
    if (!job) return -ENOMEM;
    int slot = shore__slots_write(&r->slots, update->base_step, update->attempt);
    if (slot < 0) {
        free(job);
        return slot;
    }
    job->update = *update;
    job->slot = (unsigned)slot;
    job->local = local;
    job->job.order = update->order;
    shore__lane_push(&r->updates, &job->job);
    return 0;
}

static int ram_store(struct shore__drive *d, const struct shore_store *store, struct shore_completion done) {
    struct ram *r = ram_of(d);
    const struct shore__extent *extent = shore__extent_find(&r->desc, store->block, store->segment, store->count);
    if (!extent) return -EINVAL;
    struct ram_job *job = job_new(JOB_STORE, done);
    if (!job) return -ENOMEM;
    int slot = r->begun ? shore__slots_write(&r->slots, store->base_step, store->attempt) : 1;
    if (slot < 0) {
        free(job);
        return slot;
    }
    job->store = *store;
    job->job.order = store->order;
    job->slot = 1 - (unsigned)slot;
    job->local = extent->local + (store->segment - extent->first);
    shore__lane_push(&r->updates, &job->job);
    return 0;
}

static int ram_carry(struct shore__drive *d, const struct shore_store *which, struct shore_completion done) {
    struct ram *r = ram_of(d);
    const struct shore__extent *extent = shore__extent_find(&r->desc, which->block, which->segment, which->count);
    if (!extent) return -EINVAL;
    struct ram_job *job = job_new(JOB_CARRY, done);
    if (!job) return -ENOMEM;
    int slot = shore__slots_write(&r->slots, which->base_step, which->attempt);
    if (slot < 0) {
        free(job);
        return slot;
    }
    job->store = *which;
    job->slot = (unsigned)slot;
    job->local = extent->local + (which->segment - extent->first);
    shore__lane_push(&r->updates, &job->job);
    return 0;
}

static int ram_call(struct shore__drive *d, const struct shore__call *call, struct shore_completion done) {
    struct ram *r = ram_of(d);
    int rc = shore__call_check(call, &r->desc);
    if (rc) return rc;
    if (shore__call_is_of_cache(call)) {
        r->moved[call->function] += shore__call_bytes(call);
        return shore__cache_call(r->cache, call, done);
    }
    struct ram_job *job = job_new(JOB_CALL, done);
    if (!job) return -ENOMEM;
    if (shore__function(call->function)->over == SHORE__OVER_SEGMENTS) {
        const struct shore__extent *extent = shore__extent_find(&r->desc, call->block, call->segment, call->count);
        job->local = extent->local + (call->segment - extent->first);
    }
    job->call = *call;
    shore__lane_push(&r->fetches, &job->job);
    return 0;
}

static int ram_commit(struct shore__drive *d, const struct shore_commit *commit, struct shore_completion done) {
    struct ram *r = ram_of(d);
    struct ram_job *job = job_new(JOB_COMMIT, done);
    if (!job) return -ENOMEM;
    job->commit = commit;
    job->job.order = UINT32_MAX;
    shore__lane_push(&r->updates, &job->job);
    return 0;
}

static int ram_blob(struct shore__drive *d, void *blob, uint32_t *bytes, struct shore_diag *diag) {
    struct ram *r = ram_of(d);
    unsigned slot = shore__slots_active(&r->slots, NULL);
    *bytes = r->blob_bytes[slot];
    if (*bytes) memcpy(blob, r->blob[slot], *bytes);
    return 0;
}

static int ram_can_carry(const struct shore__drive *d, struct shore_diag *diag) {
    return 0;
}

static void ram_discard(struct shore__drive *d, uint64_t attempt) {
    struct ram *r = ram_of(d);
    /* not from the heap: a discard cannot fail */
    struct ram_job behind_all = {.kind = JOB_DISCARD, .job.order = UINT32_MAX};
    shore__slots_discard(&r->slots, attempt);
    run_and_wait(r, &behind_all, NULL);
    shore__lane_drain(&r->fetches);
}

static int ram_leaf_sum(struct shore__drive *d, bool deep, unsigned char sum[16], struct shore_diag *diag) {
    struct ram *r = ram_of(d);
    unsigned slot = shore__slots_active(&r->slots, NULL);
    memset(sum, 0, 16);
    for (uint32_t e = 0; e < r->desc.nextents; e++) {
        const struct shore__extent *extent = &r->desc.extents[e];
        for (uint32_t i = 0; i < extent->count; i++) {
            for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
                const void *data = plane_at(r, slot, p, extent->local + i);
                struct shore__leaf leaf;
                if (!data) continue;
                shore__leaf_make(data, r->desc.plane_bytes[p], shore__leaf_seed(extent->block, extent->first + i, p),
                                 &leaf);
                shore__sum_add_leaf(sum, &leaf);
            }
        }
    }
    return 0;
}

static int ram_snapshot(struct shore__drive *d, enum shore__snapshot_act act, const char *name,
                        struct shore_diag *diag) {
    return shore__fail(diag, -ENOTSUP, "ram: keeps nothing after its process has ended, so it has no snapshots");
}

static void ram_ledger(const struct shore__drive *d, struct shore_ledger *add_to) {
    struct ram *r = ram_of(d);
    add_to->drive_read_state += r->read_state;
    add_to->drive_write_state += r->write_state;
    add_to->drive_read_fetch += r->read_fetch;
    add_to->drive_read_spill += r->read_spill;
    shore__calls_count(r->moved, add_to);
    add_to->update_compute_ns += r->compute_ns;
}

static const char *ram_path(const struct shore__drive *d) {
    return "ram:";
}

static int ram_describe(const struct shore__drive *d, char *text, size_t bytes) {
    char size[32];
    snprintf(text, bytes, "ram: %s in memory, kept until the process ends",
             shore__format_size(shore__ram_memory_bytes(&ram_of(d)->config, d->desc), size, sizeof size));
    return 0;
}

static uint64_t ram_disk_bytes(const struct shore__drive *d) {
    return 0;
}

static void ram_close(struct shore__drive *d) {
    struct ram *r = ram_of(d);
    struct shore_arena *arena = r->config.arena;
    shore__lane_stop(&r->updates);
    shore__lane_stop(&r->fetches);
    shore__cache_free(r->cache);
    for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
        shore__arena_free(arena, r->plane[0][p]);
        shore__arena_free(arena, r->plane[1][p]);
    }
    shore__arena_free(arena, r->spill);
    shore__arena_free(arena, r->scratch);
    for (int s = 0; s < 2; s++) {
        free(r->blob[s]);
        free((void *)(uintptr_t)r->map.bits[s]);
    }
    free(r->written);
    free(r->spilled);
    free(r->extents);
    pthread_mutex_destroy(&r->slots.mutex);
    free(r);
}

static const struct shore__drive_ops ram_ops = {
    .version = SHORE__DRIVE_VERSION,
    .name = "ram",
    .caps = SHORE__DRIVE_KEEPS_DATA,
    .recovery = ram_recovery,
    .load = ram_load,
    .begin = ram_begin,
    .init = ram_init,
    .fetch = ram_fetch,
    .update = ram_update,
    .store = ram_store,
    .carry = ram_carry,
    .call = ram_call,
    .commit = ram_commit,
    .blob = ram_blob,
    .can_carry = ram_can_carry,
    .discard = ram_discard,
    .leaf_sum = ram_leaf_sum,
    .snapshot = ram_snapshot,
    .ledger = ram_ledger,
    .path = ram_path,
    .describe = ram_describe,
    .disk_bytes = ram_disk_bytes,
    .close = ram_close,
};

uint64_t shore__ram_memory_bytes(const struct shore__drive_config *config, const struct shore__volume_desc *desc) {
    uint64_t bytes = 2 * (uint64_t)desc->segments * shore__state_segment_bytes(desc->plane_bytes);
    if (desc->spill) bytes += (uint64_t)desc->segments * SHORE_SEGMENT_ELEMS * 4;
    return bytes + shore__arena_round(desc->scratch_bytes);
}

static int take_memory(struct ram *r) {
    struct shore_arena *arena = r->config.arena;
    uint64_t segments = r->desc.segments;
    r->written = calloc(segments + 1, 1);
    r->spilled = calloc(segments + 1, 1);
    if (!r->written || !r->spilled) return -ENOMEM;
    for (int s = 0; s < 2; s++) {
        r->map.bits[s] = calloc(segments / 8 + 1, 1);
        if (!r->map.bits[s]) return -ENOMEM;
    }
    for (int s = 0; s < 2 && segments; s++) {
        for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
            if (!r->desc.plane_bytes[p]) continue;
            r->plane[s][p] = shore__arena_alloc(arena, segments * r->desc.plane_bytes[p]);
            if (!r->plane[s][p]) return -ENOMEM;
        }
    }
    if (r->desc.spill && segments) {
        r->spill = shore__arena_alloc(arena, segments * SHORE_SEGMENT_ELEMS * 4);
        if (!r->spill) return -ENOMEM;
    }
    if (r->desc.scratch_bytes) {
        r->scratch = shore__arena_alloc(arena, r->desc.scratch_bytes);
        if (!r->scratch) return -ENOMEM;
    }
    return 0;
}

int shore__ram_create(const struct shore__drive_config *config, const char *address,
                      const struct shore__volume_desc *desc, bool overwrite, struct shore__drive **out,
                      struct shore_diag *diag) {
    struct ram *r = calloc(1, sizeof *r);
    if (!r) return shore__fail(diag, -ENOMEM, "ram: out of memory");
    r->drive.ops = &ram_ops;
    r->drive.desc = &r->desc;
    r->config = *config;
    r->desc = *desc;
    r->desc.identity = NULL;
    r->desc.identity_bytes = 0;
    shore__slots_init(&r->slots);
    r->extents = malloc((desc->nextents + 1) * sizeof *r->extents);
    int rc = r->extents ? 0 : -ENOMEM;
    if (!rc) {
        if (desc->nextents) memcpy(r->extents, desc->extents, desc->nextents * sizeof *r->extents);
        r->desc.extents = r->extents;
        rc = take_memory(r);
    }
    if (!rc) rc = shore__cache_new(NULL, r->desc.fleet_id, &r->config, &r->cache);
    if (!rc) rc = shore__lane_start(&r->fetches, "shore-ram-fetch", fetch_lane, r);
    if (!rc) rc = shore__lane_start(&r->updates, "shore-ram-upd", update_lane, r);
    if (rc) {
        char size[32];
        shore__fail(diag, rc, "ram: the state needs %s of memory: %s",
                    shore__format_size(shore__ram_memory_bytes(config, desc), size, sizeof size), shore_error_text(rc));
        ram_close(&r->drive);
        return rc;
    }
    *out = &r->drive;
    return 0;
}
