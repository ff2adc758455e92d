/* Generation over pages that are open already, in memory that is lent.
 */
#ifndef SHORE_INFER_GENERATE_H
#define SHORE_INFER_GENERATE_H

#include "infer/infer.h"
#include "pass/parameters.h"

/* As shore__generate(), with the pages set to their step and `bytes` of memory; the context is as long as a table of
 * positions and the memory allow, then generation stops. */
int shore__generate_in(struct shore__parameters *parameters, const struct shore__model *m, struct shore__compute *c,
                       struct shore__stream *stream, struct shore__both memory, uint64_t bytes, const uint32_t *prompt,
                       size_t nprompt, const struct shore__sampling *sampling, int (*emit)(void *ctx, uint32_t token),
                       void *ctx, struct shore_diag *diag);

#endif
