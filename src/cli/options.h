/* Command-line options from a table: parses them, reads the same keys from a JSON file, and prints the help with
 * defaults. */
#ifndef SHORE_CLI_OPTIONS_H
#define SHORE_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"
#include "run/value.h"

struct shore__option {
    const char *name;  /* without the dashes; of kind NONE: a title in the help */
    size_t offset;     /* in the target */
    const char *value; /* name of the value in the help; choices name themselves */
    const char *help;  /* the default from the target is added where it tells something */
    struct shore__value is;
    char letter; /* "-o FILE" for "--out FILE"; 0: none */
};

/* Rows of a table. target: the struct that the table fills. More fields may follow, for example .is.least = 1. */
#define SHORE__HEADING(title) \
    { .name = title }
#define SHORE__OPTION(target, type, flag, field, word, ...)                                             \
    {                                                                                                   \
        .name = flag, .offset = offsetof(target, field), .value = word, .is.kind = SHORE__VALUE_##type, \
        .is.bytes = sizeof(((target *)0)->field), .help = __VA_ARGS__                                   \
    }
#define SHORE__CHOICE(target, flag, field, words, text) \
    SHORE__OPTION(target, CHOICE, flag, field, NULL, text, .is.choices = words)

/* A table, as a command takes it. */
#define SHORE__OPTIONS(table) .options = table, .noptions = sizeof(table) / sizeof((table)[0])

/* Options of commands that remove volumes or restore them. */
#define SHORE__NOT_A_COPY(target, field)                                                           \
    SHORE__OPTION(target, FLAG, "not-a-copy", field, NULL,                                         \
                  "RUN is the run itself and no copy, though it was moved here from another file " \
                  "system, or put back: its volumes are its own")

#define SHORE__OPTIONS_MAX 96
#define SHORE__REMOTE_OPTIONS 3
#define SHORE__WORDS_MAX 256 /* plain words of a command */

/* How a command works: its function, its arguments' struct, and their defaults. */
#define SHORE__RUNS(function, type, ...)                                     \
    .run = function, .args_bytes = sizeof(type), .defaults = &(const type) { \
        __VA_ARGS__                                                          \
    }

struct shore__parsed;
struct shore__command_line {
    const char *command;  /* "train" */
    const char *synopsis; /* lines of usage, each without "longshore " */
    const char *about;    /* what the command does */
    const char *notes;    /* after the options; may be NULL */
    const char *missing;  /* the message if there is no word; NULL: no word is needed */
    const struct shore__option *options;
    size_t noptions;
    const char *without; /* names of options that the command does not take, with blanks between; may be NULL */
    size_t positional;   /* the largest number of plain words */
    bool config;         /* takes --config FILE */
    bool remote;         /* drives may be on other hosts or devices: takes --rsh, --connections and --opencl */
    int (*run)(const struct shore__parsed *parsed, void *args); /* returns the exit code */
    const void *defaults;                                       /* args_bytes of them */
    size_t args_bytes;
};

/* Source of a value: the command line takes precedence over the file. */
enum shore__given { SHORE__GIVEN_NOT, SHORE__GIVEN_CONFIG, SHORE__GIVEN };

struct shore__parsed {
    unsigned char given[SHORE__OPTIONS_MAX];      /* by index into the table */
    const char *positional[SHORE__WORDS_MAX + 1]; /* NULL behind the last */
    uint32_t words;                               /* how many */
    bool remote_given[SHORE__REMOTE_OPTIONS];
    bool help;
};

/* Fills target, which holds the defaults, from argv[0 .. argc). SHORE_EUSAGE says what is wrong, with "did you mean"
 * for unknown names. With --help, everything else is ignored. target owns its texts and lists. */
int shore__options_parse(const struct shore__command_line *line, int argc, char **argv, void *target,
                         struct shore__parsed *parsed, struct shore_diag *diag);
/* Frees the texts and lists that target owns. */
void shore__options_free(const struct shore__command_line *line, void *target);
/* command_line.c. Index of an option by name ('_' may stand for '-'), or -1. */
int shore__option_find(const struct shore__command_line *line, const char *name);
/* Whether the command takes the option. */
bool shore__option_taken(const struct shore__command_line *line, const struct shore__option *option);
bool shore__option_given(const struct shore__command_line *line, const struct shore__parsed *parsed, const char *name);

/* Options of commands with `remote`. They are kept in this process's environment, and nowhere else. */
extern const struct shore__option shore__remote_options[SHORE__REMOTE_OPTIONS];

#endif
