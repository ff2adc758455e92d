/* The memory of passes: rows for a batch of sequences that goes through the layers, and for one sequence that is
 * continued token by token.
 */
#ifndef SHORE_PASS_BATCHES_H
#define SHORE_PASS_BATCHES_H

#include "longshore/plan.h"
#include "model/model.h"
#include "plan/regions.h"

/* A batch of sequences in units: what one product covers, if the batch is as large. */
struct shore__batch_shape {
    size_t sequences, seq_len, rows, unit_rows, units;
};
struct shore__batch_shape shore__batch_shape(size_t sequences, size_t seq_len);
struct shore__shapes shore__batch_shapes(const struct shore__model *m, const struct shore__batch_shape *b,
                                         bool backward);

/* Adds rows TOKENS to ROTARY but for X to a program; INNER and LOGITS are of one unit. */
void shore__batch_describe(const struct shore__model *m, enum shore__mode mode, const struct shore__batch_shape *b,
                           struct shore_program *program);

#define SHORE__PROMPT_ROWS 64u /* of a prompt that go through the layers together */

/* Positions of the cache for so many tokens: a table of positions has an end, rotary ones go on. */
size_t shore__generate_positions(const struct shore__model *m, size_t tokens);
/* Keys, or values, of one layer. */
uint64_t shore__generate_cache_bytes(const struct shore__model *m, enum shore__mode mode, size_t positions);
/* Rows TOKENS, X, NORMED, STATS, INNER, LOGITS, ROTARY and CACHE for so many positions, laid out in one stretch (opened
 * here; the caller closes them); returns its bytes, or UINT64_MAX where there is no memory for rows. */
uint64_t shore__generate_rows(const struct shore__model *m, enum shore__mode mode, size_t positions,
                              struct shore__region_list *rows);
uint64_t shore__generate_bytes(const struct shore__model *m, enum shore__mode mode, size_t positions);
/* The most positions, from least to most, whose rows take no more than that; less than `least`: there are none. */
size_t shore__generate_positions_within(const struct shore__model *m, enum shore__mode mode, size_t least, size_t most,
                                        uint64_t bytes);

#endif
