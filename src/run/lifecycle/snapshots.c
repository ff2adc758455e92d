/* Named copies of a run's committed state: reading, finding and removing them. NAME.json is written last and removed
 * first. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"
#include "drive/snapshot_name.h"
#include "files/atomic.h"
#include "files/json.h"
#include "run/directory/journal.h"
#include "run/lifecycle/snapshots.h"
#include "run/lifecycle/volumes.h"
#include "run/paths.h"
#include "run/standing.h"

#define FOLDER "snapshots"

/* snapshots/NAME + ending, in the run's directory */
struct in_folder {
    char name[128];
};
static struct in_folder in_folder(const char *name, const char *ending) {
    struct in_folder f;
    snprintf(f.name, sizeof f.name, FOLDER "/%s%s", name, ending);
    return f;
}

static struct shore__path path_of(const char *run_path, const char *name, const char *ending) {
    return shore__path_in(run_path, in_folder(name, ending).name);
}

struct shore__path shore__snapshot_files(const char *run_path, const char *files) {
    return path_of(run_path, files, ".files");
}

bool shore__snapshot_is_made(const char *run_path, const char *name) {
    return shore__path_exists(run_path, in_folder(name, ".json").name);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

void shore__snapshot_free(struct shore__snapshot *s) {
    shore__addresses_free(&s->volumes);
    json_decref(s->json);
    *s = (struct shore__snapshot){0};
}

static int read_fields(struct shore__snapshot *s, const char *path, struct shore_diag *diag) {
    const json_t *step = json_object_get(s->json, "step"), *generation = json_object_get(s->json, "generation");
    const char *digest = json_string_value(json_object_get(s->json, "digest"));
    const char *date = json_string_value(json_object_get(s->json, "date"));
    bool good = json_is_integer(step) && json_is_integer(generation) && digest && date && strlen(digest) == 32 &&
                shore__fleet_id_parse(json_string_value(json_object_get(s->json, "fleet")), s->fleet_id);
    if (good) {
        s->step = (uint64_t)json_integer_value(step);
        s->generation = (uint64_t)json_integer_value(generation);
        s->automatic = json_is_true(json_object_get(s->json, "automatic"));
        snprintf(s->digest, sizeof s->digest, "%s", digest);
        snprintf(s->date, sizeof s->date, "%s", date);
        const json_t *loss = json_object_get(s->json, "val_loss"), *files = json_object_get(s->json, "files");
        s->val_loss = json_is_number(loss) ? json_number_value(loss) : NAN;
        snprintf(s->files, sizeof s->files, "%s", json_is_string(files) ? json_string_value(files) : s->name);
        good = shore__snapshot_name_valid(s->files);
    }
    if (good && !shore__addresses_from_json(json_object_get(s->json, "volumes"), &s->volumes) && s->volumes.count)
        return 0;
    return shore__fail(diag, SHORE_EINPUT, "%s: has been changed by hand and misses what a snapshot needs; put it back",
                       path);
}

static int check_there(const char *run_path, const char *name, struct shore_diag *diag) {
    if (shore__snapshot_name_valid(name) && shore__snapshot_is_made(run_path, name)) return 0;
    shore__fail(diag, SHORE_EUSAGE, "%s has no snapshot %s", run_path, shore__shown(name).text);
    return shore__advise(diag, SHORE_EUSAGE, SHORE_ADVICE_SNAPSHOTS, run_path);
}

int shore__snapshot_read(const char *run_path, const char *name, struct shore__snapshot *out, struct shore_diag *diag) {
    *out = (struct shore__snapshot){0};
    if (check_there(run_path, name, diag)) return SHORE_EUSAGE;
    snprintf(out->name, sizeof out->name, "%s", name);
    int rc = shore__json_read_in(run_path, in_folder(name, ".json").name, &out->json, diag);
    if (rc == 0) rc = read_fields(out, path_of(run_path, name, ".json").text, diag);
    if (rc < 0) shore__snapshot_free(out);
    return rc;
}

static int by_age(const void *a, const void *b) {
    const struct shore__snapshot *x = a, *y = b;
    int order = strcmp(x->date, y->date);
    if (order == 0) order = (x->step > y->step) - (x->step < y->step);
    return order ? order : strcmp(x->name, y->name);
}

/* Lists the NAME of each file NAME + ending. */
static int list_names(const char *run_path, const char *ending, struct shore__strings *out, struct shore_diag *diag) {
    DIR *directory = opendir(shore__path_in(run_path, FOLDER).text);
    struct dirent *entry = NULL;
    int rc = 0;
    while (directory && rc == 0 && (entry = readdir(directory))) {
        size_t n = strlen(entry->d_name), tail = strlen(ending);
        if (n <= tail || strcmp(entry->d_name + n - tail, ending) != 0) continue;
        entry->d_name[n - tail] = '\0';
        if (shore__snapshot_name_valid(entry->d_name) && shore__strings_add(out, entry->d_name))
            rc = shore__out_of_memory(diag);
    }
    if (directory) closedir(directory);
    return rc;
}

int shore__snapshot_names(const char *run_path, struct shore__strings *out, struct shore_diag *diag) {
    return list_names(run_path, ".json", out, diag);
}

int shore__snapshots_read(const char *run_path, struct shore__snapshot **out, size_t *count, struct shore_diag *diag) {
    struct shore__strings names = {0};
    int rc = shore__snapshot_names(run_path, &names, diag);
    *count = 0;
    *out = rc ? NULL : calloc(names.count + 1, sizeof **out);
    if (rc == 0 && !*out) rc = shore__out_of_memory(diag);
    for (size_t i = 0; rc == 0 && i < names.count; i++) {
        rc = shore__snapshot_read(run_path, names.item[i], &(*out)[*count], diag);
        if (rc == 0) ++*count;
    }
    shore__strings_free(&names);
    if (*count) qsort(*out, *count, sizeof **out, by_age);
    if (rc < 0) {
        shore__snapshots_free(*out, *count);
        *out = NULL;
        *count = 0;
    }
    return rc;
}

void shore__snapshots_free(struct shore__snapshot *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        shore__snapshot_free(&list[i]);
    free(list);
}

/* ---- moved by hand ----------------------------------------------------------------------------------------------- */

static int follow(const char *run_path, const struct shore__snapshot *s, const struct shore__address *volume,
                  struct shore_diag *diag) {
    bool moved = false;
    for (size_t i = 0; i < s->volumes.count; i++) {
        const struct shore__address *part = s->volumes.item[i];
        struct shore__address *at = shore__part_beside(volume, part);
        if (at && strcmp(at->text, part->text) != 0 && shore__snapshot_part_is_at(s, i, at))
            moved = json_array_set_new(json_object_get(s->json, "volumes"), i, json_string(at->text)) == 0;
        free(at);
    }
    return moved ? shore__json_write_in(run_path, in_folder(s->name, ".json").name, json_incref(s->json), diag) : 0;
}

int shore__snapshots_follow(const char *run_path, const struct shore__addresses *drives, struct shore_diag *diag) {
    struct shore__strings names = {0};
    int rc = drives->count ? shore__snapshot_names(run_path, &names, diag) : 0;
    for (size_t d = 0; rc == 0 && names.count && d < drives->count; d++) {
        struct shore__spot spot;
        rc = shore__spot_of(drives->item[d], &spot, diag);
        for (size_t i = 0; rc == 0 && i < names.count; i++) {
            struct shore__snapshot s;
            if (shore__snapshot_read(run_path, names.item[i], &s, NULL)) continue; /* it blocks nothing */
            rc = follow(run_path, &s, spot.volume, diag);
            shore__snapshot_free(&s);
        }
        free(spot.volume);
    }
    shore__strings_free(&names);
    return rc;
}

/* ---- removing ---------------------------------------------------------------------------------------------------- */

int shore__snapshot_clear(const char *run_path, const char *name, struct shore__parts *parts, bool *left,
                          shore__note_fn note, void *ctx, struct shore_diag *diag) {
    struct shore__journal j;
    struct shore_diag held = {0};
    int rc = shore__journal_read(run_path, SHORE__SNAPSHOT, name, &j, diag);
    *left = false;
    memcpy(parts->fleet_id, j.fleet_id, sizeof parts->fleet_id);
    parts->generation = j.from;
    for (size_t i = 0; rc == 0 && i < j.new.count; i++)
        *left |= shore__part_discard(parts, i, j.new.item[i], &held, note, ctx);
    if (rc == SHORE_EINPUT) {
        shore__note(
            note, ctx,
            "the description of snapshot %s is damaged: if files called *.snapshot-%s are on the drives, they stay "
            "there",
            name, name);
        rc = 0;
    }
    if (*left)
        shore__note(note, ctx,
                    "a part of snapshot %s stays: %.900s; the next command that opens the run tries again, as long as "
                    "%s/snapshots/%s.partial is there",
                    name, held.text, run_path, name);
    if (rc == 0) {
        static const char *const any[] = {"*", NULL};
        shore__directory_remove(shore__snapshot_files(run_path, name).text, any);
        if (!*left) rc = shore__journal_clear(run_path, SHORE__SNAPSHOT, name, diag);
    }
    shore__journal_free(&j);
    return rc;
}

int shore__snapshot_remove(const char *run_path, const char *name, const struct shore__addresses *drives,
                           shore__note_fn note, void *ctx, struct shore_diag *diag) {
    if (check_there(run_path, name, diag)) return SHORE_EUSAGE;
    struct shore__parts parts = {.drives = drives};
    struct shore__snapshot there;
    bool left = false;
    const struct shore__path json = path_of(run_path, name, ".json");
    if (shore__snapshot_read(run_path, name, &there, NULL)) snprintf(there.files, sizeof there.files, "%s", name);
    int rc = rename(json.text, path_of(run_path, there.files, ".partial").text)
                 ? shore__fail_errno(diag, json.text, "cannot be renamed")
                 : shore__parent_sync(json.text, diag);
    if (rc == 0) rc = shore__snapshot_clear(run_path, there.files, &parts, &left, note, ctx, diag);
    shore__snapshot_free(&there);
    free(parts.away);
    return rc;
}

bool shore__snapshot_is_interrupted(const char *run_path) {
    struct shore__strings names = {0};
    bool found = list_names(run_path, ".partial", &names, NULL) || names.count;
    shore__strings_free(&names);
    return found;
}

/* Whether `best` is made of the files of this name. */
static int is_best(const char *run_path, const char *files, bool *is, struct shore_diag *diag) {
    json_t *json = NULL;
    int rc = shore__json_read_in(run_path, in_folder(SHORE__BEST, ".json").name, &json, diag);
    const char *of = json_string_value(json_object_get(json, "files"));
    *is = of && strcmp(of, files) == 0;
    json_decref(json);
    return rc == SHORE_EMISSING || rc == SHORE_EINPUT ? 0 : rc;
}

int shore__snapshot_mend(const char *run_path, const char *name, struct shore__parts *parts, shore__note_fn note,
                         void *ctx, struct shore_diag *diag) {
    bool left = false, whole = shore__snapshot_is_made(run_path, name);
    int rc = whole ? 0 : is_best(run_path, name, &whole, diag);
    if (rc == 0 && whole) return shore__journal_clear(run_path, SHORE__SNAPSHOT, name, diag); /* it only stayed */
    if (rc == 0) rc = shore__snapshot_clear(run_path, name, parts, &left, note, ctx, diag);
    if (rc == 0 && !left && parts->unopened)
        shore__note(note, ctx, "the making or removing of snapshot %s had been interrupted: it is removed", name);
    return rc;
}

int shore__snapshots_mend(const char *run_path, const struct shore__addresses *drives, shore__note_fn note, void *ctx,
                          struct shore_diag *diag) {
    struct shore__parts parts = {.drives = drives, .unopened = true};
    struct shore__strings names = {0};
    int rc = list_names(run_path, ".partial", &names, diag);
    for (size_t i = 0; rc == 0 && i < names.count; i++)
        rc = shore__snapshot_mend(run_path, names.item[i], &parts, note, ctx, diag);
    shore__strings_free(&names);
    free(parts.away);
    return rc;
}

int shore__snapshots_remove(const char *run_path, const struct shore__addresses *drives, bool despite,
                            shore__note_fn note, void *ctx, struct shore_diag *diag) {
    struct shore__strings names = {0};
    int rc = shore__snapshots_mend(run_path, drives, note, ctx, diag);
    if (rc == 0 || despite) rc = shore__snapshot_names(run_path, &names, diag);
    for (size_t i = 0; i < names.count && (rc == 0 || despite); i++) {
        rc = shore__snapshot_remove(run_path, names.item[i], drives, note, ctx, diag);
        if (rc == 0 && !despite) shore__note(note, ctx, "removed snapshot %s", names.item[i]);
    }
    shore__strings_free(&names);
    return rc;
}

/* Removes the descriptions of all snapshots, together with the run. */
void shore__snapshots_forget(const char *run_path) {
    static const char *const ours[] = {"*.json", "*.partial", NULL};
    shore__directory_remove(shore__path_in(run_path, FOLDER).text, ours);
}
