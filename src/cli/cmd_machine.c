#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/limits.h"
#include "cli/cli.h"
#include "files/atomic.h"
#include "files/json.h"
#include "pass/measure_computing.h"

struct args {
    struct shore__strings drives;
    char *out;
    bool json, list, kept;
};

#define OPTION(...) SHORE__OPTION(struct args, __VA_ARGS__)
static const struct shore__option options[] = {
    OPTION(LIST, "drive", drives, "PATH...", "drives to measure, as train takes them: directories, files, ssh://"),
    OPTION(TEXT, "out", out, "FILE", "writes the description there, too; it replaces a description alone"),
    OPTION(FLAG, "json", json, NULL, "prints the description as one JSON object, which --machine FILE reads"),
    OPTION(FLAG, "kept", kept, NULL, "prints what is kept of this machine, and measures nothing"),
    OPTION(FLAG, "list", list, NULL, "lists the descriptions that come with the program"),
};

/* ---- for people -------------------------------------------------------------------------------------------------- */

/* What a disk is and is rated at, as far as the kernel says; "" if it does not. */
static const char *rated(const char *disk, char *out, size_t bytes) {
    char path[256], text[128], width[32];
    out[0] = '\0';
    snprintf(path, sizeof path, "/sys/block/%s/device/model", disk);
    if (*disk && !strchr(disk, '/') && shore__read_text(path, text, sizeof text)) {
        text[strcspn(text, "\n")] = '\0';
        while (*text && text[strlen(text) - 1] == ' ')
            text[strlen(text) - 1] = '\0';
        shore__append(out, bytes, ", %s", shore__shown(text).text);
    }
    snprintf(path, sizeof path, "/sys/block/%s/queue/rotational", disk);
    if (*disk && shore__read_text(path, text, sizeof text) && *text == '1') shore__append(out, bytes, ", rotates");
    snprintf(path, sizeof path, "/sys/block/%s/device/device/current_link_speed", disk);
    if (!*disk || !shore__read_text(path, text, sizeof text)) return out;
    text[strcspn(text, "\n")] = '\0';
    snprintf(path, sizeof path, "/sys/block/%s/device/device/current_link_width", disk);
    if (!shore__read_text(path, width, sizeof width)) return out;
    width[strcspn(width, "\n")] = '\0';
    shore__append(out, bytes, ", link %s x%s", shore__shown(text).text, shore__shown(width).text);
    return out;
}

static const char *const kinds[SHORE_WORKS] = {"product",
                                               "product, gradient of input",
                                               "product, of weight",
                                               "attention",
                                               "attention, backward",
                                               "row operations",
                                               "functions",
                                               "calls"};

static void print_rates_of(const char *precision, const char *kind, const struct shore__rates *r, bool bytes) {
    printf("  %s %-27s", precision, kind);
    for (uint32_t i = 0; i < r->n; i++) {
        double rate = r->at[i].per_second;
        if (bytes)
            printf(" %13s/s", shore__format_size((uint64_t)rate).text);
        else
            printf(" %9.4g %s", rate / (rate < 1e12 ? 1e9 : 1e12), rate < 1e12 ? "Gop/s" : "Top/s");
        if (r->at[i].rows) printf(" (%u rows)", r->at[i].rows);
    }
    putchar('\n');
}

static bool are_equal(const struct shore__rates *a, const struct shore__rates *b) {
    bool equal = a->n == b->n;
    for (uint32_t i = 0; equal && i < a->n; i++)
        equal = a->at[i].rows == b->at[i].rows && a->at[i].per_second == b->at[i].per_second;
    return equal;
}

/* One line for kinds that are equally fast. */
static void print_rates(const struct shore_machine *m) {
    for (int p = 0; p < SHORE_PRECISIONS; p++) {
        bool equal = m->rate[0][p].n > 0;
        for (int kind = 0; kind < SHORE_WORK_ROWS; kind++)
            equal = equal && are_equal(&m->rate[0][p], &m->rate[kind][p]);
        if (equal) print_rates_of(shore__precision_names[p], "products and attention", &m->rate[0][p], false);
        for (int kind = equal ? SHORE_WORK_ROWS : 0; kind < SHORE_WORKS; kind++)
            if (m->rate[kind][p].n)
                print_rates_of(shore__precision_names[p], kinds[kind], &m->rate[kind][p], kind == SHORE_WORK_ROWS);
    }
}

/* "reads 2 GiB/s", after a comma. */
static void print_rate(const char *what, double rate) {
    if (rate > 0) printf(", %s %s/s", what, shore__format_size((uint64_t)rate).text);
}

static void print_drive(const struct shore_machine *m, uint32_t i) {
    const struct shore__machine_drive *d = &m->drive[i];
    char name[32], rating[400];
    snprintf(name, sizeof name, "drive %u", i + 1);
    printf("%s%s", *d->path ? shore__shown(d->path).text : name, rated(d->device, rating, sizeof rating));
    if (d->room) printf(", room for %s", shore__format_size(d->room).text);
    if (d->shares) {
        printf(": shares the device of drive %u, and its rates", d->shares);
    } else {
        print_rate("reads", d->read);
        print_rate("writes", d->write);
        print_rate("both at once", d->mixed);
        if (d->flush_seconds > 0) printf(", a flush takes %.2g ms", d->flush_seconds * 1e3);
    }
    if (d->update > 0 && (!d->shares || !d->host_computes))
        printf(", updates %.4g million parameters/s%s", d->update * 1e-6,
               d->host_computes ? " (a thread of this host)" : "");
    putchar('\n');
}

static void print_link(const struct shore_machine *m) {
    const bool any = m->link[0] > 0 || m->link[1] > 0;
    if (any) printf("link");
    print_rate(m->link_shared ? "both ways together" : "to the drives", m->link[0]);
    print_rate("from them", m->link[1]);
    if (any) putchar('\n');
    if (m->forward_seconds > 0 || m->backward_seconds > 0)
        printf("a step computes %.4g s forward, %.4g s backward\n", m->forward_seconds, m->backward_seconds);
}

static void print(const struct shore_machine *m) {
    if (*m->about) printf("%s\n", m->about);
    if (m->scale > 1) printf("rates and capacities divided by %g:\n", m->scale);
    printf("%s", *m->processor ? m->processor : m->name);
    if (m->cores) printf(", %u threads", m->cores);
    if (m->host_memory) printf(", %s of memory", shore__format_size(m->host_memory).text);
    print_rate("copies", m->memory_bandwidth);
    putchar('\n');
    if (m->gpu_memory) printf("GPU with %s", shore__format_size(m->gpu_memory).text);
    if (m->gpu_memory && m->pinned_memory) printf(", %s of pinned memory", shore__format_size(m->pinned_memory).text);
    if (m->gpu_memory) {
        print_rate("to it", m->bus_in);
        print_rate("from it", m->bus_out);
        print_rate("both", m->bus_both);
        putchar('\n');
    }
    print_link(m);
    print_rates(m);
    for (uint32_t i = 0; i < m->ndrives; i++)
        print_drive(m, i);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int write_out(const struct args *a, const struct shore_machine *m, struct shore_diag *diag) {
    char *text = shore_machine_json(m);
    json_error_t error;
    json_t *json = text ? json_loads(text, 0, &error) : NULL;
    int rc = json ? 0 : shore__out_of_memory(diag);
    if (!rc && a->out) rc = shore__json_write(a->out, json, 2, diag);
    free(text);
    if (!rc && a->json) return shore__cli_print_json(json) ? -ECANCELED : 0; /* which is said */
    json_decref(json);
    return rc;
}

static void progress(void *ctx, const char *what) {
    char text[600];
    snprintf(text, sizeof text, "measuring %s", shore__shown(what).text);
    shore__cli_progress(text, true);
}

static int measure(const struct args *a, struct shore_machine **out, struct shore_diag *diag) {
    const struct shore_machine_options how = {.size = sizeof how,
                                              .drives = (const char *const *)a->drives.item,
                                              .ndrives = (uint32_t)a->drives.count,
                                              .stop = shore__cli_stop_wanted,
                                              .progress = progress};
    shore__cli_catch_signals("longshore: stopping\n");
    int rc = shore_machine_measure(&how, out, diag);
    if (!rc) {
        progress(NULL, "computing");
        shore__heap_keep(true); /* as in training with room for it */
        rc = shore__measure_computing(*out, shore__cli_stop_wanted, diag);
    }
    shore__cli_progress_end();
    if (!rc && shore_machine_keep(*out, diag)) shore__cli_say("not kept: %s", diag->text);
    return rc;
}

static bool is_description(const char *path) {
    struct shore_machine *m = NULL;
    bool is = !shore_machine_read(path, &m, NULL);
    shore_machine_free(m);
    return is;
}

/* Before a minute of measuring: whether its result can be written. */
static int check_out(const char *path, struct shore_diag *diag) {
    if (!path) return 0;
    char *copy = strdup(path);
    int rc = !copy ? shore__out_of_memory(diag)
             : access(dirname(copy), W_OK)
                 ? shore__fail_errno(diag, path, "cannot be written")
                 : shore__check_replaced(path, is_description, "description of a machine", diag);
    free(copy);
    return rc;
}

static int find(const struct args *a, const char *name, struct shore_machine **m, struct shore_diag *diag) {
    struct stat st;
    struct shore_diag why;
    int rc = check_out(a->out, diag);
    if (rc) return rc;
    if (name && stat(name, &st) == 0 && S_ISDIR(st.st_mode))
        return shore__fail(diag, SHORE_EUSAGE, "%s is a directory: 'longshore machine --drive %s' measures it", name,
                           name);
    if (name) return shore_machine_read(name, m, diag);
    if (!a->kept) return measure(a, m, diag);
    rc = shore_machine_kept(m, &why);
    if (rc == SHORE_EMISSING && !getenv("LONGSHORE_MACHINE"))
        return shore__fail(diag, rc, "%s: 'longshore machine --drive PATH' measures this machine", why.text);
    if (rc) *diag = why;
    return rc;
}

/* Each description's name, and how its text about it begins, on a line of a terminal. */
static int list(struct shore_diag *diag) {
    const size_t most = 62;
    const char *name;
    int rc = 0;
    for (uint32_t i = 0; !rc && (name = shore_machine_shipped(i)); i++) {
        struct shore_machine *m;
        size_t n = 0;
        if ((rc = shore_machine_read(name, &m, diag))) break;
        for (size_t at = 0; m->about[at] && at <= most; at++)
            if (strchr(",:;.", m->about[at]) && m->about[at + 1] == ' ') n = at;
        printf("%-16s%.*s\n", name, (int)n, m->about);
        shore_machine_free(m);
    }
    return rc;
}

static int run(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const char *name = parsed->positional[0];
    struct shore_machine *m = NULL;
    struct shore_diag diag = {0};
    if ((name != NULL) + (a->drives.count > 0) + a->kept + a->list > 1) {
        shore__fail(&diag, SHORE_EUSAGE, "NAME, --drive, --kept and --list do not go together");
        return shore__cli_fail(SHORE_EUSAGE, &diag);
    }
    int rc = a->list ? list(&diag) : find(a, name, &m, &diag);
    if (a->list) return rc ? shore__cli_fail(rc, &diag) : SHORE__EXIT_DONE;
    if (!rc) rc = write_out(a, m, &diag);
    if (!rc && !a->json) print(m);
    shore_machine_free(m);
    if (rc == -ECANCELED) return SHORE__EXIT_FAILED;
    return rc ? shore__cli_fail(rc, &diag) : SHORE__EXIT_DONE;
}

const struct shore__command_line shore__cli_machine = {
    .command = "machine",
    .remote = true,
    .synopsis = "machine [--drive PATH...] [--json] [--out FILE]\nmachine NAME|FILE [--json]\nmachine --kept | --list",
    .about = "Measures this machine, in at most a minute: computing by kind of product and number of rows, memory, "
             "UPDATE, and\n"
             "of each drive reading, writing, both at once and flushing. Keeps the result, from which plans know time; "
             "with\n"
             "NAME or FILE, shows another machine's description.",
    .notes =
        "It is kept in $XDG_CACHE_HOME/longshore/machine.json or ~/.cache/longshore/machine.json, until it is stale:\n"
        "another processor, number of threads or size of memory, another version of the format, or 90 days. A drive "
        "that\n"
        "was not measured is unknown. LONGSHORE_MACHINE=FILE stands for it, LONGSHORE_MACHINE=none for nothing. A "
        "drive\n"
        "is measured with files that have no name: nothing is left behind, however this ends.",
    SHORE__OPTIONS(options),
    .positional = 1,
    SHORE__RUNS(run, struct args, .json = false),
};
