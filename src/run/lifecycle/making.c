/* A run that is being made. RUN/making is both marker and workplace. Its files replace those in RUN only when
 * everything else is in place, so a killed making can be told from a run.
 *
 * An overwritten run stays whole until then: the new volumes lie beside its own. RUN/making/made.json is the new
 * run.json, and comes last; then the old run.json moves into RUN/making, which ends the old run. From there on whoever
 * opens RUN finishes the rest. Where there is no room for both, the old run.json moves there before the first of its
 * volumes goes (overwriting.c). It goes back only if none of them was touched. */
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
#include "run/lifecycle/making.h"
#include "run/lifecycle/mend.h"
#include "run/lifecycle/places.h"
#include "run/lifecycle/volumes.h"
#include "run/paths.h"

#define MAKING "making"
#define JOURNAL "plan.json"
/* run.json of the new run, before and after the old run's files have gone */
#define MADE "made.json"
#define PLACED "placed.json"

/* ---- the journal ------------------------------------------------------------------------------------------------- */

static int write_journal(struct shore__run *run, struct shore_diag *diag) {
    const struct shore__journal journal = {
        .fleet_id = {run->fleet_id[0], run->fleet_id[1]},
        .to = run->generation,
        .new = run->private->fresh,
        .drives = run->settings.drives,
        .maker = run->contents ? (char *)(uintptr_t)shore__contents_maker(run->contents) : NULL,
    };
    return shore__journal_write(run->path, SHORE__MAKING, NULL, &journal, diag);
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

/* Patterns of the files that RUN/making may hold. */
static const char *const names_in_making[] = {SHORE__RUN_FILES,
                                              "run.json",
                                              JOURNAL,
                                              MADE,
                                              PLACED,
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
            rc = shore__fail_errno(diag, path, "the directory cannot be made");
        if (at) *at = '/';
    }
    free(path);
    return rc;
}

/* Refuses snapshots and foreign files in the way, if no journal explains them: before it is written, or half undone. */
static int refuse_strangers(const struct shore__run *run, struct shore_diag *diag) {
    if (shore__path_exists(run->path, MAKING "/" JOURNAL)) return 0;
    if (!shore__is_run(run->path) && shore__path_exists(run->path, "snapshots"))
        return shore__fail(diag, SHORE_EEXISTS,
                           "%s: holds snapshots of a run that was removed; choose another directory", run->path);
    char *stranger = shore__directory_stranger(shore__path_in(run->path, MAKING).text, names_in_making);
    int rc = stranger ? shore__fail(diag, SHORE_EEXISTS,
                                    "%s: is in the way of a run being made there; move it, or choose another directory",
                                    stranger)
                      : 0;
    free(stranger);
    return rc;
}

/* Whether a new run was made whole there, and only has to take its place. */
static bool is_made(const char *run_path) {
    return !shore__is_run(run_path) &&
           (shore__path_exists(run_path, MAKING "/" MADE) || shore__path_exists(run_path, MAKING "/" PLACED));
}

static int refuse_what_is_there(struct shore__run *run, bool overwrite, struct shore_diag *diag) {
    if (overwrite) return 0;
    if (shore__is_run(run->path) || is_made(run->path))
        return shore__advise(diag, shore__fail(diag, SHORE_EEXISTS, "%s: holds a run", run->path), SHORE_ADVICE_GO_ON,
                             run->word);
    if (shore__path_exists(run->path, MAKING)) return 0;
    const char *there = shore__path_exists(run->path, SHORE__RUN_PLAN) ? SHORE__RUN_PLAN : NULL;
    for (const char *const *name = shore__run_files; *name && !there; name++)
        if (shore__path_exists(run->path, *name)) there = *name;
    if (!there) return 0;
    shore__fail(diag, SHORE_EEXISTS, "%s: holds %s, which a run would replace; choose another directory", run->path,
                there);
    return shore__advise(diag, SHORE_EEXISTS, SHORE_ADVICE_OVERWRITE, NULL);
}

/* The plan of an overwritten run is not the new one's. */
static int clear_plan(const char *run_path, struct shore_diag *diag) {
    const struct shore__path plan = shore__path_in(run_path, SHORE__RUN_PLAN);
    return shore__atomic_remove(plan.text) && errno != ENOENT ? shore__fail_errno(diag, plan.text, "cannot be removed")
                                                              : 0;
}

enum what { DROP, SYNC, CLEAR, MOVE };

/* Drops, syncs or moves into place each file of the run in RUN/making, or clears RUN of those that it lacks. */
static int each_file(struct shore__run *run, enum what what, struct shore_diag *diag) {
    int rc = what == CLEAR ? clear_plan(run->path, diag) : 0;
    for (const char *const *name = shore__run_files; *name && rc == 0; name++) {
        const struct shore__path place = shore__path_in(run->path, *name), making = shore__path_in(run->path, MAKING);
        const struct shore__path new = shore__path_in(making.text, *name);
        const char *to = place.text, *from = new.text;
        if (what == DROP) {
            unlink(from);
        } else if (what == SYNC) {
            struct stat st;
            if (stat(from, &st) == 0) rc = shore__file_sync(from, diag);
        } else if (what == CLEAR) {
            if (access(from, F_OK) && unlink(to) && errno != ENOENT)
                rc = shore__fail_errno(diag, to, "cannot be removed");
        } else if (rename(from, to) < 0 && errno != ENOENT) {
            rc = shore__fail_errno(diag, from, "cannot be moved into the run");
        }
    }
    return rc;
}

struct shore__run *shore__run_overwritten(const char *run_path) {
    return shore__run_peek(shore__path_in(run_path, MAKING).text);
}

struct shore__run *shore__run_before(const char *run_path) {
    struct shore__run *whole = shore__run_peek(run_path);
    return whole ? whole : shore__run_overwritten(run_path);
}

/* ---- taking the place -------------------------------------------------------------------------------------------- */

int shore__making_retire(const struct shore__run *run, struct shore_diag *diag) {
    const struct shore__path from = shore__path_in(run->path, "run.json");
    if (rename(from.text, shore__path_in(run->path, MAKING "/run.json").text) == 0 || errno == ENOENT) return 0;
    return shore__fail_errno(diag, from.text, "cannot be replaced");
}

static int sync_both(const struct shore__run *run, struct shore_diag *diag) {
    int rc = shore__directory_sync(shore__path_in(run->path, MAKING).text, diag);
    return rc ? rc : shore__directory_sync(run->path, diag);
}

static void forget_overwritten(const char *run_path, shore__note_fn note, void *ctx) {
    struct shore__run *overwritten = shore__run_overwritten(run_path);
    shore__run_forget(run_path, overwritten ? &overwritten->settings.drives : NULL, note, ctx);
    shore__run_free(overwritten);
}

static int rename_in(const struct shore__run *run, const char *name, const char *new_name, struct shore_diag *diag) {
    const struct shore__path from = shore__path_in(run->path, name), to = shore__path_in(run->path, new_name);
    int rc = sync_both(run, diag);
    if (rc == 0 && rename(from.text, to.text) < 0)
        rc = shore__fail(diag, -errno, "%s: cannot become %s: %s", from.text, to.text, strerror(errno));
    return rc ? rc : sync_both(run, diag);
}

/* Puts the new run into the place of what stood there. It may be done again from the start, wherever it was stopped: a
 * file that is missing in RUN/making is one that the new run lacks as long as none has moved. */
static int take_place(struct shore__run *run, shore__note_fn note, void *ctx, struct shore_diag *diag) {
    int rc = sync_both(run, diag);
    if (rc == 0 && shore__path_exists(run->path, MAKING "/" MADE)) {
        forget_overwritten(run->path, note, ctx);
        rc = each_file(run, CLEAR, diag);
        if (rc == 0) rc = rename_in(run, MAKING "/" MADE, MAKING "/" PLACED, diag);
    }
    if (rc == 0) rc = each_file(run, MOVE, diag);
    return rc ? rc : rename_in(run, MAKING "/" PLACED, "run.json", diag);
}

/* The same after a kill, unless the directory is a copy: the volumes are then another one's. */
static int take_place_again(struct shore__run *run, struct shore_diag *diag) {
    struct shore__journal journal = {0};
    int rc = shore__journal_read(run->path, SHORE__MAKING, NULL, &journal, diag);
    if (rc == SHORE_EMISSING) rc = shore__not_a_run(run->path, diag);
    if (rc == 0) rc = shore__making_refuse_copy(run->path, &journal, diag);
    if (rc == 0) rc = take_place(run, shore__run_remember, run, diag);
    shore__journal_free(&journal);
    return rc;
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

/* Removes the volumes that an earlier making began where this process has no drive. */
static int drop_others(const struct shore__run *run, const struct shore__journal *before, struct shore_diag *diag) {
    const struct shore__addresses *drives = &run->settings.drives;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < before->new.count; i++) {
        bool own = shore__addresses_have(&run->private->fresh, before->new.text[i]);
        for (size_t k = 0; own && run->mine && k < drives->count; k++)
            own = run->mine[k] || strcmp(drives->text[k], before->new.text[i]) != 0;
        if (!own) rc = drop_volume(before->new.item[i], before->fleet_id, diag);
    }
    return rc;
}

static int begin(struct shore__run *run, bool overwrite, struct shore_diag *diag) {
    struct shore__journal before = {0};
    int rc = is_made(run->path) ? take_place_again(run, diag) : 0;
    if (rc == 0) rc = refuse_strangers(run, diag);
    if (rc == 0) rc = refuse_what_is_there(run, overwrite, diag);
    if (rc < 0) return rc;
    struct shore__run *overwritten = NULL;
    rc = open_overwritten(run, &overwritten, diag);
    if (rc < 0) return rc;
    const struct shore__path making = shore__path_in(run->path, MAKING);
    rc = shore__journal_read(run->path, SHORE__MAKING, NULL, &before, diag);
    if (rc == SHORE_EMISSING) {
        rc = getrandom(before.fleet_id, sizeof before.fleet_id, 0) == (ssize_t)sizeof before.fleet_id
                 ? 0
                 : shore__fail(diag, -errno, "no random numbers: %s", strerror(errno));
        if (rc == 0 && mkdir(making.text, 0777) < 0 && errno != EEXIST)
            rc = shore__fail_errno(diag, making.text, "the directory cannot be made");
    } else if (rc == 0) {
        rc = shore__making_refuse_copy(run->path, &before, diag);
    }
    if (rc == 0) {
        run->making = true;
        memcpy(run->fleet_id, before.fleet_id, sizeof run->fleet_id);
        rc = shore__making_place(run, &before, overwritten, diag);
    }
    if (rc == 0) rc = drop_others(run, &before, diag);
    if (rc < 0 && run->making)
        shore__addresses_copy(&before.new, &run->private->fresh); /* undoing this making removes those, too */
    if (rc == 0) rc = each_file(run, DROP, diag);
    if (rc == 0) rc = write_journal(run, diag);
    if (rc == 0) rc = shore__directory_sync(run->path, diag);
    if (rc == 0 && run->mine) shore__worker_sign(run); /* for those who join it */
    shore__journal_free(&before);
    shore__run_free(overwritten);
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
    struct shore__journal before = {0};
    bool there;
    int rc = check_directory(run, &there, diag);
    if (rc == 0 && there && !run->joins) rc = shore__run_lock(run, diag);
    if (rc == 0) rc = refuse_strangers(run, diag);
    if (rc == 0) rc = refuse_what_is_there(run, overwrite, diag);
    if (rc < 0) return rc;
    struct shore__run *whole = shore__run_peek(run->path);
    struct shore__run *overwritten = whole ? whole : shore__run_overwritten(run->path);
    if (whole && !not_a_copy) rc = shore__run_refuse_copy(whole, SHORE__RUN_PUT_BACK, diag);
    if (rc == 0) rc = shore__journal_read(run->path, SHORE__MAKING, NULL, &before, diag);
    if (rc == 0 && !not_a_copy) rc = shore__making_refuse_copy(run->path, &before, diag);
    if (rc == SHORE_EMISSING) rc = 0;
    memcpy(run->fleet_id, before.fleet_id, sizeof run->fleet_id);
    run->private->home = strdup(run->path);
    if (rc == 0 && !run->private->home) rc = shore__out_of_memory(diag);
    if (rc == 0) rc = shore__making_place(run, &before, overwritten, diag);
    shore__journal_free(&before);
    shore__run_free(overwritten);
    return rc;
}

/* ---- finishing --------------------------------------------------------------------------------------------------- */

/* Removes the journal last: without it nobody would know the rest. */
void shore__making_remove(const char *run_path) {
    const struct shore__path making = shore__path_in(run_path, MAKING);
    for (const char *const *name = shore__run_files; *name; name++)
        shore__remove_in(making.text, *name);
    shore__remove_in(making.text, MADE);
    shore__remove_in(making.text, "run.json");
    shore__directory_remove(making.text, names_in_making);
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
        has = shore__volume_path(run->settings.drives.item[i]->path, &own, NULL) == 0 &&
              strcmp(own, shore__address_file(volume)) == 0;
        free(own);
    }
    return has;
}

void shore__making_settle(const struct shore__run *run, shore__note_fn note, void *ctx) {
    struct shore__journal journal;
    int rc = shore__journal_read(run->path, SHORE__MAKING, NULL, &journal, NULL);
    if (rc == 0 && shore__making_refuse_copy(run->path, &journal, NULL)) { /* its volumes may be another directory's */
        shore__journal_free(&journal);
        return;
    }
    bool made = rc == 0 && memcmp(journal.fleet_id, run->fleet_id, sizeof journal.fleet_id) == 0, undone = true;
    if (made) {
        struct shore__run *overwritten = shore__run_overwritten(run->path);
        if (!overwritten && shore__path_exists(run->path, MAKING "/run.json"))
            shore__note(note, ctx,
                        "%s/" MAKING "/run.json cannot be read: the volumes of the run that was overwritten stay, and "
                        "are yours to remove",
                        run->path);
        shore__run_drop(overwritten, note, ctx);
        shore__run_free(overwritten);
    }
    /* otherwise this run was about to be overwritten, and stays */
    if (rc == 0 && !made) shore__remove_in(run->path, MAKING "/" MADE);
    for (size_t i = 0; rc == 0 && !made && i < journal.new.count; i++)
        if (!has_volume(run, journal.new.text[i]))
            undone = drop_volume(journal.new.item[i], journal.fleet_id, NULL) == 0 && undone;
    if (rc == SHORE_EMISSING || (rc == 0 && undone)) shore__making_remove(run->path);
    shore__journal_free(&journal);
}

int shore__making_finish(struct shore__run *run, const uint64_t fleet_id[2], shore__note_fn note, void *ctx,
                         struct shore_diag *diag) {
    memcpy(run->fleet_id, fleet_id, sizeof run->fleet_id);
    int rc = each_file(run, SYNC, diag);
    if (rc == 0) rc = shore__origin_take(run->path, &run->private->origin, diag);
    if (rc == 0) rc = shore__run_put(run, MAKING "/" MADE, diag);
    if (rc == 0) rc = shore__making_retire(run, diag);
    if (rc < 0) {
        shore__remove_in(run->path, MAKING "/" MADE);
        return rc;
    }
    run->making = false; /* no way back from here */
    rc = take_place(run, note, ctx, diag);
    if (rc == 0) shore__making_settle(run, note, ctx);
    if (rc == 0) shore__worker_sign(run);
    return rc;
}

/* ---- undoing ----------------------------------------------------------------------------------------------------- */

/* Puts back the run that was to go first, if none of its volumes was touched. Returns whether RUN/making holds nothing
 * of it. */
static bool put_back(const struct shore__run *run) {
    struct shore__run *old = shore__run_overwritten(run->path);
    const struct shore__path from = shore__path_in(run->path, MAKING "/run.json");
    bool none = access(from.text, F_OK) < 0, whole = old;
    for (size_t i = 0; whole && i < old->settings.drives.count; i++) {
        const struct shore__address *drive = old->settings.drives.item[i];
        whole = !drive->kind->keeps || shore__volume_is(drive, old->fleet_id, SHORE__OURS);
    }
    whole = whole && rename(from.text, shore__path_in(run->path, "run.json").text) == 0 &&
            shore__directory_sync(run->path, NULL) == 0;
    shore__run_free(old);
    return none || whole;
}

int shore__run_recall(const char *path, struct shore_diag *diag) {
    struct shore__run *run = NULL;
    int rc = shore__run_alloc(path, &run, diag);
    if (rc < 0) return rc;
    rc = shore__run_lock(run, diag); /* nobody else is replacing it */
    if (rc == 0 && is_made(path))
        rc = take_place_again(run, diag);
    else if (rc == 0 && !shore__is_run(path) && !put_back(run))
        rc = shore__not_a_run(path, diag);
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
    /* the journal stays, so that volumes out of reach, or of a replaced run, are not forgotten */
    if (run->making && !run->joins) shore__worker_leave(run);
    if (run->making && !run->joins && put_back(run) && undone) shore__making_remove(run->path);
    for (size_t i = p->created.count; i > 0; i--)
        rmdir(p->created.item[i - 1]);
    run->making = false;
}
