/* Memory of forward and backward passes: rows for a batch of sequences that goes through the layers, and rows for one
 * sequence that is continued token by token. */
#ifndef SHORE_PASS_BATCHES_H
#define SHORE_PASS_BATCHES_H

#include "longshore/plan.h"
#include "model/model.h"
#include "pass/row_keys.h"
#include "plan/regions.h"

/* A batch of sequences, divided into units. A unit is what one product covers, if the batch is that large. */
struct shore__batch_shape {
    size_t sequences, seq_len, rows, unit_rows, units;
};
struct shore__batch_shape shore__batch_shape(size_t sequences, size_t seq_len);
struct shore__shapes shore__batch_shapes(const struct shore__model *m, const struct shore__batch_shape *b,
                                         bool backward);

/* Adds rows TOKENS to ROTARY, except X, to a program. INNER and LOGITS have the size of one unit. */
void shore__batch_describe(const struct shore__model *m, enum shore__mode mode, const struct shore__batch_shape *b,
                           struct shore_program *program);

#define SHORE__PROMPT_ROWS 64u /* of a prompt that go through the layers together */

/* Positions that the cache needs for so many tokens. Learned positions end with their table; rotary ones do not. */
size_t shore__generate_positions(const struct shore__model *m, size_t prompt, size_t tokens);
/* Bytes of the keys, or of the values, of one layer. */
uint64_t shore__generate_cache_bytes(const struct shore__model *m, enum shore__mode mode, size_t positions);
/* Opens rows TOKENS, X, NORMED, STATS, INNER, LOGITS, ROTARY and CACHE for so many positions, laid out in one stretch;
 * the caller closes them. Returns their bytes, or UINT64_MAX if there is no memory for the list. */
uint64_t shore__generate_rows(const struct shore__model *m, enum shore__mode mode, size_t positions,
                              struct shore__region_list *rows);
uint64_t shore__generate_bytes(const struct shore__model *m, enum shore__mode mode, size_t positions);
/* The largest number of positions, from least to most, whose rows take at most so many bytes. A result below `least`
 * means that none fits. */
size_t shore__generate_positions_within(const struct shore__model *m, enum shore__mode mode, size_t least, size_t most,
                                        uint64_t bytes);

#endif
