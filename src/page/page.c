/* The API of report.h: pages of runs, and their file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/diag.h"
#include "base/sized.h"
#include "base/units.h"
#include "files/atomic.h"
#include "files/read_file.h"
#include "longshore/report.h"
#include "page/page.h"

#define BEGINNING "<!DOCTYPE html>\n<!-- a report of Longshore -->\n"

static const char style[] =
#include "page/style.inc"
    ;

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const char *last_part(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    return path + n;
}

/* The directory's name, or the path as it was given where two have one name. */
static void name_runs(struct shore__told *t, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        t[i].name = last_part(t[i].path);
        for (uint32_t k = 0; k < n; k++)
            if (k != i && strcmp(last_part(t[k].path), last_part(t[i].path)) == 0) t[i].name = t[i].path;
    }
}

static int refuse_twice(const struct shore__told *t, uint32_t n, struct shore_diag *diag) {
    struct stat a, b;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++)
            if (stat(t[i].path, &a) == 0 && stat(t[k].path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
                return shore__fail(diag, SHORE_EUSAGE, "%s: is given twice", t[i].path);
    return 0;
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

static void put_head(struct shore__page *p, const struct shore__told *t, uint32_t n) {
    char now[32];
    time_t seconds = time(NULL);
    struct tm tm;
    strftime(now, sizeof now, "%F %H:%M", localtime_r(&seconds, &tm));
    shore__page_put(p, BEGINNING "<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                                 "content=\"width=device-width, initial-scale=1\"><title>");
    for (uint32_t i = 0; i < n && i < 4; i++) {
        if (i) shore__page_put(p, ", ");
        shore__page_say(p, t[i].name);
    }
    shore__page_put(p, "%s</title><style>%s</style></head><body><main>", n > 4 ? " and others" : "", style);
    shore__page_put(p, "<p class=\"made\">Longshore, %s</p>", now);
}

static void put_what(struct shore__page *p, const struct shore__told *t) {
    shore__page_put(p, "<p class=\"what\">");
    shore__page_say(p, t->what);
    shore__page_put(p, " · step %s", shore__format_count(t->steps).text);
    if (t->steps_wanted) shore__page_put(p, " of %s", shore__format_count(t->steps_wanted).text);
    if (t->in_use) shore__page_put(p, " · <b>in use</b>");
    if (strcmp(t->name, t->path) != 0) shore__page_put(p, " · "), shore__page_say(p, t->path);
    shore__page_put(p, "</p>");
}

/* Of runs beside one another: neighbours differ most. */
static uint32_t colour_of(uint32_t run) {
    static const uint32_t order[] = {0, 6, 2, 4, 5, 1, 7, 3};
    return run / 8 * 8 + order[run % 8];
}

static void put_table(struct shore__page *p, const struct shore__told *t, uint32_t n) {
    shore__page_put(p, "<div class=\"wide\"><table><thead><tr><th>run</th><th>step</th><th>loss</th><th>validation</th>"
                       "<th>a step</th><th>tokens/s</th><th>memory</th></tr></thead>");
    for (uint32_t i = 0; i < n; i++) {
        double seconds = t[i].usual.of[SHORE__TOLD_STEP_SECONDS];
        shore__page_put(p, "<tr><th>");
        shore__figure_key(p, colour_of(i), NULL);
        shore__page_put(p, "<a href=\"#run%u\">", i);
        shore__page_say(p, t[i].name);
        shore__page_put(p, "</a></th><td>%s</td>", shore__format_count(t[i].steps).text);
        shore__page_cell(p, t[i].last_loss, shore__say_loss);
        shore__page_cell(p, t[i].val_loss, shore__say_loss);
        shore__page_cell(p, seconds, shore__format_seconds);
        shore__page_cell(p, seconds > 0 ? t[i].usual.of[SHORE__TOLD_TOKENS] / seconds : 0, shore__format_number);
        shore__page_cell(p, t[i].resident_bytes, shore__say_bytes);
        shore__page_put(p, "</tr>");
    }
    shore__page_put(p, "</table></div>");
}

/* Losses and throughputs of all runs. Those of tokens are compared where each run counts tokens. */
static void put_together(struct shore__page *p, const struct shore__told *t, uint32_t n) {
    struct shore__series loss[SHORE_REPORT_RUNS_MOST], val[SHORE_REPORT_RUNS_MOST], rate[SHORE_REPORT_RUNS_MOST];
    bool tokens = true, validated = false;
    for (uint32_t i = 0; i < n; i++) {
        tokens &= t[i].tokens_rate.count > 0 || !t[i].timed;
        validated |= t[i].val.count > 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        loss[i] = (struct shore__series){&t[i].loss, t[i].name, colour_of(i), .dots = false};
        val[i] = (struct shore__series){&t[i].val, t[i].name, colour_of(i), .dots = true};
        rate[i] = (struct shore__series){tokens ? &t[i].tokens_rate : &t[i].steps_rate, t[i].name, colour_of(i),
                                         .dots = false};
    }
    shore__page_put(p, "<h1>%u runs</h1>", n);
    put_table(p, t, n);
    shore__page_put(p, "<div class=\"pair\">");
    shore__figure_chart(p, "Loss", "nats a token, by step", loss, n, false);
    if (validated) shore__figure_chart(p, "Validation loss", "nats a token, by step", val, n, false);
    shore__figure_chart(p, "Throughput", tokens ? "tokens a second, by step" : "steps a second, by step", rate, n,
                        true);
    shore__page_put(p, "</div>");
}

static int write_page(const struct shore__told *t, uint32_t n, double tbw_bytes, char **html, size_t *bytes,
                      struct shore_diag *diag) {
    struct shore__page p = {0};
    put_head(&p, t, n);
    if (n > 1) put_together(&p, t, n);
    for (uint32_t i = 0; i < n; i++) {
        shore__page_put(&p, "<article id=\"run%u\"><h%u>", i, n > 1 ? 2 : 1);
        shore__page_say(&p, t[i].name);
        shore__page_put(&p, "</h%u>", n > 1 ? 2 : 1);
        put_what(&p, &t[i]);
        shore__page_run(&p, &t[i], tbw_bytes);
        shore__page_put(&p, "</article>");
    }
    shore__page_put(&p, "</main></body></html>\n");
    if (p.failed) return free(p.text), shore__out_of_memory(diag);
    *html = p.text;
    *bytes = p.bytes;
    return 0;
}

int shore_report_html(const char *const *runs, uint32_t nruns, const struct shore_report_options *given, char **html,
                      size_t *bytes, struct shore_diag *diag) {
    enum { POINTS = 600, POINTS_LEAST = 64 }; /* of a curve */
    struct shore_report_options options = {.size = sizeof options};
    struct shore__told *t = NULL;
    uint32_t points = nruns ? POINTS * 4 / (nruns + 3) / 2 * 2 : 0, n = 0;
    int rc = given ? shore__sized_in(&options, sizeof options, given, "shore_report_options", diag) : 0;
    *html = NULL;
    if (!rc && (!nruns || nruns > SHORE_REPORT_RUNS_MOST))
        return shore__fail(diag, SHORE_EUSAGE, "a report is of 1 to %u runs, and not of %u", SHORE_REPORT_RUNS_MOST,
                           nruns);
    if (!rc && !(t = calloc(nruns, sizeof *t))) rc = shore__out_of_memory(diag);
    for (; !rc && n < nruns; n++)
        rc = shore__told_read(runs[n], points < POINTS_LEAST ? POINTS_LEAST : points, &t[n], diag);
    if (!rc) rc = refuse_twice(t, n, diag);
    if (!rc) name_runs(t, n);
    if (!rc) rc = write_page(t, n, (double)options.tbw_bytes, html, bytes, diag);
    for (uint32_t i = 0; i < n; i++)
        shore__told_free(&t[i]);
    free(t);
    return rc;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static bool is_report(const char *path) {
    return shore__file_begins(path, BEGINNING);
}

int shore_report_save(const char *html, size_t bytes, const char *path, struct shore_diag *diag) {
    struct shore__atomic file = {.fd = -1};
    int rc = shore__check_replaced(path, is_report, "report", diag);
    if (!rc) rc = shore__atomic_open(path, &file, diag);
    if (!rc) rc = shore__write_at(file.fd, html, bytes, 0, path, diag);
    if (!rc) rc = shore__atomic_commit(&file, diag);
    shore__atomic_abort(&file);
    return rc;
}
