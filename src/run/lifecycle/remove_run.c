/* Deletes a run with its volumes, and only those. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/diag.h"
#include "drive/probe/probe.h"
#include "files/atomic.h"
#include "run/lifecycle/making.h"
#include "run/lifecycle/mend.h"
#include "run/lifecycle/snapshots.h"
#include "run/lifecycle/volumes.h"
#include "run/paths.h"
#include "storage/volume.h"

/* A volume of the run, or, with `at` NULL, none. */
struct held {
    const struct shore__address *at;
    int fd;         /* locked; -1: it lies on another host */
    bool is_device; /* of this host */
};

/* Whose volumes they are. A run knows its volumes. A run that was being overwritten may have lost some. A making may
 * not have made its volumes yet, or not their headers. */
enum whose { OF_RUN, OF_OVERWRITTEN, OF_MAKING };

/* Checks a volume on another host. It cannot be locked from here: it is removed later, if nobody uses it then. */
static int hold_elsewhere(const struct shore__address *drive, const uint64_t fleet_id[2], enum whose whose,
                          struct held *held, shore__note_fn note, void *ctx, struct shore_diag *diag) {
    struct shore__probe probe;
    int rc = shore__drive_probe(drive, &probe, diag);
    if (rc < 0) return rc;
    /* that host examines a file without a header */
    bool ours = shore__probe_is_of(&probe, fleet_id) || (whose == OF_MAKING && probe.exists && !probe.is_volume);
    if (!probe.exists && whose == OF_RUN)
        shore__note(note, ctx, "%s: no volume is there any more", drive->text);
    else if (probe.exists && !ours && whose != OF_OVERWRITTEN)
        shore__note(note, ctx, "left alone: %s: is not a volume of this run", drive->text);
    else if (probe.busy)
        rc = shore__fail(diag, SHORE_EBUSY, "%s: another process works on this volume; nothing was removed",
                         drive->text);
    held->at = rc == 0 && ours ? drive : NULL;
    shore__probe_free(&probe);
    return rc;
}

/* Locks a volume of this fleet. Leaves held->at at NULL if there is none: that is no failure. */
static int hold(const struct shore__address *drive, const uint64_t fleet_id[2], enum whose whose, struct held *held,
                shore__note_fn note, void *ctx, struct shore_diag *diag) {
    struct shore_diag why = {0};
    struct stat st;
    char *path = NULL;
    *held = (struct held){.fd = -1};
    if (!drive->kind->keeps) return 0;
    if (drive->kind->served) return hold_elsewhere(drive, fleet_id, whose, held, note, ctx, diag);
    int rc = shore__volume_path(drive->path, &path, &why);
    if (rc == 0 && stat(path, &st) < 0) rc = shore__fail_errno(&why, path, "cannot be examined");
    const bool gone = rc == -ENOENT || rc == -ENOTDIR;
    if (rc == 0 && access(path, R_OK) < 0) rc = shore__fail_errno(&why, path, "cannot be read");
    if (gone && whose == OF_RUN) shore__note(note, ctx, "%s: no volume is there any more", drive->text);
    if (rc == -EACCES && whose != OF_OVERWRITTEN) { /* then it may be ours */
        rc = shore__fail_of(diag, rc, &why, "%s; nothing was removed", why.text);
    } else if (rc || !shore__volume_is_of(path, fleet_id, whose == OF_MAKING, &why)) {
        if (!gone && whose != OF_OVERWRITTEN) shore__note(note, ctx, "left alone: %s", why.text);
        rc = 0;
    } else {
        *held = (struct held){drive, -1, S_ISBLK(st.st_mode)};
        held->fd = open(path, O_RDWR | O_CLOEXEC | (held->is_device ? O_EXCL : 0));
        if (held->fd < 0 || flock(held->fd, LOCK_EX | LOCK_NB) < 0)
            rc = errno == EWOULDBLOCK || errno == EBUSY
                     ? shore__fail(diag, SHORE_EBUSY, "%s: another process works on this volume; nothing was removed",
                                   path)
                     : shore__fail_errno(diag, path, "cannot be opened for removal");
    }
    free(path);
    return rc;
}

static void let_go(struct held *held) {
    if (held->fd >= 0) close(held->fd);
    *held = (struct held){.fd = -1};
}

/* Retries hold(): a killed process may keep its locks for a moment. */
static int hold_patiently(const struct shore__address *drive, const uint64_t fleet_id[2], enum whose whose,
                          struct held *held, shore__note_fn note, void *ctx, struct shore_diag *diag) {
    const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    for (int tries = (int)(SHORE__LOCK_SECONDS / 0.05);; tries--) {
        int rc = hold(drive, fleet_id, whose, held, note, ctx, diag);
        if (rc != SHORE_EBUSY || tries == 0) return rc;
        let_go(held);
        nanosleep(&pause, NULL);
    }
}

/* Nobody else has the volume by now; whoever removes it locks it again. */
static int remove_held(struct held *held, const uint64_t fleet_id[2], enum whose whose, shore__note_fn note, void *ctx,
                       struct shore_diag *diag) {
    const struct held it = *held;
    struct shore_diag why = {0};
    char *path = NULL;
    let_go(held);
    int rc = shore__drive_remove(it.at, fleet_id, SHORE__ANY_GENERATION, whose == OF_MAKING, &why);
    if (!it.at->kind->served) shore__volume_path(it.at->path, &path, NULL);
    if (rc == 0) shore__note(note, ctx, it.is_device ? "wiped %s" : "removed %s", path ? path : it.at->text);
    if (rc == SHORE_EMISMATCH) shore__note(note, ctx, "left alone: %s", why.text);
    free(path);
    return rc && rc != SHORE_EMISMATCH ? shore__fail_of(diag, rc, &why, "%s", why.text) : 0;
}

static int remove_volumes(const struct shore__addresses *drives, const uint64_t fleet_id[2], enum whose whose,
                          bool *begun, shore__note_fn note, void *ctx, struct shore_diag *diag) {
    struct held *held = calloc(drives->count + 1, sizeof *held);
    size_t n = 0;
    int rc = held ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
    for (; rc == 0 && n < drives->count; n++)
        rc = hold_patiently(drives->item[n], fleet_id, whose, &held[n], note, ctx, diag);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (!held[i].at) continue;
        *begun = true;
        rc = remove_held(&held[i], fleet_id, whose, note, ctx, diag);
    }
    for (size_t i = 0; i < n; i++)
        let_go(&held[i]);
    free(held);
    return rc;
}

/* Removes a file of the run. A directory of that name is not the run's. */
static int remove_file(const char *run_path, const char *name, bool *begun, struct shore_diag *diag) {
    const struct shore__path path = shore__path_in(run_path, name);
    if (shore__atomic_remove(path.text) == 0)
        *begun = true;
    else if (errno != ENOENT && errno != EISDIR)
        return shore__fail_errno(diag, path.text, "cannot be removed");
    return 0;
}

/* Removes run.json last: until then the same command can be repeated. */
static int remove_files(const char *path, bool *begun, shore__note_fn note, void *ctx, struct shore_diag *diag) {
    int rc = remove_file(path, SHORE__RUN_PLAN, begun, diag);
    for (const char *const *name = shore__run_files; rc == 0 && *name; name++)
        rc = remove_file(path, *name, begun, diag);
    if (rc) return rc;
    shore__changes_forget(path, note, ctx);
    shore__making_remove(path);
    rc = remove_file(path, "run.json", begun, diag);
    if (rc) return rc;
    if (rmdir(path) == 0)
        shore__note(note, ctx, "removed %s", path);
    else
        shore__note(note, ctx, "%s: the run is removed; the directory holds other files and stays", path);
    return 0;
}

static int remove_volumes_of(const struct shore__run *run, enum whose whose, bool *begun, shore__note_fn note,
                             void *ctx, struct shore_diag *diag) {
    return remove_volumes(&run->settings.drives, run->fleet_id, whose, begun, note, ctx, diag);
}

/* Whether a run within another one is of a model that the package does not train: run/frozen.py makes it there. */
static bool is_frozen(const char *path) {
    struct shore__run *run = shore__run_peek(path);
    bool frozen = run && run->contents &&
                  json_is_false(json_object_get(json_object_get(run->contents->program, "engine"), "trains"));
    shore__run_free(run);
    return frozen;
}

static int remove_frozen(const char *path, bool *begun, shore__note_fn note, void *ctx, struct shore_diag *diag) {
    DIR *directory = opendir(path);
    const struct dirent *entry;
    int rc = directory ? 0 : shore__fail_errno(diag, path, "cannot be read");
    while (rc == 0 && (entry = readdir(directory))) {
        const struct shore__path inner = shore__path_in(path, entry->d_name);
        if (strncmp(entry->d_name, "frozen-", 7) == 0 && is_frozen(inner.text))
            rc = shore__run_remove(inner.text, begun, note, ctx, diag);
    }
    if (directory) closedir(directory);
    return rc;
}

/* Removes a making that was killed before its journal was durable: it has made nothing else yet. */
static int remove_without_journal(const char *path, shore__note_fn note, void *ctx, struct shore_diag *diag) {
    const struct shore__path making = shore__path_in(path, "making");
    shore__remove_in(making.text, "plan.json");
    int rc = rmdir(making.text) == 0 ? 0 : shore__not_a_run(path, diag);
    if (rc == 0 && rmdir(path) == 0) shore__note(note, ctx, "removed %s", path);
    return rc;
}

int shore__run_remove(const char *path, bool *begun, shore__note_fn note, void *ctx, struct shore_diag *diag) {
    struct shore__run *run = NULL, *overwritten = NULL;
    struct shore__journal journal = {0};
    int rc = 0, killed = SHORE_EMISSING;
    if (shore__is_run(path))
        rc = shore__run_open_alone(path, &run, diag);
    else if (!shore__path_exists(path, "making"))
        rc = shore__not_a_run(path, diag);
    else if ((rc = shore__run_alloc(path, &run, diag)) == 0)
        rc = shore__run_lock(run, diag);
    if (rc == 0 && (killed = shore__journal_read(path, SHORE__MAKING, NULL, &journal, diag)) != SHORE_EMISSING)
        rc = killed;
    if (rc == 0 && killed == SHORE_EMISSING && !shore__is_run(path)) {
        rc = remove_without_journal(path, note, ctx, diag);
        shore__run_close(run);
        return rc;
    }
    bool made = rc == 0 && shore__is_run(path);
    if (rc == 0) overwritten = shore__run_overwritten(path);
    if (made) rc = shore__run_refuse_copy(run, SHORE__RUN_PUT_BACK, diag);
    if (rc == 0 && killed == 0) rc = shore__making_refuse_copy(path, &journal, diag);
    /* first the volumes, old or new, that a killed change of drives left */
    if (rc == 0) rc = remove_frozen(path, begun, note, ctx, diag);
    if (rc == 0 && made) rc = shore__move_mend(run, note, ctx, diag);
    if (rc == 0 && made) rc = remove_volumes_of(run, OF_RUN, begun, note, ctx, diag);
    if (rc == 0 && made) shore__run_drop(overwritten, note, ctx);
    if (rc == 0 && overwritten && !made) rc = remove_volumes_of(overwritten, OF_OVERWRITTEN, begun, note, ctx, diag);
    if (rc == 0 && (made || overwritten))
        rc = shore__snapshots_remove(path, made ? &run->settings.drives : &overwritten->settings.drives, false, note,
                                     ctx, diag);
    /* volumes that a killed --overwrite may have made */
    if (rc == 0 && killed == 0) rc = remove_volumes(&journal.new, journal.fleet_id, OF_MAKING, begun, note, ctx, diag);
    if (rc == 0) rc = remove_files(run->path, begun, note, ctx, diag);
    shore__journal_free(&journal);
    shore__run_free(overwritten);
    shore__run_close(run);
    return rc;
}
