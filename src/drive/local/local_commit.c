/* Begin and commit of one local drive: which record is written next. */
#include <errno.h>
#include <string.h>

#include "base/diag.h"
#include "drive/chunk.h"
#include "drive/local/local.h"

static int first_unwritten(const struct shore__local *l, uint32_t *block, uint32_t *segment) {
    for (uint32_t e = 0; e < l->volume.desc.nextents; e++) {
        const struct shore__extent *extent = &l->volume.desc.extents[e];
        for (uint32_t i = 0; i < extent->count; i++) {
            if (l->written[extent->local + i]) continue;
            *block = extent->block;
            *segment = extent->first + i;
            return -EINVAL;
        }
    }
    return 0;
}

static int check_written(struct shore__local *l, const char *what, struct shore_diag *diag) {
    uint32_t block, segment;
    if (!first_unwritten(l, &block, &segment)) return 0;
    return shore__fail(diag, -EINVAL, "%s: block %u, segment %u was not %s, so there is no whole state to commit",
                       l->volume.file.path, block, segment, what);
}

static int write_record(struct shore__local *l, struct shore__record *next, int table_slot, struct shore_diag *diag) {
    uint64_t bytes = 0;
    int rc = shore__volume_commit(&l->volume, l->update_io.io, next, table_slot, &bytes, diag);
    l->write_commit += bytes;
    if (rc) return rc;
    memset(l->written, 0, l->volume.desc.segments);
    l->attempt_rc = 0;
    return 0;
}

static int seal(struct shore__local *l, struct shore__local_job *job) {
    struct shore__record next = {.epoch = job->begin.epoch, .active = 0};
    int rc = check_written(l, "given its initial state", &job->diag);
    if (rc) return rc;
    next.slot[0].step = job->begin.step;
    next.slot[1].step = SHORE__STEP_NONE;
    rc = write_record(l, &next, 0, &job->diag);
    if (rc) return rc;
    l->created = false;
    return 0;
}

/* After a skipped step both slots of a record carry the hash of the one table: then the active slot holds both steps.
 * (Equal hashes are equal contents, so this is right however it came.) */
static int slot_of_step(const struct shore__record *record, uint64_t step) {
    if (record->slot[record->active].step == step) return (int)record->active;
    unsigned other = 1 - record->active;
    if (record->slot[other].step != step) return -1;
    bool same = record->slot[record->active].step != SHORE__STEP_NONE &&
                memcmp(record->slot[0].table_hash, record->slot[1].table_hash, 16) == 0;
    return (int)(same ? record->active : other);
}

int shore__local_load(struct shore__local *l, struct shore__local_job *job) {
    const struct shore__record *record = &l->volume.record;
    int slot = l->created ? -1 : slot_of_step(record, job->begin.step);
    if (slot < 0) {
        return shore__fail(&job->diag, SHORE_ESTALE, "%s: holds no whole state of step %llu", l->volume.file.path,
                           (unsigned long long)job->begin.step);
    }
    int rc = shore__volume_load_table(&l->volume, l->update_io.io, record, (unsigned)slot, &job->diag);
    if (rc) return rc;
    shore__slots_set(&l->slots, (unsigned)slot, job->begin.step);
    return 0;
}

int shore__local_begin(struct shore__local *l, struct shore__local_job *job) {
    uint64_t step = job->begin.step, loaded;
    int rc;
    if (l->created) {
        rc = seal(l, job);
        if (!rc) shore__slots_set(&l->slots, 0, step);
    } else {
        const struct shore__record *record = &l->volume.record;
        unsigned slot = shore__slots_active(&l->slots, &loaded);
        if (loaded != step) {
            return shore__fail(&job->diag, -EINVAL, "%s: step %llu was not loaded", l->volume.file.path,
                               (unsigned long long)step);
        }
        if (job->begin.epoch <= record->epoch) {
            return shore__fail(&job->diag, SHORE_ESTALE, "%s: is in epoch %llu, so epoch %llu cannot begin",
                               l->volume.file.path, (unsigned long long)record->epoch,
                               (unsigned long long)job->begin.epoch);
        }
        struct shore__record next = {.epoch = job->begin.epoch, .active = slot};
        next.slot[slot] = record->slot[slot];
        next.slot[slot].step = step;
        next.slot[1 - slot].step = SHORE__STEP_NONE;
        /* what --accept-step may go back to: until the next update it is whole, then its leaves say that it is not */
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
    if (!rc) l->epoch = job->begin.epoch;
    return rc;
}

int shore__local_commit(struct shore__local *l, struct shore__local_job *job) {
    uint64_t base;
    unsigned from = shore__slots_active(&l->slots, &base);
    uint64_t step = job->commit.step;
    bool skip = job->commit.how == SHORE__COMMIT_SKIP;
    const struct shore__record *record = &l->volume.record;
    if (l->epoch != record->epoch) {
        return shore__fail(&job->diag, SHORE_ESTALE, "%s: no epoch was begun in which step %llu could be committed",
                           l->volume.file.path, (unsigned long long)step);
    }
    if (base == SHORE__STEP_NONE || (step != base + 1 && job->commit.how != SHORE__COMMIT_RESTORED)) {
        return shore__fail(&job->diag, SHORE_ESTALE, "%s: is at step %llu, so step %llu cannot be committed",
                           l->volume.file.path, (unsigned long long)base, (unsigned long long)step);
    }
    if (!skip) {
        if (l->attempt_rc) {
            job->diag = l->attempt_diag;
            return l->attempt_rc;
        }
        int rc = check_written(l, "updated in this step", &job->diag);
        if (rc) return rc;
    }
    struct shore__record next = {.epoch = l->epoch};
    unsigned to = skip ? from : 1 - from;
    next.active = to;
    next.slot[to].step = step;
    next.slot[1 - to].step = base;
    memcpy(next.slot[1 - to].table_hash, record->slot[from].table_hash, 16);
    memcpy(next.slot[from].table_hash, record->slot[from].table_hash, 16);
    next.metrics_bytes = job->commit.metrics_bytes;
    if (next.metrics_bytes) memcpy(next.metrics, job->commit.metrics, next.metrics_bytes);
    int rc = write_record(l, &next, skip ? -1 : (int)to, &job->diag);
    if (rc) return rc;
    shore__slots_commit(&l->slots, step, skip);
    return 0;
}

static size_t stored_bytes(const void *config, uint32_t block, uint32_t segment, enum shore_plane plane) {
    return shore__stored_bytes(config, block, segment, plane);
}

int shore__local_snapshot(struct shore__local *l, struct shore__local_job *job) {
    uint64_t bytes = 0, step;
    shore__slots_active(&l->slots, &step);
    if (l->created || step == SHORE__STEP_NONE)
        return shore__fail(&job->diag, -EINVAL, "%s: holds no whole state yet", l->volume.file.path);
    struct shore__stored_part stored = {stored_bytes, &l->config};
    int rc = shore__volume_snapshot(&l->volume, l->update_io.io, job->snapshot.path, stored, l->ring, l->ring_bytes,
                                    &bytes, &job->diag);
    l->read_fetch += bytes;
    return rc;
}
