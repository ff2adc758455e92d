/* What other trainers call things, so that who comes from one of them is told what it is here. */
#ifndef SHORE_CLI_OTHER_NAMES_H
#define SHORE_CLI_OTHER_NAMES_H

#include <stddef.h>

#include "cli/options.h"

struct shore__other_name {
    const char *names; /* "learning-rate|max-lr": of flags or keys, without leading dashes ("-l": with one) */
    const char *flag;  /* what it is here; NULL: there is nothing to set */
    const char *more;  /* behind the flag: " bf16"; without a flag a sentence of what is so; may be NULL with one */
};

extern const struct shore__other_name shore__other_names[];
extern const size_t shore__other_names_count;

/* What the command answers to this name ('_' for '-' is taken, of any case): out, or NULL if it is in no row whose flag
 * the command takes. dashes: "--", or "" in a file of keys. */
const char *shore__other_name_hint(const struct shore__command_line *line, const char *name, const char *dashes,
                                   char *out, size_t bytes);

#endif
