/* Begin and commit of a local drive: decides the next record. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/diag.h"
#include "drive/chunk.h"
#include "drive/local/local.h"

static int write_record(struct shore__local *l, struct shore__record *next, int table_slot, struct shore_diag *diag) {
    uint64_t bytes = 0;
    int rc = shore__volume_commit(&l->volume, l->update_io, next, table_slot, &bytes, diag);
    l->front.write_commit += bytes;
    if (rc) return rc;
    shore__front_begin_attempt(&l->front);
    return 0;
}

static int seal(struct shore__local *l, struct shore__local_job *job) {
    struct shore__record next = {.epoch = job->begin.epoch, .active = 0};
    int rc = shore__front_check_written(&l->front, "given its initial state", &job->diag);
    if (rc) return rc;
    next.slot[0].step = job->begin.step;
    next.slot[1].step = SHORE__STEP_NONE;
    rc = write_record(l, &next, 0, &job->diag);
    if (rc) return rc;
    l->front.created = false;
    return 0;
}

/* The record's state of a step, or NULL. */
static const struct shore__slot_state *state_of_step(const struct shore__record *record, uint64_t step) {
    if (step == SHORE__STEP_NONE) return NULL;
    if (record->slot[record->active].step == step) return &record->slot[record->active];
    return record->slot[1 - record->active].step == step ? &record->slot[1 - record->active] : NULL;
}

/* The slot that holds a step. After a skipped step, both slots of a record carry the hash of the same table; the active
 * slot then holds both steps. (Equal hashes mean equal contents, so this is right whatever the cause.) */
static int slot_of_step(const struct shore__record *record, uint64_t step) {
    const struct shore__slot_state *state = state_of_step(record, step), *active = &record->slot[record->active];
    if (!state) return -1;
    bool same = active->step != SHORE__STEP_NONE && shore__slot_same(&record->slot[0], &record->slot[1]);
    return (int)(state == active || same ? record->active : 1 - record->active);
}

int shore__local_load(struct shore__local *l, struct shore__local_job *job) {
    const struct shore__record *record = &l->volume.record;
    int slot = l->front.created ? -1 : slot_of_step(record, job->begin.step);
    if (slot < 0) {
        return shore__fail(&job->diag, SHORE_ESTALE, "%s: holds no whole state of step %llu", l->volume.file.path,
                           (unsigned long long)job->begin.step);
    }
    int rc = shore__volume_load_table(&l->volume, l->update_io, record, (unsigned)slot, &job->diag);
    if (rc) return rc;
    shore__slots_set(&l->front.slots, (unsigned)slot, job->begin.step);
    return 0;
}

int shore__local_begin(struct shore__local *l, struct shore__local_job *job) {
    uint64_t step = job->begin.step, loaded;
    int rc;
    if (l->front.created) {
        rc = seal(l, job);
        if (!rc) shore__slots_set(&l->front.slots, 0, step);
    } else {
        const struct shore__record *record = &l->volume.record;
        unsigned slot = shore__slots_active(&l->front.slots, &loaded);
        if (loaded != step || step == SHORE__STEP_NONE) {
            return shore__fail(&job->diag, -EINVAL, "%s: step %llu was not loaded", l->volume.file.path,
                               (unsigned long long)step);
        }
        if (job->begin.epoch <= record->epoch) {
            return shore__fail(&job->diag, SHORE_ESTALE, "%s: is in epoch %llu, so epoch %llu cannot begin",
                               l->volume.file.path, (unsigned long long)record->epoch,
                               (unsigned long long)job->begin.epoch);
        }
        struct shore__record next = {.epoch = job->begin.epoch, .active = slot};
        next.slot[slot] = *state_of_step(record, step);
        next.slot[1 - slot].step = SHORE__STEP_NONE;
        /* kept for --accept-step: it stays whole until the next update, after which its leaves tell */
        if (record->slot[1 - slot].step < step) next.slot[1 - slot] = record->slot[1 - slot];
        const struct shore__record *told = record;
        if (record->slot[record->active].step != step && l->volume.older_valid &&
            l->volume.older.slot[l->volume.older.active].step == step) {
            told = &l->volume.older;
        }
        if (told->slot[told->active].step == step) {
            next.metrics_bytes = told->metrics_bytes;
            memcpy(next.metrics, told->metrics, told->metrics_bytes);
        }
        rc = write_record(l, &next, -1, &job->diag);
    }
    if (!rc) l->front.epoch = job->begin.epoch;
    return rc;
}

/* Writes the blob from the ring, in which nothing is under way. */
static int put_blob(struct shore__local *l, const struct shore__local_job *job, struct shore__record *next,
                    struct shore_diag *diag) {
    uint64_t bytes = 0;
    if (!job->commit->blob_bytes) return 0;
    memcpy(l->ring, job->commit->blob, job->commit->blob_bytes);
    int rc = shore__volume_put_blob(&l->volume, l->update_io, next, l->ring, (uint32_t)job->commit->blob_bytes, &bytes,
                                    diag);
    l->front.write_commit += bytes;
    return rc;
}

int shore__local_blob(struct shore__local *l, struct shore__local_job *job) {
    uint64_t step;
    shore__slots_active(&l->front.slots, &step);
    const struct shore__slot_state *state = l->front.created ? NULL : state_of_step(&l->volume.record, step);
    if (!state) return shore__fail(&job->diag, -EINVAL, "%s: holds no whole state yet", l->volume.file.path);
    int rc = shore__volume_read_blob(&l->volume, l->update_io, state, l->ring, &job->diag);
    if (rc) return rc;
    l->front.read_fetch += state->blob_bytes;
    if (job->blob.bytes) *job->blob.bytes = state->blob_bytes;
    if (job->blob.to) memcpy(job->blob.to, l->ring, state->blob_bytes);
    return 0;
}

int shore__local_commit(struct shore__local *l, struct shore__local_job *job) {
    uint64_t base;
    unsigned from = shore__slots_active(&l->front.slots, &base);
    uint64_t step = job->commit->step;
    bool skip = job->commit->how == SHORE_COMMIT_SKIPPED;
    const struct shore__record *record = &l->volume.record;
    if (l->front.epoch != record->epoch) {
        return shore__fail(&job->diag, SHORE_ESTALE, "%s: step %llu cannot be committed: no epoch has begun",
                           l->volume.file.path, (unsigned long long)step);
    }
    if (base == SHORE__STEP_NONE || (step != base + 1 && job->commit->how != SHORE_COMMIT_RESTORED)) {
        return shore__fail(&job->diag, SHORE_ESTALE, "%s: is at step %llu, so step %llu cannot be committed",
                           l->volume.file.path, (unsigned long long)base, (unsigned long long)step);
    }
    int rc = skip ? 0 : shore__front_check_attempt(&l->front, &job->diag);
    if (rc) return rc;
    struct shore__record next = {.epoch = l->front.epoch};
    unsigned to = skip ? from : 1 - from;
    next.active = to;
    next.slot[from] = next.slot[1 - to] = record->slot[from];
    next.slot[to].step = step;
    next.slot[to].blob_bytes = 0;
    next.metrics_bytes = job->commit->metrics_bytes;
    assert(next.metrics_bytes <= SHORE__METRICS_BYTES);
    if (next.metrics_bytes) memcpy(next.metrics, job->commit->metrics, next.metrics_bytes);
    rc = put_blob(l, job, &next, &job->diag);
    if (!rc) rc = write_record(l, &next, skip ? -1 : (int)to, &job->diag);
    if (rc) return rc;
    shore__slots_commit(&l->front.slots, step, skip);
    return 0;
}

static size_t stored_bytes(const void *config, uint32_t block, uint32_t segment, enum shore_plane plane) {
    return shore__stored_bytes(config, block, segment, plane);
}

int shore__local_snapshot(struct shore__local *l, struct shore__local_job *job) {
    uint64_t bytes = 0, step;
    shore__slots_active(&l->front.slots, &step);
    if (l->front.created || step == SHORE__STEP_NONE)
        return shore__fail(&job->diag, -EINVAL, "%s: holds no whole state yet", l->volume.file.path);
    struct shore__stored_part stored = {stored_bytes, &l->front.config};
    int rc = shore__volume_snapshot(&l->volume, l->update_io, job->snapshot.path, stored, l->ring, l->ring_bytes,
                                    &bytes, &job->diag);
    l->front.read_fetch += bytes;
    return rc;
}
