/* A run that is being made. RUN/making is both marker and workplace. Its files replace those in RUN only when
 * everything else is in place, so a killed making can be told from a run.
 *
 * An overwritten run stays whole until then. If the new run has a drive of the old one, the old run stays whole only
 * until the first of its volumes is made anew. From there on RUN is a run that is being made. The old run.json lies in
 * RUN/making, so that the old volumes and snapshots are not forgotten. It goes back only if none of the old volumes was
 * touched. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"
#include "drive/probe/probe.h"
#include "files/atomic.h"
#include "run/directory/journal.h"
#include "run/lifecycle/making.h"
#include "run/lifecycle/mend.h"
#include "run/lifecycle/places.h"
#include "run/lifecycle/volumes.h"
#include "run/paths.h"

#define MAKING "making"
#define DRAFT "plan.json"

/* ---- the draft --------------------------------------------------------------------------------------------------- */

static int write_draft_of(struct shore__run *run, struct shore_diag *diag) {
    const struct shore__draft draft = {
        .fleet_id = {run->fleet_id[0], run->fleet_id[1]},
        .fresh = run->private->fresh,
        .moving = run->private->moving,
        .maker = run->contents ? (char *)(uintptr_t)shore__contents_maker(run->contents) : NULL,
    };
    return shore__draft_write(run->path, &draft, diag);
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

/* Patterns of the files that RUN/making may hold. */
static const char *const names_in_making[] = {SHORE__RUN_FILES,
                                              "run.json",
                                              DRAFT,
                                              ".*.partial",
                                              ".nfs*", /* removed, but still open somewhere */
                                              NULL};

/* mkdir -p, durable; remembers the directories that it made. */
static int make_directories(struct shore__run *run, struct shore_diag *diag) {
    char *path = strdup(run->path);
    int rc = path ? 0 : shore__out_of_memory(diag);
    for (char *at = path; rc == 0 && at;) {
        at = strchr(at + 1, '/');
        if (at) *at = '\0';
        if (mkdir(path, 0777) == 0)
            rc = shore__strings_add(&run->private->created, path) ? -ENOMEM : shore__parent_sync(path, diag);
        else if (errno != EEXIST)
            rc = shore__fail(diag, -errno, "%s: the directory cannot be made: %s", path, strerror(errno));
        if (at) *at = '/';
    }
    free(path);
    return rc;
}

/* Refuses snapshots and foreign files in the way, if no draft explains them: before it is written, or half undone. */
static int refuse_strangers(const struct shore__run *run, struct shore_diag *diag) {
    if (shore__path_exists(run->path, MAKING "/" DRAFT)) return 0;
    if (!shore__is_run(run->path) && shore__path_exists(run->path, "snapshots"))
        return shore__fail(diag, SHORE_EEXISTS,
                           "%s: holds snapshots of a run that is no more; choose another directory", run->path);
    char *making = shore__path_join(run->path, MAKING), *stranger = NULL;
    if (making) stranger = shore__directory_stranger(making, names_in_making);
    int rc = stranger ? shore__fail(diag, SHORE_EEXISTS,
                                    "%s: is in the way of a run being made there; move it, or choose another directory",
                                    stranger)
                      : 0;
    free(making);
    free(stranger);
    return rc;
}

static int refuse_what_is_there(struct shore__run *run, bool overwrite, struct shore_diag *diag) {
    if (overwrite) return 0;
    if (shore__is_run(run->path))
        return shore__advise(diag, shore__fail(diag, SHORE_EEXISTS, "%s: holds a run", run->path), SHORE_ADVICE_GO_ON,
                             run->word);
    if (shore__path_exists(run->path, MAKING)) return 0;
    for (const char *const *name = shore__run_files; *name; name++)
        if (shore__path_exists(run->path, *name))
            return shore__advise(diag,
                                 shore__fail(diag, SHORE_EEXISTS,
                                             "%s: holds %s, which a run would replace; choose another directory",
                                             run->path, *name),
                                 SHORE_ADVICE_OVERWRITE, NULL);
    return 0;
}

enum what { DROP, SYNC, MOVE };

/* Drops, syncs or moves into place each file of the run in RUN/making. */
static int each_file(struct shore__run *run, enum what what, struct shore_diag *diag) {
    int rc = 0;
    for (const char *const *name = shore__run_files; *name && rc == 0; name++) {
        char *to = shore__path_join(run->path, *name), *from = NULL;
        if (!to || asprintf(&from, "%s/" MAKING "/%s", run->path, *name) < 0) {
            from = NULL;
            rc = shore__out_of_memory(diag);
        } else if (what == DROP) {
            unlink(from);
            if (run->private->moving) unlink(to);
        } else if (what == SYNC) {
            struct stat st;
            if (stat(from, &st) == 0) rc = shore__file_sync(from, diag);
        } else if (rename(from, to) < 0) {
            if (errno != ENOENT)
                rc = shore__fail(diag, -errno, "%s: cannot be moved into the run: %s", from, strerror(errno));
            else
                unlink(to); /* the replaced run's file */
        }
        free(from);
        free(to);
    }
    return rc;
}

struct shore__run *shore__run_overwritten(const char *run_path) {
    char *making = shore__path_join(run_path, MAKING);
    struct shore__run *run = making ? shore__run_peek(making) : NULL;
    free(making);
    return run;
}

/* Opens the run to overwrite. *out: NULL if there is none. Ends its interrupted changes here: nobody else knows those
 * volumes. */
static int open_overwritten(struct shore__run *run, struct shore__run **out, struct shore_diag *diag) {
    struct shore__run *whole = shore__run_peek(run->path);
    *out = whole ? whole : shore__run_overwritten(run->path);
    if (!whole) return 0;
    int rc = shore__run_refuse_copy(whole, SHORE__RUN_PUT_BACK, diag);
    if (rc == 0) shore__making_settle(whole, shore__run_remember, whole);
    if (rc == 0) rc = shore__run_mend(whole, false, diag);
    run->note = whole->note;
    whole->note = NULL;
    if (rc < 0) shore__run_free(whole);
    return rc;
}

/* Returns 0 once nothing of this making is left there, whatever else is. */
static int drop_volume(const struct shore__address *volume, const uint64_t fleet_id[2], struct shore_diag *diag) {
    /* a volume that was not replaced yet may be in use */
    bool anothers = shore__volume_is(volume, fleet_id, SHORE__ANOTHERS);
    int rc = anothers ? 0 : shore__drive_remove(volume, fleet_id, SHORE__ANY_GENERATION, true, diag);
    return shore__removal_is_over(rc) ? 0 : rc;
}

/* Removes the volumes that an earlier making began where this one has no drive. */
static int drop_others(const struct shore__run *run, const struct shore__draft *before, struct shore_diag *diag) {
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < before->fresh.count; i++)
        if (!shore__addresses_have(&run->private->fresh, before->fresh.text[i]))
            rc = drop_volume(before->fresh.item[i], before->fleet_id, diag);
    return rc;
}

static int begin(struct shore__run *run, bool overwrite, struct shore_diag *diag) {
    struct shore__draft before = {0};
    int rc = refuse_strangers(run, diag);
    if (rc == 0) rc = refuse_what_is_there(run, overwrite, diag);
    if (rc < 0) return rc;
    struct shore__run *overwritten = NULL;
    rc = open_overwritten(run, &overwritten, diag);
    if (rc < 0) return rc;
    char *making = shore__path_join(run->path, MAKING);
    rc = making ? shore__draft_read(run->path, &before, diag) : shore__out_of_memory(diag);
    if (rc == SHORE_EMISSING) {
        rc = getrandom(before.fleet_id, sizeof before.fleet_id, 0) == (ssize_t)sizeof before.fleet_id
                 ? 0
                 : shore__fail(diag, -errno, "no random numbers: %s", strerror(errno));
        if (rc == 0 && mkdir(making, 0777) < 0 && errno != EEXIST)
            rc = shore__fail(diag, -errno, "%s: the directory cannot be made: %s", making, strerror(errno));
    } else if (rc == 0) {
        rc = shore__draft_refuse_copy(run->path, &before, diag);
    }
    if (rc == 0) {
        run->making = true;
        run->private->moving = before.moving && !shore__is_run(run->path);
        memcpy(run->fleet_id, before.fleet_id, sizeof run->fleet_id);
        rc = shore__making_place(run, &before, overwritten, diag);
    }
    if (rc == 0) rc = drop_others(run, &before, diag);
    if (rc < 0 && run->making)
        shore__addresses_copy(&before.fresh, &run->private->fresh); /* undoing this making removes those, too */
    if (rc == 0) rc = each_file(run, DROP, diag);
    if (rc == 0) rc = write_draft_of(run, diag);
    if (rc == 0) rc = shore__directory_sync(run->path, diag);
    shore__draft_free(&before);
    shore__run_free(overwritten);
    free(making);
    return rc;
}

int shore__making_begin(struct shore__run *run, bool overwrite, struct shore_diag *diag) {
    int rc = make_directories(run, diag);
    if (rc == 0) rc = shore__run_find_home(run, diag);
    if (rc == 0) rc = shore__run_lock(run, diag);
    return rc ? rc : begin(run, overwrite, diag);
}

/* Checks that the directory, or the one it would be made in, is writable. *there: the directory itself exists. */
static int check_directory(const struct shore__run *run, bool *there, struct shore_diag *diag) {
    struct stat st;
    char *path = strdup(run->path);
    int rc = path ? 0 : shore__out_of_memory(diag);
    *there = path && stat(path, &st) == 0;
    while (rc == 0 && stat(path, &st) && errno == ENOENT && strcmp(path, ".") != 0) {
        char *slash = strrchr(path, '/');
        if (slash)
            slash[slash == path] = '\0';
        else
            strcpy(path, ".");
    }
    if (rc == 0 && stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) errno = ENOTDIR, rc = -ENOTDIR;
    if (rc == 0 && access(path, W_OK | X_OK)) rc = -errno;
    if (rc < 0 && path)
        shore__fail(diag, rc, "%s: the directory cannot be made: %s: %s", run->path, path, shore_error_text(rc));
    free(path);
    return rc;
}

int shore__making_check(struct shore__run *run, bool overwrite, bool not_a_copy, struct shore_diag *diag) {
    struct shore__draft before = {0};
    bool there;
    int rc = check_directory(run, &there, diag);
    if (rc == 0 && there) rc = shore__run_lock(run, diag);
    if (rc == 0) rc = refuse_strangers(run, diag);
    if (rc == 0) rc = refuse_what_is_there(run, overwrite, diag);
    if (rc < 0) return rc;
    struct shore__run *whole = shore__run_peek(run->path);
    struct shore__run *overwritten = whole ? whole : shore__run_overwritten(run->path);
    if (whole && !not_a_copy) rc = shore__run_refuse_copy(whole, SHORE__RUN_PUT_BACK, diag);
    if (rc == 0) rc = shore__draft_read(run->path, &before, diag);
    if (rc == 0 && !not_a_copy) rc = shore__draft_refuse_copy(run->path, &before, diag);
    if (rc == SHORE_EMISSING) rc = 0;
    memcpy(run->fleet_id, before.fleet_id, sizeof run->fleet_id);
    run->private->home = strdup(run->path);
    if (rc == 0 && !run->private->home) rc = shore__out_of_memory(diag);
    if (rc == 0) rc = shore__making_place(run, &before, overwritten, diag);
    shore__draft_free(&before);
    shore__run_free(overwritten);
    return rc;
}

/* ---- finishing --------------------------------------------------------------------------------------------------- */

/* Moves run.json of the overwritten run into RUN/making: from here on it is no longer a run. */
static int retire(struct shore__run *run, struct shore_diag *diag) {
    char *making = shore__path_join(run->path, MAKING), *from = shore__path_join(run->path, "run.json");
    char *to = making ? shore__path_join(making, "run.json") : NULL;
    int rc = from && to ? 0 : shore__out_of_memory(diag);
    if (rc == 0 && rename(from, to) < 0 && errno != ENOENT)
        rc = shore__fail(diag, -errno, "%s: cannot be replaced: %s", from, strerror(errno));
    if (rc == 0) rc = shore__directory_sync(making, diag);
    if (rc == 0) rc = shore__directory_sync(run->path, diag);
    free(making);
    free(from);
    free(to);
    return rc;
}

int shore__run_replace(struct shore__run *run, struct shore_diag *diag) {
    return run->private->replaces ? retire(run, diag) : 0;
}

/* Removes the draft last: without it nobody would know the rest. */
void shore__making_remove(const char *run_path) {
    char *making = shore__path_join(run_path, MAKING);
    for (const char *const *name = shore__run_files; making && *name; name++)
        shore__remove_in(making, *name);
    if (making) shore__remove_in(making, "run.json");
    if (making) shore__directory_remove(making, names_in_making);
    free(making);
}

void shore__run_drop(const struct shore__run *overwritten, shore__note_fn note, void *ctx) {
    for (size_t i = 0; overwritten && i < overwritten->settings.drives.count; i++) {
        const struct shore__address *drive = overwritten->settings.drives.item[i];
        struct shore_diag why = {0};
        bool exists = false;
        enum shore__owner owner;
        if (!drive->kind->keeps) continue;
        int rc = shore__volume_owner(drive, false, overwritten->fleet_id, NULL, &exists, &owner, &why);
        /* where the new run has a volume, it is open by now */
        if (rc == 0 && exists && owner == SHORE__OURS)
            rc = shore__drive_remove(drive, overwritten->fleet_id, overwritten->generation, false, &why);
        if (rc == 0) continue;
        shore__note(note, ctx, "%.900s; the volume of the run that was overwritten stays there and is yours to remove",
                    why.text);
    }
}

static bool has_volume(const struct shore__run *run, const char *volume) {
    bool has = shore__addresses_have(&run->settings.drives, volume);
    for (size_t i = 0; !has && i < run->settings.drives.count; i++) {
        char *own = NULL;
        has = shore__volume_path(run->settings.drives.text[i], &own, NULL) == 0 && strcmp(own, volume) == 0;
        free(own);
    }
    return has;
}

void shore__making_settle(const struct shore__run *run, shore__note_fn note, void *ctx) {
    struct shore__draft draft;
    int rc = shore__draft_read(run->path, &draft, NULL);
    if (rc == 0 && shore__draft_refuse_copy(run->path, &draft, NULL)) { /* its volumes may be another directory's */
        shore__draft_free(&draft);
        return;
    }
    bool made = rc == 0 && memcmp(draft.fleet_id, run->fleet_id, sizeof draft.fleet_id) == 0, undone = true;
    if (made) {
        struct shore__run *overwritten = shore__run_overwritten(run->path);
        shore__run_drop(overwritten, note, ctx);
        shore__run_free(overwritten);
    }
    /* otherwise this run was about to be overwritten, and stays */
    for (size_t i = 0; rc == 0 && !made && i < draft.fresh.count; i++)
        if (!has_volume(run, draft.fresh.text[i]))
            undone = drop_volume(draft.fresh.item[i], draft.fleet_id, NULL) == 0 && undone;
    if (rc == SHORE_EMISSING || (rc == 0 && undone)) shore__making_remove(run->path);
    shore__draft_free(&draft);
}

static void forget_overwritten(const char *run_path, shore__note_fn note, void *ctx) {
    struct shore__run *overwritten = shore__run_overwritten(run_path);
    shore__run_forget(run_path, overwritten ? &overwritten->settings.drives : NULL, note, ctx);
    shore__run_free(overwritten);
}

int shore__making_finish(struct shore__run *run, const uint64_t fleet_id[2], shore__note_fn note, void *ctx,
                         struct shore_diag *diag) {
    memcpy(run->fleet_id, fleet_id, sizeof run->fleet_id);
    int rc = each_file(run, SYNC, diag);
    run->private->moving = true;
    if (rc == 0) rc = write_draft_of(run, diag);
    if (rc < 0) return rc;
    run->making = false; /* no way back from here: the marker stays until the end */
    rc = retire(run, diag);
    if (rc == 0) forget_overwritten(run->path, note, ctx);
    if (rc == 0) rc = each_file(run, MOVE, diag);
    if (rc == 0) rc = shore__directory_sync(run->path, diag);
    if (rc == 0) rc = shore__run_write(run, diag);
    if (rc == 0) shore__making_settle(run, note, ctx);
    if (rc == 0) shore__worker_sign(run);
    return rc;
}

/* ---- undoing ----------------------------------------------------------------------------------------------------- */

/* Puts back the run that was to be overwritten, if none of its volumes was touched. Returns whether RUN/making holds
 * nothing of it. */
static bool put_back(const struct shore__run *run) {
    struct shore__run *old = shore__run_overwritten(run->path);
    char *from = shore__path_join(run->path, MAKING "/run.json"), *to = shore__path_join(run->path, "run.json");
    bool none = from && access(from, F_OK) < 0, whole = old && to && !run->private->moving;
    for (size_t i = 0; whole && i < old->settings.drives.count; i++) {
        const struct shore__address *drive = old->settings.drives.item[i];
        whole = !drive->kind->keeps || shore__volume_is(drive, old->fleet_id, SHORE__OURS);
    }
    whole = whole && rename(from, to) == 0 && shore__directory_sync(run->path, NULL) == 0;
    shore__run_free(old);
    free(from);
    free(to);
    return none || whole;
}

int shore__run_recall(const char *path, struct shore_diag *diag) {
    struct shore__run *run = NULL;
    struct shore__draft draft = {0};
    int rc = shore__run_alloc(path, &run, diag);
    if (rc < 0) return rc;
    rc = shore__run_lock(run, diag); /* nobody else is replacing it */
    if (rc == 0) rc = shore__draft_read(path, &draft, diag);
    run->private->moving = draft.moving;
    if (rc == 0 && !put_back(run)) rc = shore__not_a_run(path, diag);
    shore__draft_free(&draft);
    shore__run_free(run);
    return rc;
}

void shore__run_undo(struct shore__run *run) {
    struct shore__run_private *p = run->private;
    bool undone = true;
    /* on network file systems, a file removed while open stays until it is closed, and keeps its directory */
    if (p->close_texts) p->close_texts(run);
    for (size_t i = 0; run->making && i < p->fresh.count; i++)
        undone = drop_volume(p->fresh.item[i], run->fleet_id, NULL) == 0 && undone;
    /* the draft stays, so that volumes out of reach, or of a replaced run, are not forgotten */
    if (run->making && put_back(run) && undone) shore__making_remove(run->path);
    for (size_t i = p->created.count; i > 0; i--)
        rmdir(p->created.item[i - 1]);
    run->making = false;
}

/* Bytes that a drive's volume takes in a file of this host; 0 if `drives` name the volume themselves. */
static uint64_t taken_by(const char *drive, const struct shore__addresses *drives) {
    struct stat st;
    char *volume = NULL;
    bool counts = shore__kind_of(drive)->has_file && shore__volume_path(drive, &volume, NULL) == 0 &&
                  !shore__addresses_have(drives, volume) && stat(volume, &st) == 0 && S_ISREG(st.st_mode);
    free(volume);
    return counts ? (uint64_t)st.st_blocks * 512 : 0;
}

uint64_t shore__making_holds(const char *run_path, const struct shore__addresses *drives) {
    struct shore__draft draft = {0};
    struct shore__run *run = shore__run_peek(run_path);
    uint64_t bytes = 0;
    if (!run) run = shore__run_overwritten(run_path);
    shore__draft_read(run_path, &draft, NULL);
    for (size_t i = 0; i < draft.fresh.count; i++)
        bytes += taken_by(draft.fresh.text[i], drives);
    for (size_t i = 0; run && i < run->settings.drives.count; i++)
        if (!shore__addresses_have(&draft.fresh, run->settings.drives.text[i]))
            bytes += taken_by(run->settings.drives.text[i], drives);
    shore__draft_free(&draft);
    shore__run_free(run);
    return bytes;
}
