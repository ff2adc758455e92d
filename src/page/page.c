/* The API of report.h: pages of runs, and their file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/diag.h"
#include "base/sized.h"
#include "base/units.h"
#include "files/atomic.h"
#include "files/read_file.h"
#include "longshore/report.h"
#include "page/page.h"

#define BEGINNING "<!DOCTYPE html>\n<!-- a report of Longshore -->\n"

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
    shore__page_put(p, "%s</title>", n > 4 ? " and others" : "");
    shore__page_style(p);
    shore__page_put(p, "</head><body><main>");
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

static void put_table(struct shore__page *p, const struct shore__told *t, uint32_t n) {
    shore__page_put(p, "<div class=\"wide\"><table><thead><tr><th>run</th><th>step</th><th>loss</th><th>validation</th>"
                       "<th>a step</th><th>tokens/s</th><th>memory</th></tr></thead>");
    for (uint32_t i = 0; i < n; i++) {
        double seconds = t[i].usual.of[SHORE__TOLD_STEP_SECONDS];
        shore__page_put(p, "<tr><th>");
        shore__figure_key(p, shore__together_colour(i), NULL);
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

/* Losses and throughputs of all runs. */
static void put_together(struct shore__page *p, const struct shore__told *t, uint32_t n) {
    struct shore__chart charts[SHORE__CHARTS];
    shore__page_put(p, "<h1>%u runs</h1>", n);
    put_table(p, t, n);
    shore__page_put(p, "<div class=\"pair\">");
    uint32_t count = shore__together_charts(t, n, charts);
    for (uint32_t i = 0; i < count; i++)
        shore__figure_chart(p, charts[i].title, charts[i].about, charts[i].series, n, charts[i].zero);
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
    struct shore_report_options options = {.size = sizeof options};
    struct shore__told *t = NULL;
    int rc = given ? shore__sized_in(&options, sizeof options, given, "shore_report_options", diag) : 0;
    *html = NULL;
    if (!rc) rc = shore__together_read(runs, nruns, &t, diag);
    if (!rc) rc = write_page(t, nruns, (double)options.tbw_bytes, html, bytes, diag);
    shore__together_free(t, nruns);
    return rc;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static bool is_report(const char *path) {
    return shore__file_begins(path, BEGINNING);
}

int shore__page_save(const char *text, size_t bytes, const char *path, bool (*is_kind)(const char *path),
                     const char *kind, struct shore_diag *diag) {
    struct shore__atomic file = {.fd = -1};
    int rc = shore__check_replaced(path, is_kind, kind, diag);
    if (!rc) rc = shore__atomic_open(path, &file, diag);
    if (!rc) rc = shore__write_at(file.fd, text, bytes, 0, path, diag);
    if (!rc) rc = shore__atomic_commit(&file, diag);
    shore__atomic_abort(&file);
    return rc;
}

int shore_report_save(const char *html, size_t bytes, const char *path, struct shore_diag *diag) {
    return shore__page_save(html, bytes, path, is_report, "report", diag);
}
