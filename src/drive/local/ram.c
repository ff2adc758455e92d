/* A drive in memory: state in two slots. It hashes nothing except for a digest, so it runs as fast as memory allows. It
 * has two lanes like a local drive, so that UPDATE overlaps computing. A null drive is one without state: it shows what
 * a fleet costs without its drives. */
#include "drive/local/ram.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/units.h"

static struct ram *ram_of(const struct shore__drive *d) {
    return (struct ram *)d;
}

/* Makes a record, for a fleet that goes back because another drive was lost. */
static int ram_recovery(const struct shore__drive *d, struct shore__drive_recovery *out, struct shore_diag *diag) {
    struct ram *r = ram_of(d);
    struct shore__record *record = &out->record;
    memset(out, 0, sizeof *out);
    if (r->front.created) return 0;
    uint64_t step;
    out->valid = true;
    record->active = shore__slots_active(&r->front.slots, &step);
    record->sequence = record->epoch = r->front.epoch;
    record->slot[record->active].step = step;
    /* the other slot still holds the previous step, unless it is being written */
    bool whole = step && shore__slots_find(&r->front.slots, step - 1) == (int)(1 - record->active);
    record->slot[1 - record->active].step = whole ? step - 1 : SHORE__STEP_NONE;
    record->metrics_bytes = r->metrics_bytes;
    memcpy(record->metrics, r->metrics, r->metrics_bytes);
    return 0;
}

static int ram_load(struct shore__drive *d, uint64_t step, struct shore_diag *diag) {
    struct ram *r = ram_of(d);
    if (r->front.created)
        return shore__fail(diag, SHORE_EMISSING, "%s keeps nothing after its process has ended", d->path);
    int slot = shore__slots_find(&r->front.slots, step);
    if (slot < 0) return shore__fail(diag, SHORE_ESTALE, "%s holds no whole state of step %" PRIu64, d->path, step);
    shore__slots_set(&r->front.slots, (unsigned)slot, step);
    return 0;
}

static int ram_blob(struct shore__drive *d, void *blob, uint32_t *bytes, struct shore_diag *diag) {
    struct ram *r = ram_of(d);
    unsigned slot = shore__slots_active(&r->front.slots, NULL);
    *bytes = r->blob_bytes[slot];
    if (*bytes) memcpy(blob, r->blob[slot], *bytes);
    return 0;
}

static int ram_leaf_sum(struct shore__drive *d, bool deep, unsigned char sum[16], struct shore_diag *diag) {
    struct ram *r = ram_of(d);
    unsigned slot = shore__slots_active(&r->front.slots, NULL);
    memset(sum, 0, 16);
    for (uint32_t e = 0; e < r->desc.nextents; e++) {
        const struct shore__extent *extent = &r->desc.extents[e];
        for (uint32_t i = 0; i < extent->count; i++) {
            for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
                const void *data = shore__ram_plane(r, slot, p, extent->local + i);
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
    return shore__fail(diag, -ENOTSUP, "%s keeps nothing after its process has ended, so it has no snapshots", d->path);
}

static int ram_describe(const struct shore__drive *d, char *text, size_t bytes) {
    if (!ram_of(d)->keeps)
        snprintf(text, bytes, "null: keeps nothing");
    else
        snprintf(text, bytes, "ram: %s in memory, kept until the process ends",
                 shore__format_size(shore__ram_memory_bytes(&ram_of(d)->front.config, d->desc)).text);
    return 0;
}

static void ram_close(struct shore__drive *d) {
    struct ram *r = ram_of(d);
    struct shore_arena *arena = r->front.config.arena;
    shore__lane_stop(&r->front.updates);
    shore__lane_stop(&r->front.fetches);
    for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
        shore__arena_free(arena, r->plane[0][p]);
        shore__arena_free(arena, r->plane[1][p]);
    }
    shore__arena_free(arena, r->spill);
    shore__arena_free(arena, r->scratch);
    shore__arena_free(NULL, r->stage);
    for (int s = 0; s < 2; s++) {
        free(r->blob[s]);
        free((void *)(uintptr_t)r->map.bits[s]);
    }
    free(r->front.written);
    free(r->front.spilled);
    free((void *)(uintptr_t)r->desc.extents);
    pthread_mutex_destroy(&r->front.slots.mutex);
    free(r);
}

#define OPS                                                                                                  \
    .recovery = ram_recovery, .load = ram_load, .begin = shore__front_begin, .init = shore__front_init,      \
    .fetch = shore__front_fetch, .update = shore__front_update, .store = shore__front_store,                 \
    .carry = shore__front_carry, .call = shore__front_call, .commit = shore__front_commit, .blob = ram_blob, \
    .discard = shore__front_discard, .leaf_sum = ram_leaf_sum, .snapshot = ram_snapshot,                     \
    .ledger = shore__front_ledger, .describe = ram_describe, .close = ram_close
static const struct shore__drive_ops ram_ops = {.caps = SHORE__DRIVE_KEEPS_DATA, OPS}, null_ops = {OPS};

uint64_t shore__ram_memory_bytes(const struct shore__drive_config *config, const struct shore__volume_desc *desc) {
    uint64_t bytes = 2 * (uint64_t)desc->segments * shore__state_segment_bytes(desc->plane_bytes);
    if (desc->spill) bytes += (uint64_t)desc->segments * SHORE_SEGMENT_ELEMS * 4;
    return bytes + shore__arena_round(desc->scratch_bytes);
}

static int take_memory(struct ram *r) {
    struct shore_arena *arena = r->front.config.arena;
    uint64_t segments = r->desc.segments;
    r->front.written = calloc(segments + 1, 1);
    r->front.spilled = calloc(segments + 1, 1);
    if (!r->front.written || !r->front.spilled) return -ENOMEM;
    for (int s = 0; s < 2; s++) {
        r->map.bits[s] = calloc(segments / 8 + 1, 1);
        if (!r->map.bits[s]) return -ENOMEM;
    }
    if (!r->keeps) return 0;
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

static int create(bool keeps, const struct shore__drive_config *config, const struct shore__volume_desc *desc,
                  struct shore__drive **out, struct shore_diag *diag) {
    struct ram *r = calloc(1, sizeof *r);
    const char *path = keeps ? "ram:" : "null:";
    if (!r) return shore__fail(diag, -ENOMEM, "%s out of memory", path);
    r->keeps = keeps;
    r->front.drive.ops = keeps ? &ram_ops : &null_ops;
    r->front.drive.desc = &r->desc;
    r->front.drive.path = path;
    r->front.config = *config;
    r->front.created = true;
    shore__slots_init(&r->front.slots);
    int rc = shore__desc_copy(desc, &r->desc);
    if (!rc) rc = take_memory(r);
    if (!rc) rc = shore__lane_start(&r->front.fetches, "shore-ram-fetch", shore__ram_fetch_lane, r);
    if (!rc) rc = shore__lane_start(&r->front.updates, "shore-ram-upd", shore__ram_update_lane, r);
    if (rc) {
        shore__fail(diag, rc, "%s the state needs %s of memory: %s", path,
                    shore__format_size(keeps ? shore__ram_memory_bytes(config, desc) : 0).text, shore_error_text(rc));
        ram_close(&r->front.drive);
        return rc;
    }
    *out = &r->front.drive;
    return 0;
}

int shore__ram_create(const struct shore__drive_config *config, const struct shore__volume_desc *desc,
                      struct shore__drive **out, struct shore_diag *diag) {
    return create(true, config, desc, out, diag);
}

int shore__null_create(const struct shore__drive_config *config, const struct shore__volume_desc *desc,
                       struct shore__drive **out, struct shore_diag *diag) {
    return create(false, config, desc, out, diag);
}
