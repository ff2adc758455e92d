/* Pages of a model's parameters, and the memory they take. Each layer is a page. So is each slice of the vocabulary
 * tables, each tail (the rest of a table's block: learned positions, the final norm), and each side block. Some pages
 * stay in memory, the others share a few buffers. The choice never changes a bit: kernels see the same shapes and
 * layouts. */
#ifndef SHORE_PASS_PAGES_H
#define SHORE_PASS_PAGES_H

#include "pass/facts.h"
#include "pass/row_keys.h"
#include "plan/program.h"

enum shore__page_kind { SHORE__PAGE_LAYER, SHORE__PAGE_SLICE, SHORE__PAGE_TAIL, SHORE__PAGE_SIDE };
struct shore__page_id {
    enum shore__page_kind kind;
    uint32_t block, slice;
};

/* Pages by number: the tails of the first and the last block, layers, input slices, output slices if
 * untied, and side blocks. */
uint32_t shore__pages_count(const struct shore__model *m);
struct shore__page_id shore__page_at(const struct shore__model *m, uint32_t number);
uint32_t shore__page_number(const struct shore__model *m, struct shore__page_id id);
/* Whether the block holds a vocabulary table. */
bool shore__page_block_has_table(const struct shore__model *m, uint32_t block);

/* The segments of its block that are fetched for the page. */
void shore__page_segments(const struct shore__model *m, struct shore__page_id id, uint32_t *segment, uint32_t *count);
/* The segments of its block that are updated with the page. A tail leaves out the segment that it shares with the last
 * slice, and may then have none. */
void shore__page_range(const struct shore__model *m, struct shore__page_id id, uint32_t *segment, uint32_t *count);
/* mode: the compute object's. */
uint64_t shore__page_bytes(const struct shore__model *m, enum shore__mode mode, struct shore__page_id id);

/* Adds the pages to a program. Tensors PAGE, in the order of their numbers, stay in memory or share LAYER_BUFFER,
 * SLICE_BUFFER and SIDE_BUFFER: one each, or two to prefetch. LAYER_THERE and so on hold copies for a device that does
 * not see the host's memory. PREPARED_LAYER and so on hold the form that products read. */
void shore__pages_describe(const struct shore__facts *f, struct shore_program *program);

#endif
