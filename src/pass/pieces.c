#include "pass/pieces.h"

static uint32_t first_slice(const struct shore__model *m) {
    return m->arch.n_layer + 1;
}

static uint32_t end_of_slices(const struct shore__model *m) {
    return first_slice(m) + m->nslices * (m->arch.tied ? 1 : 2);
}

/* Whether a block's table rests, and its tail is trained. */
static bool trains_beside(const struct shore__model *m, uint32_t block) {
    return shore__model_rests(m, block) && m->blocks[block].side;
}

uint32_t shore__pieces_count(const struct shore__model *m) {
    return end_of_slices(m) + trains_beside(m, 0);
}

uint32_t shore__piece_of_tail(const struct shore__model *m, uint32_t block) {
    return block ? m->arch.n_layer : end_of_slices(m);
}

uint32_t shore__piece_of_slice(const struct shore__model *m, uint32_t block, uint32_t slice) {
    return first_slice(m) + (block ? m->nslices : 0) + slice;
}

static struct shore__page_id page_of(const struct shore__model *m, uint32_t number) {
    uint32_t head = shore__model_head(m), slice = number - first_slice(m);
    if (number >= first_slice(m) && number < end_of_slices(m)) {
        bool out = slice >= m->nslices;
        return (struct shore__page_id){SHORE__PAGE_SLICE, out ? head : 0, slice - (out ? m->nslices : 0)};
    }
    uint32_t block = number < m->arch.n_layer ? number + 1 : number == m->arch.n_layer ? head : 0;
    if (trains_beside(m, block)) return (struct shore__page_id){SHORE__PAGE_SIDE, m->blocks[block].side, 0};
    return (struct shore__page_id){block == head ? SHORE__PAGE_TAIL : SHORE__PAGE_LAYER, block, 0};
}

struct shore__piece shore__piece_at(const struct shore__model *m, uint32_t number) {
    struct shore__piece p = {.page = page_of(m, number)};
    shore__page_range(m, p.page, &p.segment, &p.count);
    if (p.page.kind == SHORE__PAGE_SLICE && p.page.slice + 1 == m->nslices)
        p.count = m->layout->blocks[p.page.block].segments - p.segment;
    bool with_slice = p.page.kind == SHORE__PAGE_TAIL && shore__page_block_has_table(m, p.page.block);
    if (with_slice || shore__model_rests(m, p.page.block)) p.count = 0;
    return p;
}
