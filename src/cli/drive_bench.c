#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "drive/placement.h"
#include "drive/speed.h"
#include "storage/volume.h"

struct args {
    enum shore_io io;
    bool json;
};

static const struct shore__option options[] = {
    SHORE__CHOICE(struct args, "io", io, "auto|uring|threads|buffered", "how drives are read and written"),
    SHORE__OPTION(struct args, FLAG, "json", json, NULL, "one JSON object on one line"),
};

static const struct shore__command_line line = {
    .command = "drive bench",
    .synopsis = "drive bench DIR... [--json]",
    .about =
        "Measures each drive alone, reading and writing at once in the pattern of UPDATE, with a temporary file of\n"
        "96 MiB: the figures that decide which share of a run's state a drive gets, so that all finish together.",
    .notes = "'longshore bench disk' measures longer and all drives at once.",
    .options = options,
    .noptions = sizeof options / sizeof options[0],
    .positional = SHORE__WORDS_MAX,
};

static int measure(char *const *paths, uint32_t n, const struct args *a, uint64_t *speeds, struct shore_diag *diag) {
    for (uint32_t i = 0; i < n; i++) {
        int rc = shore__drive_measure(paths[i], a->io, &speeds[i], diag);
        if (rc) return rc;
        if (shore__cli_stop_wanted()) return -ECANCELED;
    }
    return 0;
}

static int print(const char *const *names, char *const *paths, const uint64_t *speeds, uint32_t n,
                 const struct args *a) {
    json_t *drives = json_array();
    bool shared = n > 1 && shore__drives_share_device(paths, n);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += speeds[i];
    for (uint32_t i = 0; i < n; i++) {
        char rate[32], room[32], escaped[512];
        /* what shares a device shares its speed, so it is placed equally */
        double share = shared ? 1.0 / n : (double)speeds[i] / (double)sum;
        uint64_t bytes = shore__drive_capacity_bytes(names[i]);
        json_array_append_new(drives,
                              json_pack("{s:s,s:I,s:f,s:I}", "drive", names[i], "bytes_per_second",
                                        (json_int_t)speeds[i], "share", share, "room_bytes", (json_int_t)bytes));
        if (!a->json)
            printf("%s: %s/s, room for %s, %.1f %% of a run\n",
                   shore__escape(names[i], strlen(names[i]), escaped, sizeof escaped),
                   shore__format_size(speeds[i], rate, sizeof rate), shore__format_size(bytes, room, sizeof room),
                   100 * share);
    }
    if (a->json) return shore__cli_print_json(json_pack("{s:o,s:b}", "drives", drives, "one_device", shared));
    json_decref(drives);
    if (shared) puts("all of them lie on one device and share its speed: they get equal shares");
    return SHORE__EXIT_DONE;
}

static int bench(const char *const *names, uint32_t n, const struct args *a) {
    struct shore_diag diag = {{0}};
    uint64_t *speeds = calloc(n, sizeof *speeds);
    char **paths = calloc(n, sizeof *paths);
    int rc = speeds && paths ? 0 : shore__fail(&diag, -ENOMEM, "out of memory");
    for (uint32_t i = 0; !rc && i < n; i++) {
        char shown[256];
        if (shore__path_is_virtual(names[i]))
            rc = shore__fail(&diag, SHORE_EUSAGE, "%s is no drive that could be measured: give a directory", names[i]);
        for (uint32_t k = 0; !rc && k < i; k++)
            if (strcmp(names[i], names[k]) == 0)
                rc = shore__fail(&diag, SHORE_EUSAGE, "%s is given twice",
                                 shore__escape(names[i], strlen(names[i]), shown, sizeof shown));
        if (!rc) rc = shore__volume_path(names[i], &paths[i], &diag);
        struct stat st;
        if (!rc && stat(paths[i], &st) == 0 && S_ISBLK(st.st_mode))
            rc = shore__fail(&diag, SHORE_EUSAGE,
                             "%s is a block device, which only overwriting could measure: 'longshore bench disk "
                             "--overwrite' does that",
                             shore__escape(names[i], strlen(names[i]), shown, sizeof shown));
    }
    shore__cli_catch_signals("\nlongshore: stopping after this drive\n");
    if (!rc) rc = measure(paths, n, a, speeds, &diag);
    int code = SHORE__EXIT_DONE;
    if (!rc)
        code = print(names, paths, speeds, n, a);
    else if (rc != -ECANCELED)
        code = shore__cli_fail(rc, &diag);
    for (uint32_t i = 0; paths && i < n; i++)
        free(paths[i]);
    free(paths);
    free(speeds);
    return code;
}

int shore__drive_bench(int argc, char **argv) {
    struct args a = {0};
    struct shore__parsed parsed;
    struct shore_diag diag = {{0}};
    uint32_t n = 0;
    int rc = shore__options_parse(&line, argc, argv, &a, &parsed, &diag);
    if (!rc && parsed.help) {
        shore__options_help(&line, &a);
        return SHORE__EXIT_DONE;
    }
    while (parsed.positional[n])
        n++;
    if (!rc && n == 0) rc = shore__fail(&diag, SHORE_EUSAGE, "which drive? Give a directory on it");
    return rc ? shore__cli_fail(rc, &diag) : bench(parsed.positional, n, &a);
}
