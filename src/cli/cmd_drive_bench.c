#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/clean_text.h"
#include "cli/cli.h"
#include "drive/probe/probe.h"
#include "drive/probe/speed.h"

struct args {
    enum shore_io io;
    bool json;
};

static const struct shore__option options[] = {
    SHORE__CHOICE(struct args, "io", io, "auto|uring|threads|buffered", "how drives are read and written"),
    SHORE__OPTION(struct args, FLAG, "json", json, NULL, "one JSON object on one line"),
};

/* as it was found */
struct drive {
    struct shore__address *at;
    struct shore__probe probe;
    uint64_t speed, link;
};

/* Of a run with AdamW and moments in fp32. */
#define STATE_BYTES (12u * SHORE_SEGMENT_ELEMS)

static int find(const char *name, struct drive *d, struct shore_diag *diag) {
    const struct shore__shown shown = shore__shown(name);
    int rc = shore__address_parse(name, &d->at, diag);
    if (!rc && !d->at->kind->keeps)
        rc = shore__fail(diag, SHORE_EUSAGE, "%s is no drive that could be measured: give a directory", shown.text);
    if (!rc) rc = shore__drive_probe(d->at, &d->probe, diag);
    if (!rc) rc = shore__probe_may_be_made(d->at, &d->probe, diag);
    if (!rc && d->probe.is_device)
        rc = shore__fail(
            diag, SHORE_EUSAGE,
            "%s is a block device, and measuring would overwrite it: 'longshore bench disk --overwrite' does that",
            shown.text);
    struct stat st;
    if (!rc && d->probe.exists && d->at->kind->has_file && !stat(d->probe.path, &st) && !S_ISREG(st.st_mode))
        rc = shore__fail(diag, SHORE_EUSAGE, "%s is a special file, not a file or a directory", shown.text);
    return rc;
}

static int print(const char *const *names, const struct drive *found, uint32_t n, bool json) {
    json_t *drives = json_array();
    struct shore__site *sites = calloc(n, sizeof *sites);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += found[i].speed;
        if (sites) sites[i] = (struct shore__site){found[i].at, found[i].probe.path, found[i].probe.device};
    }
    bool shared = n > 1 && sites && shore__sites_share_device(sites, n);
    for (uint32_t i = 0; i < n; i++) {
        const struct drive *d = &found[i];
        /* drives on one device share its speed, so they get equal shares */
        double share = shared ? 1.0 / n : (double)d->speed / (double)sum;
        json_t *o =
            json_pack("{s:o,s:I,s:f,s:I}", "drive", shore__clean_json(names[i], strlen(names[i])), "bytes_per_second",
                      (json_int_t)d->speed, "share", share, "room_bytes", (json_int_t)d->probe.capacity_bytes);
        if (d->link) json_object_set_new(o, "link_bytes_per_second", json_integer((json_int_t)d->link));
        json_array_append_new(drives, o);
        if (json) continue;
        printf("%s: %s/s", shore__shown(names[i]).text, shore__format_size(d->speed).text);
        if (d->link) printf(" (its link carries %s/s)", shore__format_size(d->link).text);
        printf(", room for %s, %.1f %% of a run\n", shore__format_size(d->probe.capacity_bytes).text, 100 * share);
    }
    free(sites);
    if (json) return shore__cli_print_json(json_pack("{s:o,s:b}", "drives", drives, "one_device", shared));
    json_decref(drives);
    if (shared) puts("all of them lie on one device and share its speed: they get equal shares");
    return SHORE__EXIT_DONE;
}

static int bench(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const char *const *names = parsed->positional;
    uint32_t n = 0;
    struct shore_diag diag = {0};
    while (names[n])
        n++;
    struct drive *found = calloc(n, sizeof *found);
    int rc = found ? 0 : shore__out_of_memory(&diag);
    for (uint32_t i = 0; !rc && i < n; i++) {
        for (uint32_t k = 0; !rc && k < i; k++)
            if (strcmp(names[i], names[k]) == 0)
                rc = shore__fail(&diag, SHORE_EUSAGE, "%s is given twice", shore__shown(names[i]).text);
        if (!rc) rc = find(names[i], &found[i], &diag);
    }
    shore__cli_catch_signals("longshore: stopping after this drive\n");
    for (uint32_t i = 0; !rc && i < n; i++) {
        struct drive *d = &found[i];
        const struct shore__site site = {d->at, d->probe.path, d->probe.device};
        rc = shore__site_measure(&site, a->io, STATE_BYTES, &d->speed, &d->link, &diag);
        if (!rc && shore__cli_stop_wanted()) rc = -ECANCELED;
    }
    int code = SHORE__EXIT_FAILED;
    if (!rc)
        code = print(names, found, n, a->json);
    else if (rc != -ECANCELED)
        code = shore__cli_fail(rc, &diag);
    for (uint32_t i = 0; found && i < n; i++) {
        free(found[i].at);
        shore__probe_free(&found[i].probe);
    }
    free(found);
    return code;
}

const struct shore__command_line shore__cli_drive_bench = {
    .command = "drive bench",
    .remote = true,
    .synopsis = "drive bench DRIVE... [--json]",
    .about =
        "Measures each drive alone, reading and writing at once in the pattern of UPDATE, with a temporary file of\n"
        "96 MiB: the figures that decide which share of a run's state a drive gets, so that all finish together. A\n"
        "drive on another host is measured over there, and counts with no more than its link carries: updates of\n"
        "AdamW whose fp32 gradients come over it.",
    .notes = "'longshore bench disk' measures longer and all drives at once.",
    SHORE__OPTIONS(options),
    .positional = SHORE__WORDS_MAX,
    .missing = "which drive? Give a directory on it",
    SHORE__RUNS(bench, struct args, 0),
};
