#include <stdlib.h>

#include "cli/cli.h"
#include "longshore/report.h"

struct args {
    char *out;
    uint64_t tbw_bytes;
};

#define OPTION(...) SHORE__OPTION(struct args, __VA_ARGS__)
static const struct shore__option options[] = {
    OPTION(TEXT, "out", out, "FILE", "where the page goes, in place of a report alone; otherwise report.html",
           .letter = 'o'),
    SHORE__TBW_OPTION(struct args, tbw_bytes),
};

static int report(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const char *out = a->out ? a->out : "report.html";
    const struct shore_report_options how = {.size = sizeof how, .tbw_bytes = a->tbw_bytes};
    struct shore_diag diag = {0};
    char *html = NULL;
    size_t bytes = 0;
    const uint32_t n = parsed->words;
    int rc = shore__cli_check_tbw(a->tbw_bytes, &diag);
    if (!rc) rc = shore_report_html(parsed->positional, n, &how, &html, &bytes, &diag);
    if (!rc) rc = shore_report_save(html, bytes, out, &diag);
    free(html);
    if (rc) return shore__cli_fail(rc, &diag);
    printf("%s: %u run%s, %s\n", shore__shown(out).text, n, n == 1 ? "" : "s", shore__format_size(bytes).text);
    return SHORE__EXIT_DONE;
}

const struct shore__command_line shore__cli_report = {
    .command = "report",
    .synopsis = "report RUN... [-o report.html] [--tbw SIZE]",
    .about =
        "Writes one HTML page about runs: loss, throughput, where a step's time goes, memory, bytes and wear, the "
        "plan\n"
        "against the truth, and what to buy. Several runs are compared. The page needs no network and no other file.",
    .notes = "It reads RUN/metrics.jsonl and RUN/plan.json, also while the run trains.",
    SHORE__OPTIONS(options),
    .positional = SHORE__WORDS_MAX,
    .missing = "which run? longshore report RUN",
    SHORE__RUNS(report, struct args, 0),
};
