#include "cli/doctor.h"

#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "drive/address.h"

struct args {
    struct shore__strings drives;
    bool json;
};

static const struct shore__option options[] = {
    SHORE__OPTION(struct args, LIST, "drive", drives, "PATH...",
                  "drives to look at and to measure, as train takes them: directories, files, block devices, ssh://"),
    SHORE__OPTION(struct args, FLAG, "json", json, NULL, "one JSON object on one line"),
};

static void look_at_drives(struct shore__report *r, const struct shore__strings *drives) {
    struct shore__whereabouts *places = calloc(drives->count + 1, sizeof *places);
    struct shore__address **at = calloc(drives->count + 1, sizeof(struct shore__address *));
    struct shore_diag *why = calloc(drives->count + 1, sizeof *why);
    size_t n = 0;
    bool over_there = false;
    for (size_t i = 0; at && why && i < drives->count; i++)
        over_there |= shore__address_parse(drives->item[i], &at[i], &why[i]) || !at[i]->kind->here;
    shore__doctor_ssh(r, over_there);
    for (size_t i = 0; at && why && places && i < drives->count && !shore__cli_stop_wanted(); i++) {
        if (!at[i])
            shore__doctor_refuse(r, drives->item[i], &why[i]);
        else if (shore__doctor_drive(r, at[i], places, n, &places[n]))
            n++;
    }
    for (size_t i = 0; at && i < drives->count; i++)
        free(at[i]);
    free(at);
    free(why);
    free(places);
}

static int finish(struct shore__report *r) {
    bool good = r->count[SHORE__BROKEN] == 0;
    if (r->json) {
        json_t *o = json_pack("{s:b,s:O}", "ok", good, "checks", r->checks);
        return shore__cli_print_json(o) || !good ? SHORE__EXIT_FAILED : SHORE__EXIT_DONE;
    }
    size_t i;
    json_t *check;
    char names[600] = "";
    json_array_foreach(r->checks, i, check) {
        const char *name = json_string_value(json_object_get(check, "check"));
        if (!name || strcmp(json_string_value(json_object_get(check, "status")), "fail") != 0) continue;
        shore__append(names, sizeof names, "%s%s", *names ? ", " : "", shore__shown(name).text);
    }
    if (good)
        printf("everything that is needed works%s\n", r->count[SHORE__WEAK] ? "; WARN says what could be better" : "");
    else
        printf("does not work, and is needed: %s\n", names);
    return good ? SHORE__EXIT_DONE : SHORE__EXIT_FAILED;
}

static int examine(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    struct shore__report r = {.checks = json_array(), .json = a->json};
    shore__cli_catch_signals("longshore: stopping after this drive\n");
    shore__doctor_machine(&r);
    shore__doctor_graphics(&r);
    look_at_drives(&r, &a->drives);
    int code = shore__cli_stop_wanted() ? SHORE__EXIT_FAILED : finish(&r);
    json_decref(r.checks);
    return code;
}

const struct shore__command_line shore__cli_doctor = {
    .command = "doctor",
    .remote = true,
    .synopsis = "doctor [--drive PATH...] [--json]",
    .about = "Tells what this machine has for training: processor, I/O, memory and limits, and of each drive its "
             "file\nsystem, room and rates. Each line begins with OK, WARN (it works, but could work better) or "
             "FAIL\n(something necessary does not work). WARN and FAIL lines say what to do.",
    .notes =
        "A drive is measured with a temporary file of 96 MiB that has no name: nothing is left behind, however this\n"
        "ends. Block devices are not measured. Exit code 1: something that is needed does not work.",
    SHORE__OPTIONS(options),
    SHORE__RUNS(examine, struct args, .json = false),
};
