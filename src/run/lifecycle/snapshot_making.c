/* Makes named copies of a run's committed state. The drives copy their volumes. The run directory says which copies
 * belong together, and keeps its own files of that step. NAME.json is written last. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"
#include "drive/counters.h"
#include "drive/fleet/fleet_snapshot.h"
#include "files/json.h"
#include "run/directory/journal.h"
#include "run/lifecycle/copy.h"
#include "run/lifecycle/snapshots.h"
#include "run/lifecycle/volumes.h"
#include "run/paths.h"
#include "run/standing.h"

/* Runs before a list names the file: the files in a list are removed with an unfinished snapshot. */
static int check_free(const struct shore__address *part, struct shore_diag *diag) {
    struct shore__spot spot;
    int rc = shore__spot_of(part, &spot, diag);
    if (rc == -ENOENT) return 0; /* not on this host */
    if (rc == 0 && spot.exists)
        rc = shore__fail(diag, SHORE_EEXISTS,
                         "%s: is there already, of a snapshot that this run does not know: choose another name, or "
                         "remove the file if nothing needs it",
                         part->text);
    free(spot.volume);
    return rc;
}

/* Fleet and files of a snapshot to be made. */
static int plan(struct shore_fleet *fleet, const char *name, struct shore__journal *out, struct shore_diag *diag) {
    int rc = 0;
    const struct shore_fleet_info info = shore__fleet_info(fleet);
    *out = (struct shore__journal){.fleet_id = {info.fleet_id[0], info.fleet_id[1]}, .from = info.generation};
    for (uint32_t d = 0; rc == 0 && d < info.ndrives; d++) {
        struct shore__address *drive = NULL, *part = NULL;
        struct shore__spot spot = {0};
        rc = shore__address_parse(shore_fleet_drive_path(fleet, d), &drive, diag);
        if (rc == 0) rc = shore__spot_of(drive, &spot, diag);
        if (rc == -ENOENT && (spot.volume = shore__address_copy(drive))) rc = 0; /* another process's, elsewhere */
        char *path = rc == 0 ? shore__snapshot_path(spot.volume->text, name) : NULL;
        if (rc == 0) rc = path ? shore__address_parse(path, &part, diag) : shore__out_of_memory(diag);
        if (rc == 0 && !spot.is_device) /* a device says itself that it has no room */
            rc = check_free(part, diag);
        if (part && shore__addresses_add(&out->new, part)) rc = shore__out_of_memory(diag);
        free(drive);
        free(path);
        free(spot.volume);
    }
    return rc;
}

static json_t *describe(const struct shore__run *run, struct shore_fleet *fleet, const struct shore__snapshot *s,
                        const struct shore__journal *plan) {
    char id[33], date[32];
    time_t now = time(NULL);
    struct tm utc;
    const struct shore_fleet_info info = shore__fleet_info(fleet);
    shore__fleet_id_text(info.fleet_id, id);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *j = json_pack("{s:s, s:I, s:s, s:b, s:s, s:s, s:I, s:o, s:s, s:o, s:O}", "name", s->name, "step",
                          (json_int_t)info.step, "date", date, "automatic", s->automatic, "digest", s->digest, "fleet",
                          id, "generation", (json_int_t)info.generation, "volumes",
                          shore__texts_to_json(plan->new.text, plan->new.count), "processor", run->processor,
                          "settings", shore__run_settings_json(run), "changes", run->changes);
    if (!isnan(s->val_loss))
        json_object_update_new(j, json_pack("{s:f, s:s}", "val_loss", s->val_loss, "files", s->files));
    if (run->contents) json_object_set(j, "program", run->contents->program);
    return j;
}

static int make_folder(const char *path, struct shore_diag *diag) {
    if (mkdir(path, 0777) < 0 && errno != EEXIST) return shore__fail_errno(diag, path, "the directory cannot be made");
    return shore__parent_sync(path, diag);
}

/* Writes the description, once all copies are there. */
static int describe_made(const struct shore__run *run, struct shore_fleet *fleet, const struct shore__snapshot *s,
                         struct shore_diag *diag) {
    const struct shore__path files = shore__snapshot_files(run->path, s->files);
    char file[128];
    struct shore__journal plan;
    int rc = make_folder(files.text, diag);
    if (rc == 0) rc = shore__files_copy(run->path, files.text, diag);
    if (rc == 0) rc = shore__journal_read(run->path, SHORE__SNAPSHOT, s->files, &plan, diag);
    if (rc) return rc;
    json_t *j = describe(run, fleet, s, &plan);
    shore__journal_free(&plan);
    snprintf(file, sizeof file, "snapshots/%s.json", s->name);
    return j ? shore__json_write_in(run->path, file, j, diag) : shore__out_of_memory(diag);
}

int shore__snapshot_begin(struct shore__run *run, struct shore_fleet *fleet, const char *name,
                          struct shore_diag *diag) {
    char *of = NULL;
    const struct shore__shown shown = shore__shown(name);
    if (!shore__snapshot_name_valid(name))
        return shore__fail(
            diag, SHORE_EUSAGE,
            "a snapshot cannot be called %s: its name has at most %u letters, digits, '.', '_' and '-', begins "
            "with a letter, a digit or '_', and does not end in .partial",
            shown.text, SHORE__SNAPSHOT_NAME_BYTES);
    if (shore__snapshot_is_made(run->path, name)) {
        if (asprintf(&of, "%s %s", run->path, name) < 0) of = NULL;
        shore__fail(diag, SHORE_EEXISTS,
                    "there is a snapshot %s of this run already: choose another name, or remove it first", shown.text);
        shore__advise(diag, SHORE_EEXISTS, SHORE_ADVICE_REMOVE_SNAPSHOT, of);
        free(of);
        return SHORE_EEXISTS;
    }
    if (shore__journal_is_there(run->path, SHORE__SNAPSHOT,
                                name)) { /* files that could not go when the run was opened may go now */
        struct shore__parts parts = {.drives = &run->settings.drives};
        int failed = shore__snapshot_mend(run->path, name, &parts, NULL, NULL, diag);
        free(parts.away);
        if (failed) return failed;
    }
    if (shore__journal_is_there(run->path, SHORE__SNAPSHOT, name))
        return shore__fail(
            diag, SHORE_EEXISTS,
            "a part of an earlier snapshot %s is still to be removed, on a drive out of reach or in use: "
            "choose another name",
            shown.text);
    const struct shore__path folder = shore__path_in(run->path, "snapshots");
    struct shore__journal journal;
    int rc = plan(fleet, name, &journal, diag);
    if (rc == 0) rc = make_folder(folder.text, diag);
    if (rc == 0) {
        rc = shore__journal_write(run->path, SHORE__SNAPSHOT, name, &journal, diag);
        if (rc < 0) rmdir(folder.text); /* stays if it holds others */
    }
    shore__journal_free(&journal);
    return rc;
}

void shore__snapshot_give_up(const struct shore__run *run, const char *name) {
    struct shore_diag ignored;
    struct shore__parts parts = {0};
    bool left = false;
    shore__snapshot_clear(run->path, name, &parts, &left, NULL, NULL, &ignored);
    free(parts.away);
    /* the first snapshot made it */
    if (rmdir(shore__path_in(run->path, "snapshots").text) == 0) shore__directory_sync(run->path, &ignored);
}

int shore__snapshot_finish(struct shore__run *run, struct shore_fleet *fleet, const char *name, bool automatic,
                           const char digest[33], struct shore_diag *diag) {
    struct shore__snapshot s = {.automatic = automatic, .val_loss = NAN};
    snprintf(s.name, sizeof s.name, "%s", name);
    snprintf(s.files, sizeof s.files, "%s", name);
    snprintf(s.digest, sizeof s.digest, "%s", digest);
    int rc = describe_made(run, fleet, &s, diag);
    if (rc == 0) return shore__journal_clear(run->path, SHORE__SNAPSHOT, name, diag);
    shore__snapshot_give_up(run, name);
    return rc;
}

int shore__snapshot_make(struct shore__run *run, struct shore_fleet *fleet, const char *name, bool automatic,
                         struct shore_diag *diag) {
    char digest[33];
    int rc = shore__snapshot_begin(run, fleet, name, diag);
    if (rc) return rc;
    rc = shore__fleet_snapshot(fleet, name, diag);
    if (rc == 0) rc = shore__digest_text(fleet, digest, diag);
    if (rc == 0) return shore__snapshot_finish(run, fleet, name, automatic, digest, diag);
    shore__snapshot_give_up(run, name);
    return rc;
}

/* ---- automatic ones ---------------------------------------------------------------------------------------------- */

void shore__snapshot_name_of_step(uint64_t step, char name[32]) {
    snprintf(name, 32, "step-%06" PRIu64, step);
}

bool shore__snapshot_of_step(const struct shore__run *run, uint64_t step) {
    char name[32];
    shore__snapshot_name_of_step(step, name);
    return shore__snapshot_is_made(run->path, name);
}

int shore__snapshot_replace(struct shore__run *run, const char *name, shore__note_fn note, void *ctx,
                            struct shore_diag *diag) {
    struct shore__snapshot there;
    if (!shore__snapshot_is_made(run->path, name)) return 0;
    int rc = shore__snapshot_read(run->path, name, &there, diag);
    if (rc < 0) return rc;
    bool replace = there.automatic && shore__run_standing(run) < SHORE__RUN_ELSEWHERE;
    shore__snapshot_free(&there);
    return replace ? shore__snapshot_remove(run->path, name, &run->settings.drives, note, ctx, diag) : 1;
}

int shore__snapshots_prune(const struct shore__run *run, uint64_t keep, shore__note_fn note, void *ctx,
                           struct shore_diag *diag) {
    struct shore__snapshot *list = NULL;
    size_t count = 0, automatic = 0;
    int rc = shore__snapshots_read(run->path, &list, &count, diag);
    if (rc < 0) return rc;
    if (!keep || shore__run_standing(run) >= SHORE__RUN_ELSEWHERE) keep = UINT64_MAX; /* of a copy: another one's */
    for (size_t i = 0; i < count; i++)
        automatic += list[i].automatic;
    for (size_t i = 0; rc == 0 && i < count && automatic > keep; i++) {
        if (!list[i].automatic) continue;
        rc = shore__snapshot_remove(run->path, list[i].name, &run->settings.drives, note, ctx, diag);
        automatic--;
    }
    shore__snapshots_free(list, count);
    return rc;
}

int shore__snapshot_automatic(struct shore__run *run, struct shore_fleet *fleet, uint64_t keep, shore__note_fn note,
                              void *ctx, struct shore_diag *diag) {
    char name[32];
    shore__snapshot_name_of_step(shore__fleet_info(fleet).step, name);
    int rc = shore__snapshot_replace(run, name, note, ctx, diag);
    if (rc) return rc > 0 ? 0 : rc;
    rc = shore__snapshot_make(run, fleet, name, true, diag);
    return rc ? rc : shore__snapshots_prune(run, keep, note, ctx, diag);
}

/* ---- the best ---------------------------------------------------------------------------------------------------- */

static int read_best(const struct shore__run *run, struct shore__snapshot *out, struct shore_diag *diag) {
    char *of = NULL;
    *out = (struct shore__snapshot){.val_loss = INFINITY};
    if (!shore__snapshot_is_made(run->path, SHORE__BEST)) return 0;
    int rc = shore__snapshot_read(run->path, SHORE__BEST, out, diag);
    if (rc || !isnan(out->val_loss)) return rc;
    shore__snapshot_free(out);
    shore__fail(diag, SHORE_EEXISTS,
                "there is a snapshot " SHORE__BEST " of this run that was made by hand: it stays, "
                "so that the best state cannot be kept; remove it first");
    if (asprintf(&of, "%s " SHORE__BEST, run->path) < 0) of = NULL;
    shore__advise(diag, SHORE_EEXISTS, SHORE_ADVICE_REMOVE_SNAPSHOT, of);
    free(of);
    return SHORE_EEXISTS;
}

int shore__snapshot_best_loss(const struct shore__run *run, double *loss, struct shore_diag *diag) {
    struct shore__snapshot best;
    int rc = read_best(run, &best, diag);
    *loss = best.step > run->val_from ? best.val_loss : INFINITY;
    shore__snapshot_free(&best);
    return rc;
}

/* Both lie on the drives until best.json, which is replaced in one step, says which it is. The other one is listed by
 * then, and goes. */
static int put_best(struct shore__run *run, struct shore_fleet *fleet, const struct shore__snapshot *old,
                    struct shore__snapshot *new, struct shore_diag *diag) {
    const struct shore__journal going = {
        .fleet_id = {old->fleet_id[0], old->fleet_id[1]}, .from = old->generation, .new = old->volumes};
    int rc = shore__fleet_snapshot(fleet, new->files, diag);
    if (rc == 0) rc = shore__digest_text(fleet, new->digest, diag);
    if (rc == 0 && old->json) rc = shore__journal_write(run->path, SHORE__SNAPSHOT, old->files, &going, diag);
    return rc ? rc : describe_made(run, fleet, new, diag);
}

int shore__snapshot_best(struct shore__run *run, struct shore_fleet *fleet, double val_loss, shore__note_fn note,
                         void *ctx, struct shore_diag *diag) {
    struct shore__parts parts = {.drives = &run->settings.drives};
    struct shore__snapshot old, new = {.name = SHORE__BEST, .val_loss = val_loss};
    struct shore_diag why;
    int rc = read_best(run, &old, diag);
    if (rc == 0) rc = shore__run_refuse_copy(run, SHORE__RUN_ELSEWHERE, diag);
    snprintf(new.files, sizeof new.files, SHORE__BEST "-%d", strcmp(old.files, SHORE__BEST "-1") == 0 ? 2 : 1);
    if (rc == 0) rc = shore__snapshot_begin(run, fleet, new.files, diag);
    if (rc == 0) {
        rc = put_best(run, fleet, &old, &new, diag);
        const char *files[] = {new.files, old.files};
        for (int i = 0; i < 2; i++) /* as after a kill */
            if (files[i][0] && shore__journal_is_there(run->path, SHORE__SNAPSHOT, files[i]) &&
                shore__snapshot_mend(run->path, files[i], &parts, note, ctx, &why))
                shore__note(note, ctx, "%s", why.text);
    }
    free(parts.away);
    shore__snapshot_free(&old);
    return rc;
}
