#include "cli/cli.h"
#include "longshore/trace.h"

struct args {
    char *out;
};

static const struct shore__option options[] = {
    SHORE__OPTION(struct args, TEXT, "out", out, "FILE", "the file to write; it replaces a trace alone", .letter = 'o'),
};

static int trace(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    struct shore_diag diag = {0};
    struct shore_trace_written w = {.size = sizeof w};
    int rc = a->out ? shore_trace_export(parsed->positional[0], a->out, &w, &diag)
                    : shore__fail(&diag, SHORE_EUSAGE, "where to? Give -o FILE");
    if (rc) return shore__cli_fail(rc, &diag);
    if (w.merged)
        shore__cli_say("its steps had too many spans: %llu are shown as part of others, with the gaps between them",
                       (unsigned long long)w.merged);
    printf("steps %llu to %llu in %s\n", (unsigned long long)w.first_step, (unsigned long long)w.last_step,
           shore__shown(a->out).text);
    return SHORE__EXIT_DONE;
}

const struct shore__command_line shore__cli_trace = {
    .command = "trace",
    .synopsis = "trace RUN -o FILE",
    .about =
        "Writes what worked when in the last steps of a run that is trained with --trace N, in Chrome's trace format:\n"
        "open FILE at https://ui.perfetto.dev, or in chrome://tracing. The run may be in use.",
    .notes = "One lane has the steps, and what their time went to; each drive has lanes for what it did meanwhile.",
    SHORE__OPTIONS(options),
    .positional = 1,
    .missing = "which run? longshore trace RUN -o FILE",
    SHORE__RUNS(trace, struct args, .out = NULL),
};
