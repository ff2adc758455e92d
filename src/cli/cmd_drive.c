#include <string.h>

#include "base/suggest.h"
#include "cli/cli.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *synopsis, *summary;
} commands[] = {
    {"list", shore__cli_drive_list, "RUN [--json]", "the drives of a run: shares, sizes, what they hold"},
    {"add", shore__cli_drive_add, "RUN DRIVE...", "spread a run's state over more drives"},
    {"remove", shore__cli_drive_remove, "RUN DRIVE...", "take drives out of a run"},
    {"move", shore__cli_drive_move, "RUN OLD=NEW...", "replace drives of a run by others"},
    {"bench", shore__cli_drive_bench, "DIR... [--json]",
     "how fast drives are, and what shares of a run they would get"},
    {"serve", shore__cli_drive_serve, "--stdio | --listen SOCKET", "serve drives of this host to training elsewhere"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void overview(void) {
    for (size_t i = 0; i < COMMANDS; i++)
        printf("%s longshore drive %s %s\n", i ? "      " : "usage:", commands[i].name, commands[i].synopsis);
    putchar('\n');
    for (size_t i = 0; i < COMMANDS; i++)
        printf("  %-9s %s\n", commands[i].name, commands[i].summary);
    printf("\n'longshore drive %s --help' lists the flags of one.\n", commands[0].name);
}

int shore__cli_drive(int argc, char **argv) {
    const char *names[COMMANDS];
    char list[256] = "", escaped[128];
    size_t used = 0;
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        overview();
        return SHORE__EXIT_DONE;
    }
    for (size_t i = 0; i < COMMANDS; i++) {
        names[i] = commands[i].name;
        if (argc > 0 && strcmp(argv[0], names[i]) == 0) return commands[i].run(argc - 1, argv + 1);
        if (used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    }
    if (argc < 1) {
        shore__cli_say("drive what? There are %s", list);
        return SHORE__EXIT_USAGE;
    }
    const char *near = shore__suggest(argv[0], names, COMMANDS);
    shore__escape(argv[0], strlen(argv[0]), escaped, sizeof escaped);
    if (near)
        shore__cli_say("unknown drive command '%s': did you mean %s?", escaped, near);
    else
        shore__cli_say("unknown drive command '%s': there are %s", escaped, list);
    return SHORE__EXIT_USAGE;
}
