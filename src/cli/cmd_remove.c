#include "cli/cli.h"

int shore__cli_remove(int argc, char **argv) {
    struct args {
        bool itself;
    } a = {0};
    static const struct shore__option options[] = {SHORE__NOT_A_COPY(struct args, itself)};
    static const struct shore__command_line line = {
        .command = "remove",
        .remote = true,
        .synopsis = "remove RUN",
        .about = "Deletes a run directory and the volumes of its fleet. A run that is in use is refused; nothing else "
                 "is touched.",
        .notes =
            "A copy of a run's directory has no volumes of its own: it is refused, and deleted like any directory.",
        .options = options,
        .noptions = sizeof options / sizeof options[0],
        .positional = 1,
    };
    struct shore__parsed parsed;
    struct shore_diag diag = {0};
    bool begun = false;
    int rc = 0, code;
    if (!shore__cli_begin(&line, argc, argv, &a, &parsed, "which run? longshore remove RUN", &code)) return code;
    if (a.itself) rc = shore__run_claim(parsed.positional[0], &diag);
    if (!rc) rc = shore__run_remove(parsed.positional[0], &begun, shore__cli_note, NULL, &diag);
    if (!rc) return SHORE__EXIT_DONE;
    if (!begun) return shore__cli_fail(rc, &diag);
    shore__cli_fail_running(rc, &diag);
    shore__cli_say("a part of %s is removed already: once that is mended, the same command goes on",
                   parsed.positional[0]);
    return SHORE__EXIT_FAILED;
}
