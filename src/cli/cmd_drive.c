#include "cli/cli.h"

int shore__cli_drive(int argc, char **argv) {
    static const struct shore__subcommand commands[] = {
        {"list", &shore__cli_drive_list, "the drives of a run: shares, sizes, what they hold", "RUN [--json]", NULL},
        {"add", NULL, "spread a run's state over more drives", "RUN DRIVE...", shore__cli_drive_add},
        {"remove", NULL, "take drives out of a run", "RUN DRIVE...", shore__cli_drive_remove},
        {"move", NULL, "replace drives of a run by others", "RUN OLD=NEW...", shore__cli_drive_move},
        {"bench", &shore__cli_drive_bench, "how fast drives are, and what shares of a run they would get",
         "DIR... [--json]", NULL},
        {"serve", &shore__cli_drive_serve, "serve drives of this host to training elsewhere",
         "--stdio | --listen SOCKET", NULL},
    };
    static const struct shore__group group = {
        .all = commands,
        .count = sizeof commands / sizeof commands[0],
        .word = "drive",
        .what = "drive command",
        .otherwise = "there are list, add, remove, move, bench, serve",
        .ask = "drive what? There are list, add, remove, move, bench, serve",
        .last = "'longshore drive list --help' lists the flags of one.",
    };
    return shore__cli_group(&group, argc, argv);
}
