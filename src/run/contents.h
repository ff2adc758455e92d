/* Contents of a run that another program made: its tensors, and what that program has stored in the run. */
#ifndef SHORE_RUN_CONTENTS_H
#define SHORE_RUN_CONTENTS_H

#include <jansson.h>

#include "longshore/run.h"
#include "model/model.h"

struct shore__contents {
    struct shore_layout *layout;
    struct shore_shape *shapes; /* in the order of their first tensors */
    uint32_t nshapes;
    json_t *program; /* an object with a "name" */
    char *program_text;
};

/* Makes contents from a program's description, which is checked: SHORE_EINPUT. Copies everything. */
int shore__contents_make(const struct shore_layout *layout, const struct shore_shape *shapes, uint32_t nshapes,
                         const char *program, struct shore__contents **out, struct shore_diag *diag);
/* Makes contents for one of our models: the tensors of Hugging Face's files, without a program. */
enum shore__model_part { SHORE__WHOLE_MODEL, SHORE__BASE_ALONE, SHORE__ADAPTERS_ALONE };
int shore__contents_of_model(const struct shore__model *m, enum shore__model_part part, bool fp32,
                             struct shore__contents **out, struct shore_diag *diag);
void shore__contents_free(struct shore__contents *c); /* NULL is allowed */
/* Elements of the longest row of a tensor that is stored transposed; at least 1. */
uint64_t shore__contents_widest_row(const struct shore__contents *c);

/* Replaces the program's object. */
int shore__contents_take_program(struct shore__contents *c, const char *text, struct shore_diag *diag);
const char *shore__contents_maker(const struct shore__contents *c);
/* Whether the PyTorch package made the run: its plans and budgets are of memory beside what Python has imported. */
bool shore__contents_of_package(const struct shore__contents *c);
/* Whether the package's budget is of the process, and not only of what its engine holds. */
bool shore__contents_of_process(const struct shore__contents *c);

/* Writes "blocks" of run.json. NULL: out of memory. */
json_t *shore__contents_to_json(const struct shore__contents *c);
/* name: the file, for messages. */
int shore__contents_from_json(const json_t *blocks, const json_t *program, const char *name,
                              struct shore__contents **out, struct shore_diag *diag);

#endif
