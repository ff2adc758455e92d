/* The machine that `--emulate` names, from a file that describes it. */
#ifndef SHORE_RUN_EMULATION_EMULATE_H
#define SHORE_RUN_EMULATION_EMULATE_H

#include <jansson.h>

#include "run/emulation/tempo.h"

/* Errors suggest known keys. Rates are divided by the scale; times are not. */
int shore__emulation_open(const char *name, struct shore__emulation *out, struct shore_diag *diag);
/* The same from a document that was read. name: the file, for messages. */
int shore__emulation_from_json(const json_t *json, const char *name, struct shore__emulation *out,
                               struct shore_diag *diag);

/* Makes a file's name absolute, so that a run finds it from other directories. *name is malloc'ed; NULL stays. */
int shore__emulation_absolute(char **name, struct shore_diag *diag);

#endif
