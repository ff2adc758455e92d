/* Generation over pages that are open already, in memory that is lent.
 */
#ifndef SHORE_INFER_GENERATE_H
#define SHORE_INFER_GENERATE_H

#include "infer/pager.h"

/* Tokens of prompt and continuation that `bytes` of memory are enough for (capped at most), and what `positions` take.
 */
uint64_t shore__generate_bytes(const struct shore__model *m, enum shore__mode mode, size_t positions);

/* Positions of the cache for so many tokens: a table of positions has an end, rotary ones go on. */
size_t shore__generate_positions(const struct shore__model *m, size_t tokens);

/* As shore__generate(), with the pager set to its step and memory of `bytes` from `memory`; the context is as long as
 * a table of positions and the memory allow, then generation stops. */
int shore__generate_in(struct shore__pager *pager, const struct shore__model *m, struct shore__compute *c,
                       struct shore__carve *memory, uint64_t bytes, const uint32_t *prompt, size_t nprompt,
                       const struct shore__sampling *sampling, int (*emit)(void *ctx, uint32_t token), void *ctx,
                       struct shore_diag *diag);

#endif
