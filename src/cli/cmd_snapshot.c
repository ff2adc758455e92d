/* longshore snapshot, rollback, snapshots: named copies of a run's state. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "cli/clean_text.h"
#include "cli/cli.h"
#include "run/directory/journal.h"
#include "run/lifecycle/snapshots.h"
#include "run/standing.h"

struct args {
    uint64_t memory;
    bool remove, json, quiet, itself;
};

#define OPTION(...) SHORE__OPTION(struct args, __VA_ARGS__)

static const struct shore__option snapshot_options[] = {
    OPTION(FLAG, "remove", remove, NULL, "remove the snapshot of that name"),
    SHORE__NOT_A_COPY(struct args, itself),
};

static const struct shore__option rollback_options[] = {
    OPTION(SIZE, "memory", memory, "SIZE", "the budget; otherwise the run's"),
    SHORE__NOT_A_COPY(struct args, itself),
    OPTION(FLAG, "quiet", quiet, NULL, "no progress"),
};

static const struct shore__option list_options[] = {
    OPTION(FLAG, "json", json, NULL, "one JSON object on one line"),
};

/* The second word, which both commands need. itself: the run is no copy. */
static int name_of(const struct shore__command_line *line, const struct shore__parsed *parsed, bool itself,
                   const char **name, struct shore_diag *diag) {
    const char *path = parsed->positional[0];
    *name = parsed->positional[1];
    if (!*name) return shore__fail(diag, SHORE_EUSAGE, "which snapshot? longshore %s %s NAME", line->command, path);
    return itself ? shore__run_claim(path, diag) : 0;
}

/* opened: whether the drives were opened. */
static int make(struct shore__run *run, const char *name, bool *opened, struct shore_diag *diag) {
    struct shore_fleet *fleet = NULL;
    struct shore__snapshot made;
    int rc = shore__cli_open_fleet(run, NULL, &fleet, diag);
    *opened = !rc;
    if (!rc) rc = shore__snapshot_make(run, fleet, name, false, diag);
    shore_fleet_close(fleet);
    if (!rc) rc = shore__snapshot_read(run->path, name, &made, diag);
    if (rc) return rc;
    printf("step %llu digest %s\n", (unsigned long long)made.step, made.digest);
    shore__snapshot_free(&made);
    return 0;
}

static int drop(struct shore__run *run, const char *name, struct shore_diag *diag) {
    int rc = shore__run_refuse_copy(run, SHORE__RUN_ELSEWHERE, diag);
    return rc ? rc : shore__snapshot_remove(run->path, name, &run->settings.drives, shore__cli_note, NULL, diag);
}

static int snapshot(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const char *name;
    struct shore_diag diag = {0};
    struct shore__run *run = NULL;
    bool opened = false;
    int rc = name_of(&shore__cli_snapshot, parsed, a->itself, &name, &diag);
    if (!rc) rc = shore__run_open(parsed->positional[0], true, NULL, &run, &diag);
    if (!rc && run->note) shore__cli_say("%s", run->note);
    if (!rc) rc = a->remove ? drop(run, name, &diag) : make(run, name, &opened, &diag);
    shore__run_close(run);
    if (!rc) return SHORE__EXIT_DONE;
    return opened ? shore__cli_fail_opened(rc, &diag) : shore__cli_fail(rc, &diag);
}

const struct shore__command_line shore__cli_snapshot = {
    .command = "snapshot",
    .remote = true,
    .synopsis = "snapshot RUN NAME\nsnapshot RUN NAME --remove",
    .about =
        "Keeps a copy of the committed state of a run under a name: a file beside each of its volumes, which shares\n"
        "blocks with it where the file system can do that (XFS, btrfs), and takes half a volume's room elsewhere.\n"
        "'longshore rollback RUN NAME' goes back to it.",
    .notes = "train --snapshot-every N --keep K makes them while it trains, and train --keep-best one named best.",
    SHORE__OPTIONS(snapshot_options),
    .positional = 2,
    .missing = "which run? longshore snapshot RUN",
    SHORE__RUNS(snapshot, struct args, 0),
};

static int roll_back(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const char *name;
    struct shore_diag diag = {0};
    struct shore__run *run = NULL;
    struct shore__snapshot s = {.step = 0};
    uint64_t from = 0;
    int code = SHORE__EXIT_DONE, rc = name_of(&shore__cli_rollback, parsed, a->itself, &name, &diag);
    if (!rc) rc = shore__run_open_to_roll_back(parsed->positional[0], &run, &diag);
    if (!rc && run->note) shore__cli_say("%s", run->note);
    if (!rc) rc = shore__snapshot_read(run->path, name, &s, &diag);
    shore__cli_catch_signals("longshore: stopping; once more stops at once\n");
    if (!rc) rc = shore__cli_copy_budget(run, a->memory, 0, &diag);
    if (!rc)
        rc = shore__run_rollback(run, name, shore__cli_note, NULL, shore__cli_work,
                                 a->quiet ? NULL : (void *)"putting the state back", &from, &diag);
    shore__cli_progress_end();
    if (rc == -ECANCELED) {
        shore__cli_say("stopped: the state is where it was");
        code = SHORE__EXIT_FAILED;
    } else if (rc) {
        code = run && run->begun ? shore__cli_fail_running(rc, &diag) : shore__cli_fail(rc, &diag);
        if (run && run->begun && shore__journal_is_there(run->path, SHORE__ROLLING_BACK, NULL))
            shore__cli_say("the next command that opens the run goes on with it");
        else if (run && run->begun)
            shore__cli_say("the state is where it was");
    } else {
        const char *how = run->model ? "; go on with: longshore train --resume " : "";
        const char *more = run->model && s.step >= run->settings.steps ? " --steps N" : "";
        shore__cli_say("back at step %llu, from step %llu%s%s%s", (unsigned long long)s.step, (unsigned long long)from,
                       how, run->model ? run->word : "", more);
        printf("step %llu digest %s\n", (unsigned long long)s.step, s.digest);
    }
    shore__snapshot_free(&s);
    shore__run_close(run);
    return code;
}

const struct shore__command_line shore__cli_rollback = {
    .command = "rollback",
    .remote = true,
    .synopsis = "rollback RUN NAME",
    .about =
        "Puts the state of a run back to a snapshot, with the metrics and the schedule that it had then; what the run\n"
        "did since is lost, unless a snapshot holds it. The run may lie on other drives now. Training goes on from\n"
        "there with the same bits as it did then.",
    .notes = "Killed in between, it goes on with the next command that opens the run.",
    SHORE__OPTIONS(rollback_options),
    .positional = 2,
    .missing = "which run? longshore rollback RUN",
    SHORE__RUNS(roll_back, struct args, 0),
};

static json_t *snapshot_json(const struct shore__snapshot *s) {
    json_t *volumes = json_array();
    for (size_t i = 0; i < s->volumes.count; i++)
        json_array_append_new(volumes, json_string(s->volumes.text[i]));
    return json_pack("{s:s,s:I,s:s,s:s,s:b,s:o*,s:I,s:o}", "name", s->name, "step", (json_int_t)s->step, "digest",
                     s->digest, "date", s->date, "automatic", s->automatic, "val_loss",
                     isnan(s->val_loss) ? NULL : json_real(s->val_loss), "generation", (json_int_t)s->generation,
                     "volumes", volumes);
}

json_t *shore__cli_snapshots_json(const char *run_path, struct shore_diag *diag) {
    struct shore__snapshot *list = NULL;
    size_t count = 0;
    if (shore__snapshots_read(run_path, &list, &count, diag)) return NULL;
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, snapshot_json(&list[i]));
    shore__snapshots_free(list, count);
    return array;
}

static int list_all(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const char *path = parsed->positional[0];
    struct shore_diag diag = {0};
    size_t i;
    json_t *o, *list = NULL;
    int rc = 0;
    if (!shore__is_run(path)) rc = shore__not_a_run(path, &diag);
    if (!rc && !(list = shore__cli_snapshots_json(path, &diag))) rc = SHORE_EINPUT;
    if (rc) return shore__cli_fail(rc, &diag);
    if (a->json)
        return shore__cli_print_json(
            json_pack("{s:o,s:o}", "run", shore__clean_json(path, strlen(path)), "snapshots", list));
    json_array_foreach(list, i, o) {
        char loss[64] = "";
        const json_t *val_loss = json_object_get(o, "val_loss");
        if (val_loss) snprintf(loss, sizeof loss, ", validation loss %.4f", json_number_value(val_loss));
        printf("%s: step %lld, %s%s%s, %zu drives, digest %s\n", json_string_value(json_object_get(o, "name")),
               (long long)json_integer_value(json_object_get(o, "step")), json_string_value(json_object_get(o, "date")),
               json_is_true(json_object_get(o, "automatic")) ? ", automatic" : "", loss,
               json_array_size(json_object_get(o, "volumes")), json_string_value(json_object_get(o, "digest")));
    }
    if (json_array_size(list) == 0) puts("no snapshots");
    json_decref(list);
    return SHORE__EXIT_DONE;
}

const struct shore__command_line shore__cli_snapshots = {
    .command = "snapshots",
    .remote = true,
    .synopsis = "snapshots RUN [--json]",
    .about = "Lists the snapshots of a run, the oldest first.",
    SHORE__OPTIONS(list_options),
    .positional = 1,
    .missing = "which run? longshore snapshots RUN",
    SHORE__RUNS(list_all, struct args, 0),
};
