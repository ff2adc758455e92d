/* Which pages the parameters of a model have, and what memory they take: each layer; the slices of the vocabulary
 * tables; and the tails (what a table's block holds beside the table: learned positions, the final norm). Some stay in
 * memory, the others share a few buffers. Which ones never changes a bit: kernels see the same shapes and layouts.
 */
#ifndef SHORE_PASS_PAGES_H
#define SHORE_PASS_PAGES_H

#include "model/model.h"
#include "plan/program.h"

enum shore__page_kind { SHORE__PAGE_LAYER, SHORE__PAGE_SLICE, SHORE__PAGE_TAIL };
struct shore__page_id {
    enum shore__page_kind kind;
    uint32_t block, slice;
};

/* Pages by number: tails of the first and last block, layers, input slices, output slices if untied. */
uint32_t shore__pages_count(const struct shore__model *m);
struct shore__page_id shore__page_at(const struct shore__model *m, uint32_t number);
uint32_t shore__page_number(const struct shore__model *m, struct shore__page_id id);
/* A block that holds a vocabulary table. */
bool shore__page_block_has_table(const struct shore__model *m, uint32_t block);

/* The segments of its block that a page is fetched as. */
void shore__page_segments(const struct shore__model *m, struct shore__page_id id, uint32_t *segment, uint32_t *count);
/* Those that UPDATE covers with it (a tail without the segment that it shares with the last slice; it may then have
 * nothing of its own). */
void shore__page_range(const struct shore__model *m, struct shore__page_id id, uint32_t *segment, uint32_t *count);
/* mode: of the compute object. */
uint64_t shore__page_bytes(const struct shore__model *m, enum shore__mode mode, struct shore__page_id id);

/* Adds the pages to a program: tensors PAGE, in the order of their numbers, which stay or share LAYER_BUFFER and
 * SLICE_BUFFER, one, or two to fetch ahead; where pages are put that the device does not see (LAYER_THERE, SLICE_THERE,
 * TAIL_THERE); and what products read (PREPARED_LAYER, PREPARED_SLICE, PREPARED_TAIL). */
void shore__pages_describe(const struct shore__model *m, enum shore__mode mode, bool one_memory,
                           struct shore_program *program);

#endif
