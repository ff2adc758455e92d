#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "drive/placement.h"
#include "drive/transport.h"
#include "run/fleets.h"
#include "storage/volume.h"

static const struct shore__option options[] = {
    {.kind = SHORE__OPTION_FLAG, .name = "json", .help = "one JSON object on one line"},
};

static const struct shore__command_line line = {
    .command = "drive list",
    .remote = true,
    .synopsis = "drive list RUN [--json]",
    .about =
        "Lists the drives of a run: which share of its state each holds, at which step, and what is wrong with it.",
    .options = options,
    .noptions = sizeof options / sizeof options[0],
    .positional = 1,
};

/* What can be known without opening the drive for writing. */
static json_t *drive_json(const struct shore__run *run, const char *recorded) {
    char *drive = shore__drive_name(recorded), *path = NULL;
    struct shore__volume v;
    struct shore_diag diag = {{0}};
    json_t *o = json_pack("{s:s}", "drive", drive ? drive : recorded);
    free(drive);
    if (shore__path_is_virtual(recorded)) {
        json_object_set_new(o, "error", json_string("in memory, gone with the process"));
        return o;
    }
    if (shore__path_is_remote(recorded)) {
        json_object_set_new(o, "volume", json_string(recorded));
        return o;
    }
    int rc = shore__volume_path(recorded, &path, &diag);
    if (!rc) rc = shore__volume_peek(path, &v, &diag);
    free(path);
    if (rc) {
        json_object_set_new(o, "error", json_string(diag.text));
        return o;
    }
    const struct shore__record *r = &v.record;
    double share = (double)v.desc.segments / (double)run->model->layout->segments;
    json_object_set_new(o, "volume", json_string(v.file.path));
    json_object_set_new(o, "place", json_integer(v.desc.drive));
    json_object_set_new(o, "generation", json_integer((json_int_t)v.desc.generation));
    json_object_set_new(o, "share", json_real(share));
    json_object_set_new(o, "segments", json_integer(v.desc.segments));
    json_object_set_new(o, "size_bytes", json_integer((json_int_t)v.size_bytes));
    json_object_set_new(o, "scratch_bytes", json_integer((json_int_t)v.desc.scratch_bytes));
    if (v.record_valid) {
        json_object_set_new(o, "step", json_integer((json_int_t)r->slot[r->active & 1].step));
        json_object_set_new(o, "epoch", json_integer((json_int_t)r->epoch));
    }
    if (v.desc.fleet_id[0] != run->fleet_id[0] || v.desc.fleet_id[1] != run->fleet_id[1])
        json_object_set_new(o, "error", json_string("the volume belongs to another run"));
    else if (v.desc.generation != run->generation)
        json_object_set_new(o, "error", json_string("the volume is of another placement"));
    else if (v.damaged_record)
        json_object_set_new(o, "error", json_string(v.damage.text));
    shore__volume_close(&v);
    return o;
}

static const char *text_of(const json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static void print_drive(const json_t *o) {
    char shown[512], size[32];
    const char *name = text_of(o, "drive"), *error = text_of(o, "error");
    printf("%s:", shore__escape(name, strlen(name), shown, sizeof shown));
    if (json_object_get(o, "share"))
        printf(" %.1f %% of the state, %s in %s", 100 * json_real_value(json_object_get(o, "share")),
               shore__format_size((uint64_t)json_integer_value(json_object_get(o, "size_bytes")), size, sizeof size),
               shore__escape(text_of(o, "volume"), strlen(text_of(o, "volume")), shown, sizeof shown));
    else if (!error[0])
        printf(" on another host or behind another process");
    if (json_object_get(o, "step")) printf(", step %lld", (long long)json_integer_value(json_object_get(o, "step")));
    if (error[0])
        printf("%s %s", json_object_get(o, "share") ? ";" : "",
               shore__escape(error, strlen(error), shown, sizeof shown));
    putchar('\n');
}

static int list(const struct shore__run *run, bool json) {
    json_t *drives = json_array();
    for (size_t i = 0; i < run->settings.drives.count; i++)
        json_array_append_new(drives, drive_json(run, run->settings.drives.item[i]));
    if (json)
        return shore__cli_print_json(json_pack("{s:s,s:I,s:s?,s:o}", "run", run->path, "generation",
                                               (json_int_t)run->generation, "drive_speeds", run->settings.drive_speeds,
                                               "drives", drives));
    size_t i;
    json_t *o;
    json_array_foreach(drives, i, o) print_drive(o);
    if (run->settings.drive_speeds) printf("speeds as given: %s\n", run->settings.drive_speeds);
    printf("placement %llu\n", (unsigned long long)run->generation);
    json_decref(drives);
    return SHORE__EXIT_DONE;
}

int shore__drive_list(int argc, char **argv) {
    bool json = false;
    struct shore__parsed parsed;
    struct shore_diag diag = {{0}};
    struct shore__run *run = NULL;
    int code = SHORE__EXIT_DONE;
    int rc = shore__options_parse(&line, argc, argv, &json, &parsed, &diag);
    if (!rc && parsed.help) {
        shore__options_help(&line, &json);
        return code;
    }
    if (!rc && !parsed.positional[0]) rc = shore__fail(&diag, SHORE_EUSAGE, "which run? longshore drive list RUN");
    if (!rc) rc = shore__run_open(parsed.positional[0], false, NULL, &run, &diag);
    if (!rc && run->note) shore__cli_say("%s", run->note);
    code = rc ? shore__cli_fail(rc, &diag) : list(run, json);
    shore__run_close(run);
    return code;
}
