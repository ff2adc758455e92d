/* longshore drive add, remove, move: changes the drives of a run's state. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "run/lifecycle/snapshots.h"
#include "run/lifecycle/volumes.h"
#include "train/train.h"

struct args {
    enum what { ADD, REMOVE, MOVE } what;
    char *speeds;
    uint64_t memory;
    bool quiet, itself;
};

static const struct shore__option options[] = {
    SHORE__OPTION(struct args, TEXT, "drive-speeds", speeds, "A,B,...",
                  "speeds of all drives afterwards, in their order (2,1 or 2.8GB,1.4GB); otherwise measured"),
    SHORE__OPTION(struct args, SIZE, "memory", memory, "SIZE", "the budget; otherwise the run's"),
    SHORE__NOT_A_COPY(struct args, itself),
    SHORE__OPTION(struct args, FLAG, "quiet", quiet, NULL, "no progress"),
};

#define COMMON_NOTES                                                                                                \
    "The state is copied into new volumes (room for them is needed beside the old ones), and one rewrite of "       \
    "run.json\n"                                                                                                    \
    "goes over to them. Stopped or killed before, the run is where it was; after, the next command that opens it\n" \
    "removes the old volumes. The digest stays the same, and training goes on with the same bits."

static const struct shore__command_line lines[] = {
    {
        .command = "drive add",
        .remote = true,
        .synopsis = "drive add RUN DRIVE... [--drive-speeds A,B,...]",
        .about = "Adds drives to a run: its state is spread over the old and the new ones, by their speeds.",
        .notes = COMMON_NOTES,
        SHORE__OPTIONS(options),
        .positional = SHORE__WORDS_MAX,
    },
    {
        .command = "drive remove",
        .remote = true,
        .synopsis = "drive remove RUN DRIVE... [--drive-speeds A,B,...]",
        .about = "Takes drives out of a run: what they hold moves to those that stay.",
        .notes = COMMON_NOTES,
        SHORE__OPTIONS(options),
        .positional = SHORE__WORDS_MAX,
    },
    {
        .command = "drive move",
        .remote = true,
        .synopsis = "drive move RUN OLD=NEW... [--drive-speeds A,B,...]\ndrive move RUN --drive-speeds A,B,...",
        .about =
            "Replaces drives of a run by others, or spreads its state anew over those it has. (Where files were moved\n"
            "by hand, nothing needs copying: train --resume RUN --drive OLD=NEW says where they are.)",
        .notes = COMMON_NOTES,
        SHORE__OPTIONS(options),
        .positional = SHORE__WORDS_MAX,
    },
};

/* Recorded speeds, by drive. */
struct speeds {
    char *text, **item; /* item: in text; NULL: measured */
};

static int speeds_split(const struct shore__settings *s, struct speeds *out) {
    *out = (struct speeds){.item = calloc(s->drives.count + SHORE__WORDS_MAX + 1, sizeof *out->item)};
    if (s->drive_speeds) out->text = strdup(s->drive_speeds);
    if (!out->item || (s->drive_speeds && !out->text)) return -ENOMEM;
    char *at = out->text;
    for (size_t i = 0; at && i < s->drives.count; i++)
        out->item[i] = strsep(&at, ",");
    return 0;
}

static int no_such_drive(const struct shore__run *run, const char *name, struct shore_diag *diag) {
    char *drive = run->settings.drives.count ? shore__drive_name(run->settings.drives.text[0], run->generation) : NULL;
    int rc = shore__fail(diag, SHORE_EUSAGE, "%s: this run has no such drive; its first is %s", shore__shown(name).text,
                         shore__shown(drive ? drive : "none").text);
    free(drive);
    return rc;
}

static int given_twice(const char *name, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EUSAGE, "%s is given twice", shore__shown(name).text);
}

static int added(const struct shore__run *run, const char *const *words, struct shore__addresses *out,
                 struct shore_diag *diag) {
    const struct shore__addresses *present = &run->settings.drives;
    int rc = shore__addresses_copy(present, out) ? shore__out_of_memory(diag) : 0;
    for (; !rc && *words; words++) {
        if (shore__drive_find(present, run->generation, *words, 0) < present->count)
            return shore__fail(diag, SHORE_EUSAGE, "%s is a drive of this run already", shore__shown(*words).text);
        if (shore__drive_find(out, run->generation, *words, 0) < out->count) return given_twice(*words, diag);
        rc = shore__addresses_parse(out, *words, diag);
    }
    return rc;
}

static int removed(const struct shore__run *run, const char *const *words, struct shore__addresses *out,
                   struct speeds *speeds, struct shore_diag *diag) {
    const struct shore__addresses *present = &run->settings.drives;
    bool *gone = calloc(present->count + 1, sizeof *gone);
    size_t left = present->count, kept = 0;
    int rc = gone ? 0 : shore__out_of_memory(diag);
    for (; !rc && *words; words++) {
        size_t k = shore__drive_find(present, run->generation, *words, 0);
        if (k == present->count) rc = no_such_drive(run, *words, diag);
        for (; !rc && k < present->count; k = shore__drive_find(present, run->generation, *words, k + 1)) {
            if (gone[k]) rc = given_twice(*words, diag);
            gone[k] = true;
            left--;
        }
    }
    if (!rc && left == 0)
        rc = shore__fail(diag, SHORE_EUSAGE,
                         "a run needs a drive: its last one cannot be removed; 'longshore drive move RUN OLD=NEW' "
                         "replaces it, 'longshore remove RUN' deletes the run");
    for (size_t i = 0; !rc && i < present->count; i++) {
        if (gone[i]) continue;
        speeds->item[kept++] = speeds->item[i];
        rc = shore__addresses_parse(out, present->text[i], diag);
    }
    free(gone);
    return rc;
}

static int replace(const struct shore__run *run, const char *word, struct shore__addresses *out, bool *replaced,
                   struct shore_diag *diag) {
    const struct shore__addresses *present = &run->settings.drives;
    struct shore__move move = shore__move_split(run, word, 0);
    const struct shore__shown shown = shore__shown(word);
    if (!move.to)
        return shore__fail(diag, SHORE_EUSAGE, "%s: give OLD=NEW, the drive and the one that takes its place",
                           shown.text);
    if (move.drive == present->count) return no_such_drive(run, word, diag);
    if (!*move.to) return shore__fail(diag, SHORE_EUSAGE, "%s: to where?", shown.text);
    int rc = 0;
    for (; !rc && move.drive < present->count; move = shore__move_split(run, word, move.drive + 1)) {
        struct shore__address *to = NULL;
        rc = replaced[move.drive] ? given_twice(present->text[move.drive], diag)
                                  : shore__address_parse(move.to, &to, diag);
        if (!rc) shore__addresses_put(out, move.drive, to);
        replaced[move.drive] = true;
    }
    return rc;
}

static int moved(const struct shore__run *run, const char *const *words, struct shore__addresses *out,
                 struct shore_diag *diag) {
    const struct shore__addresses *present = &run->settings.drives;
    bool *replaced = calloc(present->count + 1, sizeof *replaced);
    int rc = replaced && !shore__addresses_copy(present, out) ? 0 : shore__out_of_memory(diag);
    for (; !rc && *words; words++)
        rc = replace(run, *words, out, replaced, diag);
    free(replaced);
    return rc;
}

/* Given speeds stay with their drives. A drive without one leaves them incomplete. */
static int join_speeds(const struct speeds *speeds, size_t count, const char *given, char **out,
                       struct shore_diag *diag) {
    *out = given ? strdup(given) : NULL;
    if (given) return *out ? 0 : shore__out_of_memory(diag);
    if (!speeds->text) return 0;
    size_t bytes = 1;
    for (size_t i = 0; i < count; i++) {
        if (!speeds->item[i])
            return shore__fail(diag, SHORE_EUSAGE,
                               "the speeds of this run's drives were given, not measured: give --drive-speeds for all "
                               "%zu drives",
                               count);
        bytes += strlen(speeds->item[i]) + 1;
    }
    *out = calloc(bytes, 1);
    if (!*out) return shore__out_of_memory(diag);
    for (size_t i = 0; i < count; i++)
        sprintf(*out + strlen(*out), "%s%s", i ? "," : "", speeds->item[i]);
    return 0;
}

static int work(struct shore__run *run, const char *const *words, const struct args *a, struct shore_diag *diag) {
    struct shore__addresses drives = {0};
    struct speeds speeds = {0};
    char *text = NULL;
    int rc = speeds_split(&run->settings, &speeds) ? shore__out_of_memory(diag) : 0;
    if (!rc)
        rc = a->what == ADD      ? added(run, words, &drives, diag)
             : a->what == REMOVE ? removed(run, words, &drives, &speeds, diag)
                                 : moved(run, words, &drives, diag);
    if (!rc) rc = join_speeds(&speeds, drives.count, a->speeds, &text, diag);
    if (!rc) {
        struct shore__placing how = {
            .drives = &drives,
            .speeds = text,
            .note = shore__cli_note,
            .progress = shore__cli_work,
            .progress_ctx = a->quiet ? NULL : (void *)"moving the state",
        };
        rc = shore__run_place(run, &how, diag);
        shore__cli_progress_end();
    }
    free(text);
    free(speeds.text);
    free(speeds.item);
    shore__addresses_free(&drives);
    return rc;
}

/* Tells the user that snapshots' copies do not move, before a drive is unplugged. */
static void tell_snapshots(const struct shore__run *run) {
    struct shore__snapshot *list = NULL;
    size_t count = 0;
    if (shore__snapshots_read(run->path, &list, &count, NULL)) return;
    for (size_t i = 0; i < count; i++) {
        char *told = NULL; /* a directory may hold several */
        for (size_t v = 0; v < list[i].volumes.count; v++) {
            const char *path = list[i].volumes.text[v], *end = strstr(path, ".snapshot-");
            char *volume = end ? strndup(path, (size_t)(end - path)) : NULL;
            char *drive = volume ? shore__drive_name(volume, list[i].generation) : NULL;
            bool again = drive && told && strcmp(drive, told) == 0;
            if (drive && !again &&
                shore__drive_find(&run->settings.drives, run->generation, drive, 0) == run->settings.drives.count)
                shore__cli_say("a part of snapshot %s stays on %s, which the run no longer uses", list[i].name, drive);
            free(told);
            told = drive;
            free(volume);
        }
        free(told);
    }
    shore__snapshots_free(list, count);
}

/* Tells the user that more drives need more threads and rings. */
static void tell_budget(const struct shore__run *run) {
    struct shore__needs needs;
    const struct shore__settings *s = &run->settings;
    if (!run->model || shore__train_needs(s, run->model, &needs, NULL) || s->memory_bytes >= needs.minimum_bytes)
        return;
    shore__cli_say("training on %zu drives needs a budget of %s at least, more than the run's: --memory gives it",
                   s->drives.count, shore__format_size_up(needs.minimum_bytes).text);
}

static int place(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const struct shore__command_line *line = &lines[a->what];
    const char *const *words = parsed->positional;
    struct shore_diag diag = {0};
    struct shore__run *run = NULL;
    int rc = 0, code = SHORE__EXIT_DONE;
    uint32_t added = 0;
    while (a->what == ADD && words[0] && words[1 + added])
        added++;
    if (!words[0])
        rc = shore__fail(&diag, SHORE_EUSAGE, "which run? longshore %.*s", (int)strcspn(line->synopsis, "["),
                         line->synopsis);
    if (!rc && !words[1] && !(a->what == MOVE && a->speeds))
        rc = shore__fail(&diag, SHORE_EUSAGE, "which drives? longshore %.*s", (int)strcspn(line->synopsis, "\n"),
                         line->synopsis);
    if (!rc && a->itself) rc = shore__run_claim(words[0], &diag);
    if (!rc) rc = shore__run_open(words[0], true, NULL, &run, &diag);
    if (!rc && run->note) shore__cli_say("%s", run->note);
    shore__cli_catch_signals("longshore: stopping; once more stops at once\n");
    uint64_t before = run ? run->generation : 0;
    if (!rc) rc = shore__cli_copy_budget(run, a->memory, added, &diag);
    if (!rc) rc = work(run, words + 1, a, &diag);
    if (rc == -ECANCELED) {
        shore__cli_say("stopped: the state is where it was");
        code = SHORE__EXIT_FAILED;
    } else if (rc) {
        code = run && run->begun ? shore__cli_fail_running(rc, &diag) : shore__cli_fail(rc, &diag);
        bool drive_failed = rc == SHORE_ELINK || rc == -EIO || rc == -ENOSPC || rc == SHORE_ECORRUPT;
        if (drive_failed && run && run->generation == before) shore__cli_say("the state is where it was");
    } else {
        char name[1024];
        printf("%s: %zu drive%s, placement %llu\n", shore__printable(run->path, strlen(run->path), name, sizeof name),
               run->settings.drives.count, run->settings.drives.count == 1 ? "" : "s",
               (unsigned long long)run->generation);
        tell_snapshots(run);
        tell_budget(run);
    }
    shore__run_close(run);
    return code;
}

int shore__cli_drive_add(int argc, char **argv) {
    struct args a = {.what = ADD};
    return shore__cli_command(&lines[ADD], argc, argv, &a, place);
}

int shore__cli_drive_remove(int argc, char **argv) {
    struct args a = {.what = REMOVE};
    return shore__cli_command(&lines[REMOVE], argc, argv, &a, place);
}

int shore__cli_drive_move(int argc, char **argv) {
    struct args a = {.what = MOVE};
    return shore__cli_command(&lines[MOVE], argc, argv, &a, place);
}
