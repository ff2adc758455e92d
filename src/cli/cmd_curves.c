#include <stdlib.h>

#include "cli/cli.h"
#include "page/page.h"

struct args {
    char *out;
};

static const struct shore__option options[] = {
    SHORE__OPTION(struct args, TEXT, "out", out, "FILE",
                  "where the drawing goes, in place of such a drawing alone; otherwise curves.svg", .letter = 'o'),
};

static int curves(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const char *out = a->out ? a->out : "curves.svg";
    struct shore_diag diag = {0};
    char *svg = NULL;
    size_t bytes = 0;
    const uint32_t n = parsed->words;
    int rc = shore__curves_make(parsed->positional, n, &svg, &bytes, &diag);
    if (!rc) rc = shore__curves_save(svg, bytes, out, &diag);
    free(svg);
    if (rc) return shore__cli_fail(rc, &diag);
    printf("%s: %u run%s, %s\n", shore__shown(out).text, n, n == 1 ? "" : "s", shore__format_size(bytes).text);
    return SHORE__EXIT_DONE;
}

const struct shore__command_line shore__cli_curves = {
    .command = "curves",
    .synopsis = "curves RUN... [-o curves.svg]",
    .about =
        "Draws losses, validation losses and throughputs of runs beside one another, as one SVG that needs nothing\n"
        "else, in the reader's light or dark colours.",
    .notes = "It reads RUN/metrics.jsonl, also while the run trains. 'longshore report' says more of each run.",
    SHORE__OPTIONS(options),
    .positional = SHORE__WORDS_MAX,
    .missing = "which run? longshore curves RUN",
    SHORE__RUNS(curves, struct args, 0),
};
