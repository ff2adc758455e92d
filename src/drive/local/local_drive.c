/* A local drive: puts requests in line for its lanes. */
#include "drive/local/local.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/units.h"
#include "drive/local/on_device.h"
#include "drive/local/volume_remove.h"
#include "drive/snapshot_name.h"

static struct shore__local *local_of(const struct shore__drive *d) {
    return (struct shore__local *)(uintptr_t)d;
}

/* ---- the table ---- */

void shore__volume_recovery(const struct shore__volume *v, struct shore__drive_recovery *out) {
    *out = (struct shore__drive_recovery){
        .valid = v->record_valid,
        .record = v->record,
        .older_valid = v->older_valid,
        .older = v->older,
        .damaged_record = v->damaged_record,
        .damage = v->damage,
    };
}

static int local_recovery(const struct shore__drive *d, struct shore__drive_recovery *out, struct shore_diag *diag) {
    shore__volume_recovery(&local_of(d)->volume, out);
    return 0;
}

static int local_load(struct shore__drive *d, uint64_t step, struct shore_diag *diag) {
    return shore__front_ask_step(&local_of(d)->front, SHORE__LOCAL_LOAD, 0, step, diag);
}

static int ask_blob(struct shore__local *l, void *blob, uint32_t *bytes, struct shore_diag *diag) {
    struct shore__local_job *job = shore__front_job(SHORE__LOCAL_BLOB, (struct shore_completion){0});
    if (!job) return shore__fail(diag, -ENOMEM, "out of memory");
    job->blob.to = blob;
    job->blob.bytes = bytes;
    return shore__front_ask(&l->front, job, diag);
}

static int local_blob(struct shore__drive *d, void *blob, uint32_t *bytes, struct shore_diag *diag) {
    return ask_blob(local_of(d), blob, bytes, diag);
}

static int local_can_carry(const struct shore__drive *d, struct shore_diag *diag) {
    return shore__volume_can_carry(&local_of(d)->volume, diag);
}

static int local_leaf_sum(struct shore__drive *d, bool deep, unsigned char sum[16], struct shore_diag *diag) {
    struct shore__local *l = local_of(d);
    unsigned slot = shore__slots_active(&l->front.slots, NULL);
    const struct shore__volume_desc *desc = &l->volume.desc;
    memset(sum, 0, 16);
    for (uint32_t i = 0; i < desc->segments; i++) {
        for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
            if (desc->plane_bytes[p]) shore__sum_add_leaf(sum, &l->volume.table[slot][i].plane[p]);
        }
    }
    for (uint32_t e = 0; deep && e < desc->nextents; e++) {
        struct shore__local_job *job = shore__front_job(SHORE__LOCAL_VERIFY, (struct shore_completion){0});
        if (!job) return shore__fail(diag, -ENOMEM, "out of memory");
        shore__front_locate(&l->front, job, desc->extents[e].block, desc->extents[e].first, desc->extents[e].count);
        job->slot = slot;
        int rc = shore__front_ask(&l->front, job, diag);
        if (rc) return rc;
    }
    return deep ? ask_blob(l, NULL, NULL, diag) : 0;
}

static int local_snapshot(struct shore__drive *d, enum shore__snapshot_act act, const char *name,
                          struct shore_diag *diag) {
    struct shore__local *l = local_of(d);
    const char *volume = l->volume.file.path;
    if (!shore__snapshot_name_valid(name))
        return shore__fail(diag, SHORE_EUSAGE, "%s: this is not a name for a snapshot", volume);
    char *path = shore__snapshot_path(volume, name);
    struct shore__local_job *job = shore__front_job(SHORE__LOCAL_SNAPSHOT, (struct shore_completion){0});
    int rc = path && job ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
    if (!rc && act == SHORE__SNAPSHOT_MAKE) {
        job->snapshot.path = path;
        rc = shore__front_ask(&l->front, job, diag);
        job = NULL; /* the lane has freed it */
    } else if (!rc) {
        rc = shore__volume_remove(path, l->volume.desc.fleet_id, l->volume.desc.generation, false, diag);
    }
    free(job);
    free(path);
    return rc;
}

static int local_describe(const struct shore__drive *d, char *text, size_t bytes) {
    const struct shore__local *l = local_of(d);
    const char *device = l->engine->ops->name(l->engine);
    snprintf(text, bytes, "%s: %s, %s, %s%s%s", l->volume.file.path, shore__format_size(l->volume.size_bytes).text,
             shore__io_backend(l->update_io), l->volume.file.direct ? "direct I/O" : "page cache",
             device ? ", UPDATE on " : "", device ? device : "");
    return 0;
}

static void local_close(struct shore__drive *d) {
    struct shore__local *l = local_of(d);
    struct shore_arena *arena = l->front.config.arena;
    shore__lane_stop(&l->front.updates);
    shore__lane_stop(&l->front.fetches);
    shore__io_close(l->update_io);
    shore__io_close(l->fetch_io);
    shore__volume_close(&l->volume);
    l->engine->ops->close(l->engine);
    shore__arena_free(arena, l->ring);
    shore__arena_free(arena, l->stage);
    shore__arena_free(arena, l->front.written);
    shore__arena_free(arena, l->front.spilled);
    shore__arena_free(arena, l->spill_leaf);
    free(l->pipeline);
    pthread_mutex_destroy(&l->front.slots.mutex);
    free(l);
}

static void local_forked(struct shore__drive *d) {
    struct shore__local *l = local_of(d);
    shore__io_forked(l->update_io);
    shore__io_forked(l->fetch_io);
    shore__file_forked(&l->volume.file);
}

static const struct shore__drive_ops local_ops = {
    .caps = SHORE__DRIVE_DURABLE | SHORE__DRIVE_KEEPS_DATA,
    .recovery = local_recovery,
    .load = local_load,
    .begin = shore__front_begin,
    .init = shore__front_init,
    .fetch = shore__front_fetch,
    .update = shore__front_update,
    .store = shore__front_store,
    .carry = shore__front_carry,
    .call = shore__front_call,
    .commit = shore__front_commit,
    .blob = local_blob,
    .can_carry = local_can_carry,
    .discard = shore__front_discard,
    .leaf_sum = local_leaf_sum,
    .snapshot = local_snapshot,
    .ledger = shore__front_ledger,
    .describe = local_describe,
    .close = local_close,
    .forked = local_forked,
};

/* ---- opening ---- */

static uint64_t ring_bytes(const struct shore__drive_config *config, bool spill) {
    size_t each = shore__local_ring_segment_bytes(config->plane_bytes, spill && !config->on_device);
    if (config->on_device) each += shore__on_device_segment_bytes();
    return (uint64_t)config->ring_buffers * config->chunk_segments * each;
}

/* A device holds chunks for a while: two more keep the drive busy. */
static struct shore__drive_config with_buffers(const struct shore__drive_config *config) {
    struct shore__drive_config own = *config;
    if (own.on_device) own.ring_buffers += 2;
    return own;
}

uint64_t shore__local_memory_bytes(const struct shore__drive_config *config, const struct shore__volume_desc *desc) {
    const struct shore__drive_config own = with_buffers(config);
    uint64_t bytes = shore__volume_memory_bytes(desc) + ring_bytes(&own, desc->spill) + shore__stage_bytes(config);
    bytes += shore__arena_round(desc->segments);
    if (desc->spill) {
        bytes += shore__arena_round(desc->segments);
        bytes += shore__arena_round(desc->segments * sizeof(struct shore__leaf));
    }
    return bytes;
}

static int take_memory(struct shore__local *l) {
    struct shore_arena *arena = l->front.config.arena;
    uint64_t segments = l->volume.desc.segments ? l->volume.desc.segments : 1;
    bool spill = l->volume.desc.spill;
    l->ring_bytes = ring_bytes(&l->front.config, spill);
    l->stage_bytes = shore__stage_bytes(&l->front.config);
    l->ring = shore__arena_alloc(arena, l->ring_bytes);
    l->stage = shore__arena_alloc(arena, l->stage_bytes);
    l->front.written = shore__arena_alloc(arena, segments);
    if (!l->ring || !l->stage || !l->front.written) return -ENOMEM;
    if (spill) {
        l->front.spilled = shore__arena_alloc(arena, segments);
        l->spill_leaf = shore__arena_alloc(arena, segments * sizeof *l->spill_leaf);
        if (!l->front.spilled || !l->spill_leaf) return -ENOMEM;
    }
    l->pipeline = shore__pipeline_new(l);
    return l->pipeline ? 0 : -ENOMEM;
}

/* What a local drive has no words for is its device's. */
static int open_device(struct shore__local *l, struct shore_diag *diag) {
    return l->front.config.on_device && !l->front.config.read_only ? shore__on_device_open(l, diag) : 0;
}

static int start(struct shore__local *l, struct shore_diag *diag) {
    const char *path = l->volume.file.path;
    int rc = open_device(l, diag);
    if (rc) return rc;
    rc = take_memory(l);
    if (rc) return shore__fail(diag, rc, "%s: out of memory for its buffers", path);
    rc = shore__pipeline_attach(l->pipeline, diag);
    if (rc) return rc;
    struct shore__buffer_range ring = {l->ring, l->ring_bytes}, stage = {l->stage, l->stage_bytes};
    unsigned update_depth = l->front.config.ring_buffers * shore__local_chunk_ops(&l->front.config);
    unsigned fetch_depth = SHORE__FETCH_OPS;
    rc = shore__io_open(&l->volume.file, l->front.config.io, update_depth, &ring, 1, &l->update_io, diag);
    if (!rc) rc = shore__io_open(&l->volume.file, l->front.config.io, fetch_depth, &stage, 1, &l->fetch_io, diag);
    if (rc) return rc;
    if (!l->volume.file.direct && l->front.config.io != SHORE_IO_BUFFERED && l->front.config.note) {
        struct shore_diag note;
        shore__fail(&note, 0, "%s: refuses direct I/O, so its I/O goes through the page cache", path);
        l->front.config.note(l->front.config.note_ctx, note.text);
    }
    rc = shore__lane_start(&l->front.fetches, "shore-fetch", shore__local_fetch_lane, l);
    if (!rc) rc = shore__lane_start(&l->front.updates, "shore-update", shore__local_update_lane, l);
    return rc ? shore__fail(diag, rc, "%s: its threads cannot be started: %s", path, shore_error_text(rc)) : 0;
}

static int local_new(const struct shore__drive_config *config, const char *path, char **file, struct shore__local **out,
                     struct shore_diag *diag) {
    int rc = shore__volume_path(path, file, diag);
    if (rc) return rc;
    struct shore__local *l = calloc(1, sizeof *l);
    if (!l) {
        free(*file);
        return shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    }
    l->front.drive.ops = &local_ops;
    l->front.aligned = true;
    l->front.drive.desc = &l->volume.desc;
    l->front.config = with_buffers(config);
    shore__engine_host(&l->host);
    l->engine = &l->host;
    shore__slots_init(&l->front.slots);
    *out = l;
    return 0;
}

static int finish_opening(struct shore__local *l, int rc, struct shore__drive **out, struct shore_diag *diag) {
    if (rc) {
        /* there is no volume, so only this is left to close */
        pthread_mutex_destroy(&l->front.slots.mutex);
        free(l);
        return rc;
    }
    l->front.drive.path = l->volume.file.path;
    l->front.drive.disk_bytes = l->volume.size_bytes;
    l->volume.desc.layout = l->front.config.layout;
    l->volume.desc.resting_planes = shore__planes_resting(l->front.config.moments);
    rc = start(l, diag);
    if (rc) {
        if (l->volume.file.made) unlink(l->volume.file.path);
        local_close(&l->front.drive);
        return rc;
    }
    *out = &l->front.drive;
    return 0;
}

int shore__local_create(const struct shore__drive_config *config, const char *path,
                        const struct shore__volume_desc *desc, bool overwrite, struct shore__drive **out,
                        struct shore_diag *diag) {
    char *file;
    struct shore__local *l = NULL;
    int rc = local_new(config, path, &file, &l, diag);
    if (rc) return rc;
    l->front.created = true;
    rc = shore__volume_create(file, desc, config->io, overwrite, config->arena, &l->volume, diag);
    free(file);
    return finish_opening(l, rc, out, diag);
}

int shore__local_open(const struct shore__drive_config *config, const char *path, struct shore__drive **out,
                      struct shore_diag *diag) {
    char *file;
    struct shore__local *l = NULL;
    int rc = local_new(config, path, &file, &l, diag);
    if (rc == -ENOENT) return shore__fail(diag, SHORE_EMISSING, "%s is missing: mount its drive", path);
    if (rc) return rc;
    rc = config->read_only ? shore__volume_open_to_read(file, config->io, config->arena, &l->volume, diag)
                           : shore__volume_open(file, config->io, config->arena, &l->volume, diag);
    if (rc == -ENOENT) rc = shore__fail(diag, SHORE_EMISSING, "%s is missing: mount its drive", file);
    free(file);
    return finish_opening(l, rc, out, diag);
}
