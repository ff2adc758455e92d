/* Decides where the volumes of a new run lie, and finds what is there already. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "drive/probe/probe.h"
#include "run/lifecycle/places.h"
#include "run/lifecycle/volumes.h"
#include "run/paths.h"
#include "storage/volume.h"

/* The run that made a volume, as the volume says; *there: that run is still at that path. */
static char *maker_of(const struct shore__probe *p, bool *there) {
    const char *home = p->desc.identity;
    *there = false;
    if (!p->desc.identity_bytes || home[0] != '/') return NULL;
    char *path = strndup(home, p->desc.identity_bytes);
    struct shore__run *run = path ? shore__run_peek(path) : NULL;
    *there = run && memcmp(run->fleet_id, p->desc.fleet_id, sizeof run->fleet_id) == 0;
    shore__run_free(run);
    return path;
}

static int say_whose(const struct shore__address *at, const struct shore__probe *p, struct shore_diag *diag) {
    const struct shore__record *r = &p->recovery.record;
    char fleet[33], step[40] = "";
    bool there;
    char *maker = maker_of(p, &there);
    if (p->recovery.valid) snprintf(step, sizeof step, ", at step %" PRIu64, r->slot[r->active & 1].step);
    shore__fleet_id_text(p->desc.fleet_id, fleet);
    const char *busy = p->busy ? "is in use, and " : "";
    const char *gone = p->is_device ? "wipe the first MiB of the device" : "delete the file";
    int rc =
        maker && there ? shore__fail(diag, SHORE_EEXISTS,
                                     "%s: %sholds the state of the run %s%s; name another path, or remove that run",
                                     at->text, busy, shore__shown(maker).text, step)
        : maker        ? shore__fail(diag, SHORE_EEXISTS,
                                     "%s: %sholds the state of a run that was made as %s%s; name another path, or, if "
                                            "nobody needs that run any more, %s",
                                     at->text, busy, shore__shown(maker).text, step, gone)
                       : shore__fail(diag, SHORE_EEXISTS,
                                     "%s: %sholds the state of another run (fleet %s)%s; name another path, or, if nobody "
                                            "needs that run any more, %s",
                                     at->text, busy, fleet, step, gone);
    if (maker && there) shore__advise(diag, rc, SHORE_ADVICE_REMOVE_RUN, maker);
    free(maker);
    return rc;
}

int shore__volume_place(const struct shore__address *drive, const char *home, const uint64_t fleet_id[2], size_t number,
                        struct shore__address **out, struct shore_diag *diag) {
    struct shore__address *absolute = NULL;
    struct shore__probe probe;
    *out = NULL;
    int rc = shore__drive_absolute(drive, &absolute, diag);
    if (!rc) rc = shore__drive_probe(absolute, &probe, diag);
    if (rc) {
        free(absolute);
        return rc;
    }
    bool anothers = shore__probe_is_sealed(&probe) && !shore__probe_is_of(&probe, fleet_id);
    char *name = probe.in_directory ? shore__volume_own_name(home, fleet_id, number) : NULL;
    if (probe.in_directory && !(name && (*out = shore__address_in(absolute, name))))
        rc = shore__out_of_memory(diag);
    else if (!probe.in_directory && anothers)
        rc = say_whose(absolute, &probe, diag);
    else if (!probe.in_directory)
        *out = absolute;
    if (*out != absolute) free(absolute);
    free(name);
    shore__probe_free(&probe);
    return rc;
}

/* The overwritten run's volume on this drive. NULL: it has none there, or another run has its place by now. */
static const struct shore__address *volume_before(const struct shore__run *run, const struct shore__run *overwritten,
                                                  const struct shore__address *absolute) {
    for (size_t i = 0; overwritten && i < overwritten->settings.drives.count; i++) {
        const struct shore__address *drive = overwritten->settings.drives.item[i];
        if (!shore__drive_is_named(drive->text, overwritten->generation, absolute->text)) continue;
        bool lost = shore__volume_is(drive, overwritten->fleet_id, SHORE__ANOTHERS) &&
                    !shore__volume_is(drive, run->fleet_id, SHORE__OURS);
        return lost ? NULL : drive;
    }
    return NULL;
}

/* Where the new volume lies on a drive of the overwritten run: beside the old one, so that the old run stays until the
 * new one is made. A device has room for one only. */
static int place_beside(struct shore__run *run, const struct shore__run *overwritten,
                        const struct shore__address *before, const struct shore__address *absolute,
                        struct shore__address **out, struct shore_diag *diag) {
    struct shore__probe probe;
    int rc = shore__drive_probe(absolute, &probe, diag);
    if (rc) return rc;
    const bool in_directory = probe.in_directory, is_device = probe.is_device;
    shore__probe_free(&probe);
    if (in_directory) return shore__volume_place(absolute, run->private->home, run->fleet_id, 0, out, diag);
    if (!is_device) run->generation = overwritten->generation + 1; /* the name's ".gN" is then known as ours */
    *out = is_device ? shore__address_copy(before) : shore__volume_next(before, run->generation);
    return *out ? 0 : shore__out_of_memory(diag);
}

static bool is_mine(const struct shore__run *run, size_t i) {
    return !run->mine || run->mine[i];
}

/* A drive of another process on another host, whose directory is not seen from here. */
static bool is_out_of_sight(const struct shore__run *run, size_t i) {
    char *here = is_mine(run, i) ? NULL : shore__address_absolute(run->settings.drives.text[i]);
    bool seen = is_mine(run, i) || here;
    free(here);
    return !seen;
}

/* Keeps the name of such a drive: its process says what is there. */
static int place_unseen(struct shore__run *run, size_t i, const struct shore__run *overwritten,
                        struct shore_diag *diag) {
    const char *text = run->settings.drives.text[i];
    if (*text != '/')
        return shore__fail(diag, SHORE_EUSAGE, "%s: a drive on another host is named by its whole path",
                           shore__shown(text).text);
    if (overwritten && shore__addresses_have(&overwritten->settings.drives, text))
        return shore__fail(diag, SHORE_EUSAGE,
                           "%s: has a volume of the run that is there, and lies on another host: name another path, or "
                           "remove that run first",
                           shore__shown(text).text);
    return shore__addresses_add(&run->private->fresh, shore__address_copy(run->settings.drives.item[i]))
               ? shore__out_of_memory(diag)
               : 0;
}

/* Replaces the drive by its volume's path. */
static int place(struct shore__run *run, size_t i, const struct shore__run *overwritten, struct shore_diag *diag) {
    struct shore__addresses *drives = &run->settings.drives;
    struct shore__address *absolute = NULL, *at = NULL;
    int rc = shore__drive_may_be_made(drives->item[i], diag);
    if (rc == 0) rc = shore__drive_absolute(drives->item[i], &absolute, diag);
    const struct shore__address *before = rc == 0 ? volume_before(run, overwritten, absolute) : NULL;
    if (before) rc = place_beside(run, overwritten, before, absolute, &at, diag);
    if (rc == 0 && !before) rc = shore__volume_place(absolute, run->private->home, run->fleet_id, 0, &at, diag);
    for (size_t k = 0; rc == 0 && k < i; k++)
        if (strcmp(drives->text[k], at->text) == 0)
            rc = shore__fail(diag, SHORE_EUSAGE, "the drive %s is given twice", absolute->text);
    free(absolute);
    if (rc == 0)
        shore__addresses_put(drives, i, at);
    else
        free(at);
    return rc;
}

int shore__making_place(struct shore__run *run, const struct shore__journal *before,
                        const struct shore__run *overwritten, struct shore_diag *diag) {
    const struct shore__addresses *drives = &run->settings.drives;
    size_t ours = 0, foreign = 0;
    if (drives->count == 0)
        return shore__fail(diag, SHORE_EUSAGE, "where is the state to live? Name a drive: a directory, or ram:");
    for (size_t i = 0; i < drives->count; i++) {
        struct shore__address *volume = NULL;
        enum shore__owner owner = SHORE__BEGUN;
        bool exists = false;
        const bool unseen = is_out_of_sight(run, i);
        if (!drives->item[i]->kind->keeps || (run->joins && !is_mine(run, i))) continue;
        int rc = unseen ? place_unseen(run, i, overwritten, diag) : place(run, i, overwritten, diag);
        if (rc == 0 && unseen) continue;
        if (rc == 0) rc = shore__volume_owner(drives->item[i], true, before->fleet_id, &volume, &exists, &owner, diag);
        if (rc < 0) return rc;
        bool made_here = owner != SHORE__ANOTHERS && shore__addresses_have(&before->new, volume->text);
        bool replaced = exists && owner == SHORE__ANOTHERS && overwritten &&
                        shore__volume_is(drives->item[i], overwritten->fleet_id, SHORE__OURS);
        /* another run's volume can be told from the one that this making puts there */
        bool fresh = !exists || made_here || owner == SHORE__ANOTHERS;
        run->private->replaces |= replaced;
        ours += is_mine(run, i) && exists && (owner == SHORE__OURS || made_here);
        foreign += is_mine(run, i) && exists && owner != SHORE__OURS && !made_here;
        if (rc < 0 || !fresh)
            free(volume);
        else if (shore__addresses_add(&run->private->fresh, volume))
            rc = shore__out_of_memory(diag);
        if (rc < 0) return rc;
    }
    run->replace_drives = ours > 0 && foreign == 0;
    return 0;
}

int shore__run_find_home(struct shore__run *run, struct shore_diag *diag) {
    free(run->private->home);
    run->private->home = realpath(run->path, NULL);
    return run->private->home ? 0 : shore__fail_errno(diag, run->path, "cannot be resolved");
}

void shore__run_new_fleet(const struct shore__run *run, struct shore_fleet_options *options) {
    enum { HOME_BYTES_MOST = 4096 }; /* a page, as far as the plan of memory goes */
    const char *home = run->private->home;
    options->overwrite |= run->replace_drives;
    options->identity = home;
    options->identity_bytes = home && strlen(home) <= HOME_BYTES_MOST ? (uint32_t)strlen(home) : 0;
    memcpy(options->fleet_id, run->fleet_id, sizeof options->fleet_id);
}
