/* Finds the step from which a fleet goes on. If the records of its drives differ by more than a crash explains, the
 * fleet is refused and the drive that does not fit is named. */
#include "base/diag.h"
#include "drive/fleet/fleet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t step_of(const struct shore__record *record) {
    return record->slot[record->active].step;
}

/* Whether a record holds a step. A drive that was just made and never updated holds it in its active slot only. */
static bool holds(const struct shore__record *record, uint64_t step) {
    return record->slot[0].step == step || record->slot[1].step == step;
}

static int stale(struct shore__drive *const *drives, const struct shore__drive_recovery *found, uint32_t ndrives,
                 uint32_t behind, uint64_t newest, struct shore_diag *diag) {
    const char *path = drives[behind]->path;
    unsigned long long own = step_of(&found[behind].record), other = newest;
    if (found[behind].damaged_record) {
        return shore__fail(diag, SHORE_ESTALE,
                           "%s: its newest whole state is step %llu and the other drives are at step %llu, because %s",
                           path, own, other, found[behind].damage.text);
    }
    return shore__fail(diag, SHORE_ESTALE,
                       "%s is at step %llu but the other drives are at step %llu: it was put back from a copy, or a "
                       "run went on without it; give the drive that belongs to the others",
                       path, own, other);
}

/* Goes back to the step before an interrupted restore. Some drives may have committed the restored state and some not,
 * but each still holds that step in a slot. */
static int restore(struct shore__drive *const *drives, const struct shore__drive_recovery *found, uint32_t ndrives,
                   uint64_t step, struct shore__fleet_state *out, struct shore_diag *diag) {
    for (uint32_t d = 0; d < ndrives; d++) {
        if (holds(&found[d].record, step)) continue;
        return shore__fail(diag, SHORE_ESTALE,
                           "%s does not hold step %llu, where a rollback began that was interrupted: the drive was put "
                           "back from a copy",
                           drives[d]->path, (unsigned long long)step);
    }
    out->step = step;
    return 0;
}

/* Explains a drive without a record: it was not sealed, or it has lost both. All drives are sealed before any is
 * used. */
static int without_record(struct shore__drive *const *drives, const struct shore__drive_recovery *found,
                          uint32_t ndrives, uint32_t without, uint64_t hint_step, struct shore_diag *diag) {
    const char *path = drives[without]->path;
    bool sealed = hint_step > 0;
    if (found[without].damaged_record)
        return shore__fail(diag, SHORE_ECORRUPT, "%s: no whole record is left: %s", path, found[without].damage.text);
    for (uint32_t d = 0; d < ndrives; d++)
        sealed |= found[d].valid && found[d].record.sequence > 1;
    if (sealed)
        return shore__fail(diag, SHORE_ECORRUPT,
                           "%s: both commit records are gone: the drive has lost them; put the file back from a copy, "
                           "and check the drive",
                           path);
    return shore__fail(diag, SHORE_EMISSING, "%s was being made and holds no whole state yet: make it again", path);
}

/* Accepts the step before the committed one: the other slots may still hold it whole. */
static int accept_older(struct shore__drive *const *drives, const struct shore__drive_recovery *found, uint32_t ndrives,
                        uint64_t accept, struct shore__fleet_state *out, struct shore_diag *diag) {
    const struct shore__record *told = NULL;
    for (uint32_t d = 0; d < ndrives; d++) {
        const struct shore__record *older = &found[d].older;
        if (!holds(&found[d].record, accept))
            return shore__fail(
                diag, SHORE_ESTALE,
                "step %llu cannot be accepted: %s no longer holds it; the step that is still whole is %llu",
                (unsigned long long)accept, drives[d]->path, (unsigned long long)out->step);
        if (found[d].older_valid && step_of(older) == accept) told = older;
    }
    out->verify = out->gives_up = true;
    out->given_up = out->step;
    out->step = accept;
    if (told) {
        out->metrics_bytes = told->metrics_bytes;
        memcpy(out->metrics, told->metrics, told->metrics_bytes);
    }
    return 0;
}

/* Checks that every drive holds the step and that none has missed a commit. Nothing is committed in an epoch before all
 * drives have its record, so a drive of an older epoch that is also behind has missed one. */
static int check_held(struct shore__drive *const *drives, const struct shore__drive_recovery *found, uint32_t ndrives,
                      uint64_t epoch, uint64_t step, const uint64_t *accept, struct shore_diag *diag) {
    for (uint32_t d = 0; d < ndrives && !(accept && *accept == step); d++) {
        for (uint32_t e = 0; e < ndrives && found[d].record.epoch < epoch; e++) {
            bool newer = found[e].record.epoch > found[d].record.epoch;
            if (newer && step_of(&found[e].record) > step_of(&found[d].record))
                return stale(drives, found, ndrives, d, step_of(&found[e].record), diag);
        }
    }
    for (uint32_t d = 0; d < ndrives; d++) {
        if (!holds(&found[d].record, step))
            return shore__fail(diag, SHORE_ESTALE, "%s no longer holds step %llu, the newest that all drives had",
                               drives[d]->path, (unsigned long long)step);
    }
    return 0;
}

/* Refuses a fleet whose newest whole step is older than one that the run knows to be committed. damaged: a drive whose
 * newest record is damaged; may be NULL. */
static int behind_hint(struct shore__drive *const *drives, const struct shore__drive_recovery *damaged, uint32_t oldest,
                       uint64_t step, uint64_t hint_step, struct shore_diag *diag) {
    char whole[24];
    snprintf(whole, sizeof whole, "%llu", (unsigned long long)step);
    if (damaged)
        return shore__advise(diag,
                             shore__fail(diag, SHORE_ESTALE,
                                         "step %llu was committed but the newest whole one is %s, because %s",
                                         (unsigned long long)hint_step, whole, damaged->damage.text),
                             SHORE_ADVICE_ACCEPT_STEP, whole);
    return shore__fail(diag, SHORE_ESTALE,
                       "%s is at step %llu but step %llu was committed: the drives were put back from an older copy; "
                       "put the newest state back, or make the run again",
                       drives[oldest]->path, (unsigned long long)step, (unsigned long long)hint_step);
}

static int recover(struct shore__drive *const *drives, const struct shore__drive_recovery *found, uint32_t ndrives,
                   const struct shore_fleet_options *options, struct shore__fleet_state *out, struct shore_diag *diag) {
    uint32_t oldest = 0, newest = 0, damaged = ndrives;
    uint64_t epoch = 0, hint_step = options->hint_step;
    const uint64_t *accept = options->accept_step;
    for (uint32_t d = 0; d < ndrives; d++) {
        if (!found[d].valid) return without_record(drives, found, ndrives, d, hint_step, diag);
        if (found[d].damaged_record) damaged = d;
        if (step_of(&found[d].record) < step_of(&found[oldest].record)) oldest = d;
        if (step_of(&found[d].record) > step_of(&found[newest].record)) newest = d;
        if (found[d].record.epoch > epoch) epoch = found[d].record.epoch;
    }
    uint64_t step = step_of(&found[oldest].record), greatest = step_of(&found[newest].record);
    out->step = step;
    out->epoch = epoch;
    if (options->restoring) return restore(drives, found, ndrives, options->restore_step, out, diag);
    if (greatest - step > 1) return stale(drives, found, ndrives, oldest, greatest, diag);
    int rc = check_held(drives, found, ndrives, epoch, step, accept, diag);
    if (rc) return rc;
    if (accept && *accept < step && step >= hint_step) return accept_older(drives, found, ndrives, *accept, out, diag);
    if (accept && *accept != step) {
        return shore__fail(diag, SHORE_ESTALE, "step %llu cannot be accepted: the step that is still whole is %llu",
                           (unsigned long long)*accept, (unsigned long long)step);
    }
    if (step < hint_step && !accept)
        return behind_hint(drives, damaged < ndrives ? &found[damaged] : NULL, oldest, step, hint_step, diag);
    if (accept) out->verify = true;
    out->step_before = step > 0;
    for (uint32_t d = 0; d < ndrives; d++)
        out->step_before = out->step_before && holds(&found[d].record, step - 1);
    const struct shore__record *record = &found[oldest].record;
    out->metrics_bytes = record->metrics_bytes;
    memcpy(out->metrics, record->metrics, record->metrics_bytes);
    return 0;
}

int shore__fleet_recover(struct shore__drive *const *drives, uint32_t ndrives,
                         const struct shore_fleet_options *options, struct shore__fleet_state *out,
                         struct shore_diag *diag) {
    struct shore__drive_recovery *found = calloc(ndrives, sizeof *found);
    if (!found) return shore__fail(diag, -ENOMEM, "out of memory");
    memset(out, 0, sizeof *out);
    int rc = 0;
    for (uint32_t d = 0; !rc && d < ndrives; d++)
        rc = drives[d]->ops->recovery(drives[d], &found[d], diag);
    if (!rc) rc = recover(drives, found, ndrives, options, out, diag);
    free(found);
    return rc;
}
