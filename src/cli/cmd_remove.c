#include "cli/cli.h"

struct args {
    bool itself;
};

static const struct shore__option options[] = {SHORE__NOT_A_COPY(struct args, itself)};

static int remove_run(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const char *path = parsed->positional[0];
    struct shore_diag diag = {0};
    bool begun = false;
    int rc = a->itself ? shore__run_claim(path, &diag) : 0;
    if (!rc) rc = shore__run_remove(path, &begun, shore__cli_note, NULL, &diag);
    if (!rc) return SHORE__EXIT_DONE;
    if (!begun) return shore__cli_fail(rc, &diag);
    shore__cli_fail_running(rc, &diag);
    shore__cli_say("a part of %s is removed already: once that is mended, the same command goes on", path);
    return SHORE__EXIT_FAILED;
}

const struct shore__command_line shore__cli_remove = {
    .command = "remove",
    .remote = true,
    .synopsis = "remove RUN",
    .about = "Deletes a run directory and the volumes of its fleet. A run that is in use is refused; nothing else "
             "is touched.",
    .notes = "A copy of a run's directory has no volumes of its own: it is refused, and deleted like any directory.",
    SHORE__OPTIONS(options),
    .positional = 1,
    .missing = "which run? longshore remove RUN",
    SHORE__RUNS(remove_run, struct args, 0),
};
