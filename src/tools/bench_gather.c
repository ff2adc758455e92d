#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/prng.h"
#include "cli/clean_text.h"
#include "drive/counters.h"
#include "drive/fleet/fleet_rows.h"
#include "drive/row_functions.h"
#include "longshore/table.h"
#include "run/emulation/tempo.h"
#include "tools/bench.h"

#define ROW_BYTES_LEAST 64u
#define ROW_BYTES_MOST 16384u
#define POINTS 9u /* from the one to the other, doubling */
#define PAGE SHORE__IO_ALIGN
#define SEED 57u

struct args {
    struct shore__strings drives;
    uint64_t size_bytes;
    uint32_t share, passes;
    char *emulate;
    enum shore_io io;
    bool overwrite, json, quiet;
};

#define OPTION(...) SHORE__OPTION(struct args, __VA_ARGS__)
#define CHOICE(...) SHORE__CHOICE(struct args, __VA_ARGS__)
static const struct shore__option options[] = {
    OPTION(LIST, "drive", drives, "PATH...", "directories, devices or ram:; a temporary volume on each"),
    OPTION(SIZE, "size", size_bytes, "SIZE", "of the table, whatever its rows; otherwise 256 MiB",
           .is.least = 1u << 20),
    OPTION(WHOLE, "share", share, "N", "as many rows are asked for as are in 1/N of it", .is.least = 1,
           .is.most = 65536),
    OPTION(WHOLE, "passes", passes, "N", "of each way, in turn; the median counts", .is.least = 1, .is.most = 1000),
    OPTION(TEXT, "emulate", emulate, "FILE", "take as long as the machine would that FILE describes"),
    CHOICE("io", io, "auto|uring|threads|buffered", "how drives are read and written"),
    OPTION(FLAG, "overwrite", overwrite, NULL, "use a device although something is on it (it is lost)"),
    OPTION(FLAG, "json", json, NULL, "one JSON object on one line"),
    OPTION(FLAG, "quiet", quiet, NULL, "no progress"),
};

/* Requests of rows of one size. [0]: whole pages, of which the host picks the rows; [1]: gathered. */
struct point {
    uint32_t row_bytes, rows, requests, distinct_rows, pages;
    uint64_t page_reads, link_bytes[2];
    double seconds[2];
};

struct bench {
    const struct args *args;
    struct shore__addresses places;
    struct shore__tempo *tempo;
    struct shore_table *table;
    uint64_t bytes; /* of the table */
    uint32_t *row;
    unsigned char *out[2], *pages;
    uint32_t *page; /* distinct ones, ascending */
    struct point point[POINTS];
};

static int fill(struct bench *b, struct shore_diag *diag) {
    const uint64_t stripe = SHORE__SCRATCH_STRIPE_BYTES;
    uint64_t *data = shore__arena_alloc(NULL, stripe);
    int rc = data ? 0 : shore__out_of_memory(diag);
    for (uint64_t at = 0; !rc && at < b->bytes; at += stripe) {
        unsigned char seal[16];
        struct shore_wait wait;
        for (uint64_t i = 0; i < stripe / sizeof *data; i++)
            data[i] = (at + i) * UINT64_C(0x9E3779B97F4A7C15);
        shore_wait_init(&wait);
        rc = shore_fleet_scratch_put(shore_table_fleet(b->table), at, stripe, data, seal, shore_wait_completion(&wait));
        rc = rc ? shore__fail(diag, rc, "the table cannot be filled: %s", shore_error_text(rc))
                : shore_wait(&wait, diag);
        if (!rc && shore__cli_work(b->args->quiet ? NULL : (void *)"filling the table", at, b->bytes))
            rc = shore__fail(diag, -ECANCELED, "stopped");
    }
    shore__arena_free(NULL, data);
    return rc;
}

static void draw_rows(struct bench *b, struct point *p) {
    for (uint32_t i = 0; i < p->requests; i++)
        b->row[i] = (uint32_t)(shore__random_unit(SEED, p->row_bytes, i) * p->rows);
    memcpy(b->page, b->row, p->requests * sizeof *b->page);
    p->distinct_rows = shore__sort_once(b->page, p->requests);
}

/* As a host does that knows its table: each page once, pages that follow each other at once, all under way together. */
static int read_pages(struct bench *b, struct point *p, struct shore_diag *diag) {
    const uint32_t each = p->row_bytes > PAGE ? p->row_bytes / PAGE : 1;
    struct shore_wait wait;
    unsigned char seal[16] = {0};
    uint32_t n = 0;
    int rc = 0;
    for (uint32_t i = 0; i < p->requests; i++)
        for (uint32_t k = 0; k < each; k++)
            b->page[n++] = (uint32_t)((uint64_t)b->row[i] * p->row_bytes / PAGE) + k;
    p->pages = shore__sort_once(b->page, n);
    shore_wait_init(&wait);
    for (uint32_t at = 0; !rc && at < p->pages; at += n) {
        for (n = 1; at + n < p->pages && b->page[at + n] == b->page[at] + n; n++) {
        }
        shore_wait_add(&wait);
        rc = shore_fleet_scratch_get(shore_table_fleet(b->table), (uint64_t)b->page[at] * PAGE, (uint64_t)n * PAGE,
                                     b->pages + (uint64_t)at * PAGE, seal, shore_wait_completion(&wait));
        if (rc) shore_wait_end(&wait, rc);
    }
    shore_wait_end(&wait, 0);
    int all = shore_wait(&wait, diag);
    if (all && all != SHORE_ECORRUPT) return all; /* the seals of these extents are not known */
    for (uint32_t i = 0; i < p->requests; i++) {
        uint64_t from = (uint64_t)b->row[i] * p->row_bytes;
        const uint32_t *there = shore__find_sorted(b->page, p->pages, (uint32_t)(from / PAGE));
        memcpy(b->out[0] + (uint64_t)i * p->row_bytes, b->pages + (uint64_t)(there - b->page) * PAGE + from % PAGE,
               p->row_bytes);
    }
    return 0;
}

static int gather(struct bench *b, struct point *p, struct shore_diag *diag) {
    struct shore_wait wait;
    const struct shore__scratch_rows rows = {.function = SHORE__GATHER_SCRATCH,
                                             .bytes = p->row_bytes,
                                             .per_stripe = shore__rows_per_stripe(p->row_bytes),
                                             .row = b->row,
                                             .count = p->requests,
                                             .values = b->out[1]};
    shore_wait_init(&wait);
    int rc = shore__fleet_scratch_rows(shore_table_fleet(b->table), &rows, shore_wait_completion(&wait));
    return rc ? shore__fail(diag, rc, "rows cannot be gathered: %s", shore_error_text(rc)) : shore_wait(&wait, diag);
}

static int measure_point(struct bench *b, struct point *p, struct shore_diag *diag) {
    static int (*const way[2])(struct bench * b, struct point * p, struct shore_diag * diag) = {read_pages, gather};
    double *seconds = calloc(2 * b->args->passes, sizeof *seconds);
    int rc = seconds ? 0 : shore__out_of_memory(diag);
    draw_rows(b, p);
    for (uint32_t i = 0; !rc && i < 2 * b->args->passes; i++) {
        struct shore_ledger before = {.size = sizeof before}, after = before;
        const uint64_t start = shore__now_ns();
        shore_fleet_ledger(shore_table_fleet(b->table), &before);
        rc = way[i % 2](b, p, diag);
        seconds[i % 2 * b->args->passes + i / 2] = (double)(shore__now_ns() - start) * 1e-9;
        shore_fleet_ledger(shore_table_fleet(b->table), &after);
        p->link_bytes[i % 2] =
            after.link_activations - before.link_activations + after.link_control - before.link_control;
        p->page_reads = (after.drive_read_scratch - before.drive_read_scratch) / PAGE;
        if (!rc && shore__cli_stop_wanted()) rc = shore__fail(diag, -ECANCELED, "stopped");
    }
    for (int w = 0; !rc && w < 2; w++)
        p->seconds[w] = shore__median(seconds + w * b->args->passes, b->args->passes);
    free(seconds);
    if (!rc && memcmp(b->out[0], b->out[1], (uint64_t)p->requests * p->row_bytes) != 0)
        rc = shore__fail(diag, SHORE_ECORRUPT, "gathered rows are other bytes than those of their pages");
    return rc;
}

static int measure(struct bench *b, struct shore_diag *diag) {
    const uint64_t most = b->bytes / ROW_BYTES_LEAST / b->args->share + 1;
    b->row = malloc(most * sizeof *b->row);
    b->page = malloc((most + b->bytes / PAGE) * sizeof *b->page);
    for (int w = 0; w < 2; w++)
        b->out[w] = shore__arena_alloc(NULL, b->bytes / b->args->share + ROW_BYTES_MOST);
    b->pages = shore__arena_alloc(NULL, b->bytes);
    if (!b->row || !b->page || !b->out[0] || !b->out[1] || !b->pages) return shore__out_of_memory(diag);
    int rc = 0;
    for (uint32_t i = 0; !rc && i < POINTS; i++) {
        struct point *p = &b->point[i];
        p->row_bytes = ROW_BYTES_LEAST << i;
        p->rows = (uint32_t)(b->bytes / p->row_bytes);
        p->requests = p->rows / b->args->share ? p->rows / b->args->share : 1;
        rc = measure_point(b, p, diag);
    }
    return rc;
}

static int print_json(const struct bench *b) {
    char describe[512] = "";
    shore_fleet_drive_describe(shore_table_fleet(b->table), 0, describe, sizeof describe);
    json_t *o = json_object(), *points = json_array();
    for (uint32_t i = 0; i < POINTS; i++) {
        const struct point *p = &b->point[i];
        json_t *j = json_object();
        json_object_set_new(j, "row_bytes", json_integer(p->row_bytes));
        json_object_set_new(j, "rows", json_integer(p->rows));
        json_object_set_new(j, "requests", json_integer(p->requests));
        json_object_set_new(j, "distinct_rows", json_integer(p->distinct_rows));
        json_object_set_new(j, "distinct_pages", json_integer(p->pages));
        json_object_set_new(j, "page_reads", json_integer((json_int_t)p->page_reads));
        json_object_set_new(j, "pages_link_bytes", json_integer((json_int_t)p->link_bytes[0]));
        json_object_set_new(j, "gathered_link_bytes", json_integer((json_int_t)p->link_bytes[1]));
        json_object_set_new(j, "pages_seconds", json_real(p->seconds[0]));
        json_object_set_new(j, "gathered_seconds", json_real(p->seconds[1]));
        json_array_append_new(points, j);
    }
    json_object_set_new(o, "table_bytes", json_integer((json_int_t)b->bytes));
    json_object_set_new(o, "passes", json_integer(b->args->passes));
    json_object_set_new(o, "points", points);
    json_object_set_new(o, "drives", json_integer(shore__fleet_info(shore_table_fleet(b->table)).ndrives));
    json_object_set_new(o, "emulated", json_boolean(b->tempo));
    json_object_set_new(o, "drive", shore__clean_json(describe, strlen(describe)));
    return shore__cli_print_json(o);
}

static int print(const struct bench *b) {
    if (b->args->json) return print_json(b);
    if (b->tempo) {
        const struct shore_machine *e = shore__tempo_machine(b->tempo);
        printf("emulated: times are those of %s, rates divided by %g\n", e->name, e->scale);
    }
    printf("rows of a table of %s, one in %u asked for: the host reads their pages and picks, or the drives gather\n",
           shore__format_size(b->bytes).text, b->args->share);
    printf("%9s %9s %9s %11s %11s %11s %6s %9s %9s %6s\n", "row", "requests", "pages", "page reads", "link, pages",
           "gathered", "ratio", "pages, s", "gather, s", "ratio");
    for (uint32_t i = 0; i < POINTS; i++) {
        const struct point *p = &b->point[i];
        printf("%9u %9u %9u %11" PRIu64 " %11s %11s %6.2f %9.4f %9.4f %6.2f\n", p->row_bytes, p->requests, p->pages,
               p->page_reads, shore__format_size(p->link_bytes[0]).text, shore__format_size(p->link_bytes[1]).text,
               (double)p->link_bytes[0] / (double)p->link_bytes[1], p->seconds[0], p->seconds[1],
               p->seconds[0] / p->seconds[1]);
    }
    return SHORE__EXIT_DONE;
}

static int run(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    struct bench b = {.args = a, .bytes = a->size_bytes ? a->size_bytes : UINT64_C(256) << 20};
    struct shore_diag diag = {0};
    b.bytes = b.bytes / SHORE__SCRATCH_STRIPE_BYTES * SHORE__SCRATCH_STRIPE_BYTES;
    shore__cli_catch_signals("longshore: stopping and removing the volume\n");
    int rc = shore__bench_places(&a->drives, "gather", &b.places, &diag);
    if (!rc) rc = shore__tempo_open(a->emulate, &b.places, &b.tempo, &diag);
    const struct shore_table_options table = {.size = sizeof table,
                                              .drives = b.places.text,
                                              .ndrives = (uint32_t)b.places.count,
                                              .rows = b.bytes / ROW_BYTES_LEAST,
                                              .columns = ROW_BYTES_LEAST,
                                              .drive_speeds = shore__tempo_speeds(b.tempo),
                                              .io = a->io,
                                              .overwrite = a->overwrite,
                                              .note = shore__cli_note};
    if (!rc) rc = shore_table_create(&table, &b.table, &diag);
    const bool created = b.table;
    if (!rc) rc = fill(&b, &diag);
    if (!rc) shore__fleet_set_gate(shore_table_fleet(b.table), shore__tempo_gate(b.tempo));
    shore__cli_progress_end();
    if (!rc) rc = measure(&b, &diag);
    int code = rc == -ECANCELED ? SHORE__EXIT_FAILED
               : !rc            ? print(&b)
               : created        ? shore__cli_fail_running(rc, &diag)
                                : shore__cli_fail(rc, &diag);
    shore_table_close(b.table);
    if (created) shore__bench_remove(&b.places);
    shore__addresses_free(&b.places);
    shore__tempo_close(b.tempo);
    shore__arena_free(NULL, b.out[0]);
    shore__arena_free(NULL, b.out[1]);
    shore__arena_free(NULL, b.pages);
    free(b.row);
    free(b.page);
    return code;
}

const struct shore__command_line shore__bench_gather = {
    .command = "bench gather",
    .remote = true,
    .synopsis = "bench gather --drive PATH... [--size SIZE] [--share N] [--json]",
    .about = "Makes a temporary table, and asks for random rows of 64 bytes to 16 KiB in two ways: the host reads the "
             "pages that\n"
             "they lie in, each once, and picks the rows; or the drives gather them and send the rows alone. Both give "
             "the same\n"
             "bytes. Rows of 4 KiB or more gain nothing by it. The volumes are removed afterwards.",
    SHORE__OPTIONS(options),
    SHORE__RUNS(run, struct args, .share = 16, .passes = 3),
};
