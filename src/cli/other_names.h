/* Names of options in other trainers, so that their users are told the name here. */
#ifndef SHORE_CLI_OTHER_NAMES_H
#define SHORE_CLI_OTHER_NAMES_H

#include <stddef.h>

#include "cli/options.h"

struct shore__other_name {
    const char *names; /* names of flags or keys without leading dashes: "learning-rate|max-lr" ("-l": with one) */
    const char *flag;  /* the name here; NULL: there is nothing to set */
    /* text behind the flag: " bf16"; without a flag, a sentence that explains; with one, may be NULL */
    const char *more;
};

extern const struct shore__other_name shore__other_names[];
extern const size_t shore__other_names_count;

/* The command's answer to this name ('_' may stand for '-', in any case): out, or NULL if no row has it with a flag
 * that the command takes. dashes: "--", or "" in a file of keys. */
const char *shore__other_name_hint(const struct shore__command_line *line, const char *name, const char *dashes,
                                   char *out, size_t bytes);

#endif
