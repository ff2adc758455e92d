/* Names of options in other trainers, so that their users are told the name here. */
#ifndef SHORE_CLI_OTHER_NAMES_H
#define SHORE_CLI_OTHER_NAMES_H

#include <stddef.h>

#include "cli/options.h"

/* The text of other_names.txt, which says what its lines mean. */
extern const char shore__other_names[];

/* The command's answer to this name ('_' may stand for '-', in any case): out, or NULL if there is none with a flag
 * that the command takes. dashes: "--", or "" in a file of keys. */
const char *shore__other_name_hint(const struct shore__command_line *line, const char *name, const char *dashes,
                                   char *out, size_t room);

#endif
