/* Which pages the parameters of a model have, and what memory they take: each layer; the slices of the vocabulary
 * tables; and the tails (what a table's block holds beside the table: learned positions, the final norm). Some stay in
 * memory, the others share a few buffers. Which ones never changes a bit: kernels see the same shapes and layouts.
 */
#ifndef SHORE_PLAN_PAGES_H
#define SHORE_PLAN_PAGES_H

#include "model/model.h"
#include "plan/regions.h"

struct shore__residency {
    size_t layers;       /* layers 1 .. layers stay */
    size_t table_slices; /* of the output table (the only one if tied) */
    size_t input_slices; /* of the input table, if untied */
    size_t buffers;      /* for the others, of each kind: 1, or 2 to fetch ahead */
};

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

bool shore__page_stays(const struct shore__model *m, const struct shore__residency *r, struct shore__page_id id);
/* The segments of its block that a page is fetched as. */
void shore__page_segments(const struct shore__model *m, struct shore__page_id id, uint32_t *segment, uint32_t *count);
/* Those that UPDATE covers with it (a tail without the segment that it shares with the last slice; it may then have
 * nothing of its own). */
void shore__page_range(const struct shore__model *m, struct shore__page_id id, uint32_t *segment, uint32_t *count);
/* mode: of the compute object. */
uint64_t shore__page_bytes(const struct shore__model *m, enum shore__mode mode, struct shore__page_id id);

/* Rows PAGE (by number, of those that stay), LAYER_BUFFER and SLICE_BUFFER (of the others); where
 * pages are put that the device does not see: LAYER_THERE and SLICE_THERE 0 .. buffers - 1, TAIL_THERE 0 and 1;
 * and what products read: PREPARED_LAYER, PREPARED_SLICE, PREPARED_TAIL 0 and 1. */
void shore__pages_add(const struct shore__model *m, enum shore__mode mode, const struct shore__residency *r,
                      struct shore__region_list *rows);

#endif
