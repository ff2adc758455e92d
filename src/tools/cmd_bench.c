#include <string.h>

#include "cli/cli.h"

int shore__cli_bench(int argc, char **argv) {
    static const struct shore__subcommand benches[] = {
        {"update", &shore__bench_update,
         "parameters that UPDATE reads, computes and writes a second on these drives, commit included",
         "--drive PATH... [--params N] [--json]", NULL},
        {"disk", &shore__bench_disk,
         "bytes a second that the drive itself moves in the same pattern, without computing",
         "--drive PATH... [--json]", NULL},
        {"gather", &shore__bench_gather,
         "bytes over the link and time of random rows of a table, in whole pages and gathered",
         "--drive PATH... [--size SIZE] [--json]", NULL},
        {"compute", &shore__bench_compute, "rates of the matrix products of a model, as bf16 and as fp32", "[--json]",
         NULL},
    };
    static const struct shore__group group = {
        .all = benches,
        .count = sizeof benches / sizeof benches[0],
        .word = "bench",
        .what = "benchmark",
        .otherwise = "there are update, disk, gather and compute",
        .ask = "bench what? update, disk, gather or compute",
        .last = "'longshore bench update --help' lists its flags.",
    };
    if (argc > 0 && (strcmp(argv[0], "drive") == 0 || strcmp(argv[0], "drives") == 0)) {
        shore__cli_say("unknown benchmark '%s': 'longshore drive bench' measures the drives of a run", argv[0]);
        return SHORE__EXIT_USAGE;
    }
    return shore__cli_group(&group, argc, argv);
}
