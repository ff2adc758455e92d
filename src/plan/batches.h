/* The memory of passes: rows for a batch of sequences that goes through the layers, and for one sequence that is
 * continued token by token.
 */
#ifndef SHORE_PLAN_BATCHES_H
#define SHORE_PLAN_BATCHES_H

#include "model/model.h"
#include "plan/regions.h"

/* A batch of sequences in units: what one product covers, if the batch is as large. */
struct shore__batch_shape {
    size_t sequences, seq_len, rows, unit_rows, units;
};
struct shore__batch_shape shore__batch_shape(size_t sequences, size_t seq_len);
struct shore__shapes shore__batch_shapes(const struct shore__model *m, const struct shore__batch_shape *b,
                                         bool backward);

/* Rows TOKENS to ROTARY but for X; INNER and LOGITS are of one unit. */
void shore__batch_add(const struct shore__model *m, enum shore__mode mode, const struct shore__batch_shape *b,
                      struct shore__region_list *rows);

#define SHORE__PROMPT_ROWS 64u /* of a prompt that go through the layers together */

/* Positions of the cache for so many tokens: a table of positions has an end, rotary ones go on. */
size_t shore__generate_positions(const struct shore__model *m, size_t tokens);
/* Rows TOKENS, X, NORMED, STATS, INNER, LOGITS, ROTARY and CACHE for so many positions. */
void shore__generate_add(const struct shore__model *m, enum shore__mode mode, size_t positions,
                         struct shore__region_list *rows);
/* Keys, or values, of one layer. */
uint64_t shore__generate_cache_bytes(const struct shore__model *m, enum shore__mode mode, size_t positions);
/* The sum of those rows. */
uint64_t shore__generate_bytes(const struct shore__model *m, enum shore__mode mode, size_t positions);

#endif
