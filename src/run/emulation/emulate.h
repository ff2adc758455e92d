/* The machine that `--emulate` names: from a file that describes it, or a built-in testbed. */
#ifndef SHORE_RUN_EMULATION_EMULATE_H
#define SHORE_RUN_EMULATION_EMULATE_H

#include <jansson.h>

#include "run/emulation/tempo.h"

/* name: a file, or a built-in testbed. Errors suggest known keys and names. Rates are divided by the scale; times are
 * not. */
int shore__emulation_open(const char *name, struct shore__emulation *out, struct shore_diag *diag);
/* The same from a document that was read. name: the file, for messages. */
int shore__emulation_from_json(const json_t *json, const char *name, struct shore__emulation *out,
                               struct shore_diag *diag);

/* Makes a file's name absolute, so that a run finds it from other directories; keeps a testbed's. *name is malloc'ed;
 * NULL stays. */
int shore__emulation_absolute(char **name, struct shore_diag *diag);
/* The document itself, for callers that change it. */
int shore__emulation_json(const char *name, json_t **out, struct shore_diag *diag);

/* The model that `bench testbed` trains there: a GPT-2 of this shape. Refuses a file without one. */
struct shore__emulated_model {
    uint32_t layers, width, inner, heads;
};
int shore__emulated_model(const json_t *json, const char *name, struct shore__emulated_model *out,
                          struct shore_diag *diag);

/* The built-in testbed, as text of its file. */
extern const char shore__smart_infinity[];

#endif
