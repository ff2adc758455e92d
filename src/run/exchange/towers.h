/* What a multimodal model has beside its text: its tensors, which an export has again as they are. */
#ifndef SHORE_RUN_EXCHANGE_TOWERS_H
#define SHORE_RUN_EXCHANGE_TOWERS_H

#include "longshore/run.h"
#include "model/model.h"

struct shore__towers;
/* Maps the tensors of the directory that the model's text was read from. Memory is the page cache's. */
int shore__towers_open(const char *directory, const struct shore__model *m, struct shore__towers **out,
                       struct shore_diag *diag);
const struct shore_extra *shore__towers_extras(const struct shore__towers *t, uint32_t *n);
void shore__towers_close(struct shore__towers *t);

#endif
