/* Queries to a fleet. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/sized.h"
#include "base/units.h"
#include "drive/chunk.h"
#include "drive/counters.h"
#include "drive/fleet/fleet.h"

struct shore_fleet_info shore__fleet_info(const struct shore_fleet *fleet) {
    struct shore_fleet *f = (struct shore_fleet *)(uintptr_t)fleet;
    struct shore_fleet_info info = {
        .fleet_id = {f->fleet_id[0], f->fleet_id[1]},
        .ndrives = f->ndrives,
        .generation = f->generation,
        .scratch_bytes = f->scratch_bytes,
        .away = !f->is_part && shore__addresses_away(&f->at),
    };
    pthread_mutex_lock(&f->lock);
    info.step = f->step;
    info.epoch = f->epoch;
    pthread_mutex_unlock(&f->lock);
    for (int p = 0; p < SHORE_PLANE_COUNT; p++)
        if (f->config.plane_bytes[p]) info.planes |= 1u << p;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        info.disk_bytes += f->drives[d]->disk_bytes;
    }
    return info;
}

int shore_fleet_info(const struct shore_fleet *fleet, struct shore_fleet_info *out) {
    const struct shore_fleet_info info = shore__fleet_info(fleet);
    return shore__sized_out(out, &info, sizeof info);
}

const char *shore_fleet_drive_path(const struct shore_fleet *f, uint32_t drive) {
    return drive < f->ndrives ? f->drives[drive]->path : NULL;
}

uint64_t shore_fleet_drive_busy_ns(const struct shore_fleet *f, uint32_t drive) {
    return drive < f->ndrives ? shore__busy_ns(&f->busy[drive]) : 0;
}

uint64_t shore_fleet_drive_segments(const struct shore_fleet *f, uint32_t drive) {
    return drive < f->ndrives ? f->drives[drive]->desc->segments : 0;
}

int shore_fleet_drive_describe(const struct shore_fleet *f, uint32_t drive, char *text, size_t bytes) {
    return drive < f->ndrives ? f->drives[drive]->ops->describe(f->drives[drive], text, bytes) : -EINVAL;
}

int shore_fleet_metrics(const struct shore_fleet *fleet, void *metrics, uint32_t *bytes) {
    struct shore_fleet *f = (struct shore_fleet *)(uintptr_t)fleet;
    uint32_t capacity = *bytes;
    pthread_mutex_lock(&f->lock);
    *bytes = f->metrics_bytes;
    int rc = f->metrics_bytes > capacity ? -ENOSPC : 0;
    if (!rc) memcpy(metrics, f->metrics, f->metrics_bytes);
    pthread_mutex_unlock(&f->lock);
    return rc;
}

int shore_fleet_blob(struct shore_fleet *f, void *blob, uint32_t *bytes, struct shore_diag *diag) {
    uint32_t capacity = *bytes;
    unsigned char *whole = malloc(SHORE_BLOB_BYTES);
    if (!whole) return shore__fail(diag, -ENOMEM, "out of memory");
    int rc = f->drives[f->own_first]->ops->blob(f->drives[f->own_first], whole, bytes, diag);
    if (!rc && *bytes > capacity) rc = shore__fail(diag, -ENOSPC, "the blob of the step has %u bytes", *bytes);
    if (!rc && *bytes) memcpy(blob, whole, *bytes);
    free(whole);
    return rc;
}

int shore_fleet_leaf_sum(struct shore_fleet *f, bool deep, unsigned char sum[16], struct shore_diag *diag) {
    memset(sum, 0, 16);
    for (uint32_t d = 0; d < f->ndrives; d++) {
        unsigned char of_drive[16];
        int rc = f->drives[d]->ops->leaf_sum(f->drives[d], deep, of_drive, diag);
        if (rc) return rc;
        shore__sum_add(sum, of_drive);
    }
    return 0;
}

void shore_fleet_digest_of(uint64_t step, const unsigned char (*sums)[16], uint32_t nsums, unsigned char digest[16]) {
    unsigned char message[24] = {0};
    struct shore__leaf leaf;
    shore__put_u64(message, step);
    for (uint32_t i = 0; i < nsums; i++)
        shore__sum_add(message + 8, sums[i]);
    shore__leaf_make(message, sizeof message, 0, &leaf);
    memcpy(digest, leaf.hash, 16);
}

int shore_fleet_digest(struct shore_fleet *f, bool deep, unsigned char digest[16], struct shore_diag *diag) {
    unsigned char sum[1][16];
    if (f->is_part)
        return shore__fail(diag, -EINVAL, "the digest is of all parts: shore_fleet_digest_of() makes it of their sums");
    int rc = shore_fleet_leaf_sum(f, deep, sum[0], diag);
    if (!rc) shore_fleet_digest_of(shore__fleet_info(f).step, sum, 1, digest);
    return rc;
}

int shore_fleet_ledger(const struct shore_fleet *fleet, struct shore_ledger *out) {
    struct shore_fleet *f = (struct shore_fleet *)(uintptr_t)fleet;
    struct shore_ledger ledger;
    for (size_t i = 0; i < SHORE__COUNTERS; i++)
        *shore__counter(&ledger, i) = f->counters[i];
    for (uint32_t d = 0; d < f->ndrives; d++) {
        f->drives[d]->ops->ledger(f->drives[d], &ledger);
    }
    return shore__sized_out(out, &ledger, sizeof ledger);
}

static struct shore_ledger ledger_of(const struct shore_fleet *f, uint32_t drive) {
    struct shore_ledger of = {0};
    f->drives[drive]->ops->ledger(f->drives[drive], &of);
    return of;
}

uint64_t shore__fleet_read(const struct shore_fleet *f, uint32_t drive) {
    const struct shore_ledger of = ledger_of(f, drive);
    return of.drive_read_state + of.drive_read_fetch + of.drive_read_spill + of.drive_read_scratch;
}

bool shore__fleet_owns(const struct shore_fleet *f, uint32_t drive) {
    return drive - f->own_first < f->own_count;
}

uint64_t shore__fleet_written(const struct shore_fleet *f, uint32_t drive) {
    const struct shore_ledger of = ledger_of(f, drive);
    return of.drive_write_state + of.drive_write_spill + of.drive_write_scratch + of.drive_write_commit;
}
