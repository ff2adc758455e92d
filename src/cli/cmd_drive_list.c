#include <string.h>

#include "cli/clean_text.h"
#include "cli/cli.h"

static const struct shore__option options[] = {
    {.is.kind = SHORE__VALUE_FLAG, .name = "json", .help = "one JSON object on one line"},
};

static int print(const struct shore__run *run, bool json) {
    json_t *drives = json_array();
    for (size_t i = 0; i < run->settings.drives.count; i++)
        json_array_append_new(drives, shore__cli_drive_json(run, i));
    if (json)
        return shore__cli_print_json(
            json_pack("{s:o,s:I,s:s?,s:o}", "run", shore__clean_json(run->path, strlen(run->path)), "generation",
                      (json_int_t)run->generation, "drive_speeds", run->settings.drive_speeds, "drives", drives));
    size_t i;
    json_t *o;
    json_array_foreach(drives, i, o) shore__cli_drive_print(o);
    printf("placement %llu\n", (unsigned long long)run->generation);
    json_decref(drives);
    return SHORE__EXIT_DONE;
}

static int list(const struct shore__parsed *parsed, void *json) {
    struct shore_diag diag = {0};
    struct shore__run *run = NULL;
    int rc = shore__run_open(parsed->positional[0], false, NULL, &run, &diag);
    if (!rc && run->note) shore__cli_say("%s", run->note);
    int code = rc ? shore__cli_fail(rc, &diag) : print(run, *(const bool *)json);
    shore__run_close(run);
    return code;
}

const struct shore__command_line shore__cli_drive_list = {
    .command = "drive list",
    .remote = true,
    .synopsis = "drive list RUN [--json]",
    .about =
        "Lists the drives of a run: which share of its state each holds, at which step, and what is wrong with it.",
    SHORE__OPTIONS(options),
    .positional = 1,
    .missing = "which run? longshore drive list RUN",
    SHORE__RUNS(list, bool, 0),
};
