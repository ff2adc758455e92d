/* What `--emulate` names: a file that describes a machine, or the testbed that comes with the program. */
#ifndef SHORE_RUN_EMULATION_EMULATE_H
#define SHORE_RUN_EMULATION_EMULATE_H

#include <jansson.h>

#include "run/emulation/tempo.h"

/* name: a file, or a built-in testbed. "Did you mean" for unknown keys and names. Rates come out divided by the scale;
 * times as they are. */
int shore__emulation_open(const char *name, struct shore__emulation *out, struct shore_diag *diag);
/* The same from a document that has been read; name: the file, for messages. */
int shore__emulation_from_json(const json_t *json, const char *name, struct shore__emulation *out,
                               struct shore_diag *diag);

/* A file's name becomes absolute, so that a run finds it from other directories; a testbed's stays. *name is malloc'ed,
 * NULL stays. */
int shore__emulation_absolute(char **name, struct shore_diag *diag);
/* The document itself, for a caller that changes it. */
int shore__emulation_json(const char *name, json_t **out, struct shore_diag *diag);

/* The model that `bench testbed` trains there: a GPT-2 of this shape. Refuses a file without. */
struct shore__emulated_model {
    uint32_t layers, width, inner, heads;
};
int shore__emulated_model(const json_t *json, const char *name, struct shore__emulated_model *out,
                          struct shore_diag *diag);

/* The built-in testbed, as the text of its file. */
extern const char shore__smart_infinity[];

#endif
