/* Goes back to a snapshot: copies its state into the uncommitted slots, and commits it under its own step.
 * RUN/rollback.json is there from before the first record changes until everything after the state is restored. Until
 * the commit, every drive still holds the step from before, so an interrupted rollback starts again from there. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "drive/counters.h"
#include "drive/fleet/fleet.h"
#include "files/atomic.h"
#include "run/directory/journal.h"
#include "run/internal.h"
#include "run/lifecycle/copy.h"
#include "run/lifecycle/mend.h"
#include "run/lifecycle/snapshots.h"
#include "run/lifecycle/volumes.h"
#include "run/paths.h"

/* ---- the state --------------------------------------------------------------------------------------------------- */

static bool is_there(const struct shore__address *volume, struct shore_diag *why) {
    struct shore__spot spot;
    bool there = shore__spot_of(volume, &spot, why) == 0 && spot.exists;
    free(spot.volume);
    return there;
}

static struct shore__address *find_beside(const struct shore__run *run, const struct shore__snapshot *s, size_t i) {
    for (size_t d = 0; d < run->settings.drives.count; d++) {
        struct shore__spot spot;
        struct shore__address *found = shore__spot_of(run->settings.drives.item[d], &spot, NULL)
                                           ? NULL
                                           : shore__part_beside(spot.volume, s->volumes.item[i]);
        free(spot.volume);
        if (found && shore__snapshot_part_is_at(s, i, found)) return found;
        free(found);
    }
    return NULL;
}

static int find_volumes(const struct shore__run *run, const struct shore__snapshot *s, struct shore__addresses *out,
                        struct shore_diag *diag) {
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < s->volumes.count; i++) {
        const struct shore__address *part = s->volumes.item[i];
        struct shore_diag why = {0};
        struct shore__address *found = is_there(part, &why) ? shore__address_copy(part) : find_beside(run, s, i);
        if (!found && part->kind->away && *why.text)
            rc = shore__fail(diag, SHORE_ELINK, "a part of snapshot %s is out of reach: %.900s", s->name, why.text);
        else if (!found)
            rc = shore__fail(diag, SHORE_EMISSING, "%s is missing: a part of snapshot %s", part->text, s->name);
        else if (shore__addresses_add(out, found))
            rc = shore__out_of_memory(diag);
    }
    return rc;
}

static int check_digest(struct shore_fleet *fleet, const struct shore__snapshot *s, const char *what,
                        struct shore_diag *diag) {
    char digest[33];
    int rc = shore__digest_text(fleet, digest, diag);
    if (rc == 0 && strcmp(digest, s->digest) != 0)
        rc = shore__fail(diag, SHORE_ECORRUPT, "%s of snapshot %s has digest %s, not %s: it is damaged", what, s->name,
                         digest, s->digest);
    return rc;
}

static int open_snapshot(const struct shore__run *run, const struct shore__snapshot *s,
                         const struct shore__addresses *volumes, struct shore_fleet **out, struct shore_diag *diag) {
    struct shore_fleet_options options;
    if (memcmp(s->fleet_id, run->fleet_id, sizeof s->fleet_id) != 0)
        return shore__fail(diag, SHORE_EMISMATCH, "snapshot %s is of another run than %s", s->name, run->path);
    shore__run_fleet(run, volumes, s->generation, &options);
    options.read_only = true;
    int rc = shore_fleet_open(run->layout, &options, out, diag);
    return rc ? rc : check_digest(*out, s, "the state", diag);
}

static int open_present(const struct shore__run *run, const struct shore__journal *in, shore__note_fn note,
                        void *note_ctx, struct shore_fleet **out, struct shore_diag *diag) {
    struct shore_fleet_options options;
    int rc = shore__run_refuse_memory(run, diag);
    if (rc) return rc;
    shore__run_fleet(run, &run->settings.drives, run->generation, &options);
    options.hint_step = run->hint_step;
    options.restoring = in->snapshot != NULL;
    options.restore_step = in->from;
    options.note = note;
    options.note_ctx = note_ctx;
    return shore_fleet_open(run->layout, &options, out, diag);
}

static int put_back(struct shore__run *run, const struct shore__snapshot *s, struct shore__journal *in,
                    shore__note_fn note, void *note_ctx, shore__progress_fn progress, void *ctx,
                    struct shore_diag *diag) {
    struct shore_fleet *snapshot = NULL, *fleet = NULL;
    struct shore__addresses volumes = {0};
    struct shore_fleet_options options;
    const bool went_on = in->snapshot;
    int rc = find_volumes(run, s, &volumes, diag);
    if (rc == 0) rc = open_snapshot(run, s, &volumes, &snapshot, diag);
    if (rc == 0) rc = open_present(run, in, note, note_ctx, &fleet, diag);
    if (rc == 0) {
        run->begun = true; /* its drives have a new epoch */
        in->from = shore__fleet_info(fleet).step;
        free(in->snapshot);
        in->snapshot = strdup(s->name);
        rc = !in->snapshot ? shore__out_of_memory(diag)
                           : shore__journal_write(run->path, SHORE__ROLLING_BACK, NULL, in, diag);
    }
    shore__run_fleet(run, &run->settings.drives, run->generation, &options);
    if (rc == 0)
        rc =
            shore__fleet_copy(snapshot, fleet, run->layout, in->from, options.chunk_segments == 1, progress, ctx, diag);
    /* nothing is committed yet: a first try that ends here leaves the run where it was */
    if (rc && !went_on) shore__journal_clear(run->path, SHORE__ROLLING_BACK, NULL, NULL);
    if (rc == 0) rc = shore__fleet_commit_like(fleet, snapshot, s->step, SHORE_COMMIT_RESTORED, diag);
    if (rc == 0) rc = check_digest(fleet, s, "what was put back", diag);
    shore_fleet_close(fleet);
    shore_fleet_close(snapshot);
    shore__addresses_free(&volumes);
    if (rc == 0) {
        in->committed = true;
        rc = shore__journal_write(run->path, SHORE__ROLLING_BACK, NULL, in, diag);
    }
    return rc;
}

/* ---- what follows the state -------------------------------------------------------------------------------------- */

static int restore_program(struct shore__run *run, const struct shore__snapshot *s, struct shore_diag *diag) {
    const json_t *program = json_object_get(s->json, "program");
    char *text = program ? json_dumps(program, JSON_COMPACT) : NULL;
    int rc = shore__contents_take_program(run->contents, text, diag);
    free(text);
    return rc;
}

int shore__snapshot_open(struct shore__run *run, const char *name, struct shore_fleet **out, struct shore_diag *diag) {
    struct shore__snapshot s = {.step = 0};
    struct shore__addresses volumes = {0};
    int rc = shore__snapshot_read(run->path, name, &s, diag);
    if (rc) return rc;
    rc = find_volumes(run, &s, &volumes, diag);
    if (rc == 0) rc = open_snapshot(run, &s, &volumes, out, diag);
    if (rc == 0 && run->contents) rc = restore_program(run, &s, diag);
    shore__addresses_free(&volumes);
    shore__snapshot_free(&s);
    return rc;
}

/* Restores the schedule, which may have changed since. Resources stay as they are now. */
static int restore_settings(struct shore__run *run, const struct shore__snapshot *s, uint64_t from,
                            struct shore_diag *diag) {
    const json_t *settings = json_object_get(s->json, "settings"), *changes = json_object_get(s->json, "changes");
    const char *processor = json_string_value(json_object_get(s->json, "processor"));
    const char *key = NULL;
    json_t *value = NULL;
    char what[160];
    json_t *some = json_object(), *copy = json_deep_copy(changes);
    if (!some || !json_is_array(copy) || !processor) {
        json_decref(some);
        json_decref(copy);
        return shore__fail(diag, SHORE_EINPUT, "snapshot %s: its description has been changed by hand; put it back",
                           s->name);
    }
    json_object_foreach((json_t *)(uintptr_t)settings, key, value) {
        if (shore__role_of_setting(key) == SHORE__SCHEDULE) json_object_set(some, key, value);
    }
    int rc = shore__settings_from_json(some, s->name, &run->settings, diag);
    if (rc == 0 && run->contents) rc = restore_program(run, s, diag);
    json_decref(some);
    json_decref(run->changes);
    run->changes = copy;
    snprintf(run->processor, sizeof run->processor, "%s", processor);
    snprintf(what, sizeof what, "rolled back to snapshot %s from step %" PRIu64, s->name, from);
    return rc ? rc : shore__run_record_change(run, s->step, what, diag);
}

static int remove_residuals(const char *run_path, struct shore_diag *diag) {
    DIR *directory = opendir(run_path);
    struct dirent *entry = NULL;
    if (!directory) return shore__fail_errno(diag, run_path, "cannot be read");
    while ((entry = readdir(directory)))
        if (strncmp(entry->d_name, "residual-", 9) == 0) unlinkat(dirfd(directory), entry->d_name, 0);
    closedir(directory);
    return 0;
}

/* Restores all that follows the state. Each step may be repeated. */
static int follow(struct shore__run *run, const struct shore__snapshot *s, const struct shore__journal *in,
                  struct shore_diag *diag) {
    const struct shore__path files = shore__snapshot_files(run->path, s->files);
    const struct shore__path metrics = shore__path_in(files.text, "metrics.jsonl");
    struct stat st;
    int rc = remove_residuals(run->path, diag);
    if (rc == 0 && stat(files.text, &st) == 0) rc = shore__files_copy(files.text, run->path, diag);
    if (rc == 0) rc = shore__metrics_put_back(run, s->step, stat(metrics.text, &st) == 0 ? metrics.text : NULL, diag);
    if (rc == 0) rc = restore_settings(run, s, in->from, diag);
    return rc ? rc : shore__journal_clear(run->path, SHORE__ROLLING_BACK, NULL, diag);
}

/* Opens the drives where they are said to be now: follow() records those places. */
static int check_drives(struct shore__run *run, struct shore_diag *diag) {
    struct shore_fleet_options options;
    struct shore_fleet *fleet = NULL;
    shore__run_fleet(run, &run->settings.drives, run->generation, &options);
    int rc = shore_fleet_open(run->layout, &options, &fleet, diag);
    shore_fleet_close(fleet);
    if (!rc) run->begun = true;
    return rc;
}

/* ---- */

int shore__run_rollback(struct shore__run *run, const char *name, shore__note_fn note, void *note_ctx,
                        shore__progress_fn progress, void *progress_ctx, uint64_t *from_step, struct shore_diag *diag) {
    struct shore__snapshot s = {.step = 0};
    struct shore__journal in;
    int rc = shore__run_refuse_copy(run, SHORE__RUN_ELSEWHERE, diag);
    if (rc == 0) rc = shore__snapshot_read(run->path, name, &s, diag);
    if (rc) return rc;
    rc = shore__journal_read(run->path, SHORE__ROLLING_BACK, NULL, &in, diag);
    if (rc == SHORE_EMISSING) rc = 0;
    /* another rollback was interrupted after its commit: finish it first */
    if (rc == 0 && in.committed) {
        rc = shore__rollback_mend(run, note, note_ctx, diag);
        shore__journal_free(&in);
    }
    if (rc == 0) rc = put_back(run, &s, &in, note, note_ctx, progress, progress_ctx, diag);
    if (rc == 0) rc = follow(run, &s, &in, diag);
    *from_step = in.from;
    shore__journal_free(&in);
    shore__snapshot_free(&s);
    return rc;
}

int shore__rollback_mend(struct shore__run *run, shore__note_fn note, void *ctx, struct shore_diag *diag) {
    struct shore__snapshot s;
    struct shore__journal in;
    struct shore_diag why = {0};
    int rc = shore__journal_read(run->path, SHORE__ROLLING_BACK, NULL, &in, diag);
    if (rc) return rc == SHORE_EMISSING ? 0 : rc;
    rc = shore__snapshot_read(run->path, in.snapshot, &s, &why);
    if (rc == 0) {
        rc = in.committed ? check_drives(run, &why) : put_back(run, &s, &in, note, ctx, NULL, NULL, &why);
        if (rc == 0) rc = follow(run, &s, &in, &why);
        shore__snapshot_free(&s);
    }
    if (rc < 0) { /* an interruption is no refusal: return no code that says that nothing was begun */
        rc = shore__fail(diag, run->begun ? -EIO : rc,
                         "going back to snapshot %s was interrupted and cannot go on: %.700s; mend that", in.snapshot,
                         why.text);
        shore__advise(diag, rc, SHORE_ADVICE_ROLL_BACK, run->path);
    } else {
        shore__note(note, ctx, "going back to snapshot %s had been interrupted: it is done now", in.snapshot);
    }
    shore__journal_free(&in);
    return rc;
}
