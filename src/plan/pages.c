#include "plan/pages.h"

uint32_t shore__pages_count(const struct shore__model *m) {
    return 2 + m->arch.n_layer + m->nslices * (m->arch.tied ? 1 : 2);
}

struct shore__page_id shore__page_at(const struct shore__model *m, uint32_t number) {
    if (number < 2) return (struct shore__page_id){SHORE__PAGE_TAIL, number ? shore__model_head(m) : 0, 0};
    number -= 2;
    if (number < m->arch.n_layer) return (struct shore__page_id){SHORE__PAGE_LAYER, number + 1, 0};
    number -= m->arch.n_layer;
    if (number < m->nslices) return (struct shore__page_id){SHORE__PAGE_SLICE, 0, number};
    return (struct shore__page_id){SHORE__PAGE_SLICE, shore__model_head(m), number - m->nslices};
}

uint32_t shore__page_number(const struct shore__model *m, struct shore__page_id id) {
    if (id.kind == SHORE__PAGE_TAIL) return id.block ? 1 : 0;
    if (id.kind == SHORE__PAGE_LAYER) return 1 + id.block;
    return 2 + m->arch.n_layer + (id.block ? m->nslices : 0) + id.slice;
}

bool shore__page_block_has_table(const struct shore__model *m, uint32_t block) {
    return block == 0 || (block == shore__model_head(m) && !m->arch.tied);
}

bool shore__page_stays(const struct shore__model *m, const struct shore__residency *r, struct shore__page_id id) {
    switch (id.kind) {
    case SHORE__PAGE_TAIL:
        return true;
    case SHORE__PAGE_LAYER:
        return id.block <= r->layers;
    default:
        return id.slice < (id.block == shore__model_table_block(m) ? r->table_slices : r->input_slices);
    }
}

void shore__page_segments(const struct shore__model *m, struct shore__page_id id, uint32_t *segment, uint32_t *count) {
    if (id.kind == SHORE__PAGE_SLICE) {
        struct shore__slice s = shore__model_slice(m, id.slice);
        *segment = s.segment;
        *count = s.segments;
    } else {
        *segment = m->blocks[id.block].tail_segment;
        *count = m->blocks[id.block].tail_segments;
    }
}

void shore__page_range(const struct shore__model *m, struct shore__page_id id, uint32_t *segment, uint32_t *count) {
    shore__page_segments(m, id, segment, count);
    if (id.kind != SHORE__PAGE_TAIL || !shore__page_block_has_table(m, id.block) || !*count) return;
    struct shore__slice last = shore__model_slice(m, m->nslices - 1);
    if (last.segment + last.segments > *segment) {
        uint32_t shared = last.segment + last.segments - *segment;
        *segment += shared;
        *count -= shared;
    }
}

uint64_t shore__page_bytes(const struct shore__model *m, enum shore__mode mode, struct shore__page_id id) {
    uint32_t first, count;
    shore__page_segments(m, id, &first, &count);
    return shore__arena_round((uint64_t)count * SHORE_SEGMENT_ELEMS * (mode == SHORE__F32 ? 4 : 2));
}

/* Where pages are put for the device: as many of each kind as are fetched, so that one is put while another is computed
 * with. */
static void add_there(const struct shore__model *m, enum shore__mode mode, const struct shore__residency *r,
                      struct shore__region_list *rows) {
    uint64_t most[2] = {0, 0};
    for (uint32_t i = 0; i < shore__pages_count(m); i++) {
        struct shore__page_id id = shore__page_at(m, i);
        uint64_t bytes = shore__page_bytes(m, mode, id);
        if (id.kind == SHORE__PAGE_TAIL)
            shore__regions_add_always(rows, SHORE__ROW_TAIL_THERE, i, SHORE__REGION_DEVICE, bytes);
        else if (bytes > most[id.kind])
            most[id.kind] = bytes;
    }
    for (uint32_t b = 0; b < r->buffers; b++) {
        shore__regions_add_always(rows, SHORE__ROW_LAYER_THERE, b, SHORE__REGION_DEVICE, most[SHORE__PAGE_LAYER]);
        shore__regions_add_always(rows, SHORE__ROW_SLICE_THERE, b, SHORE__REGION_DEVICE, most[SHORE__PAGE_SLICE]);
    }
}

void shore__pages_add(const struct shore__model *m, enum shore__mode mode, const struct shore__residency *r,
                      struct shore__region_list *rows) {
    uint64_t largest[2] = {0, 0}; /* of the layers, and of the slices, that share buffers */
    for (uint32_t i = 0; i < shore__pages_count(m); i++) {
        struct shore__page_id id = shore__page_at(m, i);
        uint64_t bytes = shore__page_bytes(m, mode, id);
        if (shore__page_stays(m, r, id))
            shore__regions_add_always(rows, SHORE__ROW_PAGE, i, SHORE__REGION_PINNED, bytes);
        else if (bytes > largest[id.kind])
            largest[id.kind] = bytes;
    }
    for (uint32_t b = 0; b < r->buffers; b++)
        shore__regions_add_always(rows, SHORE__ROW_LAYER_BUFFER, b, SHORE__REGION_PINNED, largest[SHORE__PAGE_LAYER]);
    for (uint32_t b = 0; b < r->buffers; b++)
        shore__regions_add_always(rows, SHORE__ROW_SLICE_BUFFER, b, SHORE__REGION_PINNED, largest[SHORE__PAGE_SLICE]);
    if (!rows->one_memory) add_there(m, mode, r, rows);
    shore__regions_add_always(rows, SHORE__ROW_PREPARED_LAYER, 0, SHORE__REGION_DEVICE,
                              shore__prepared_bytes(m, 1, mode));
    shore__regions_add_always(rows, SHORE__ROW_PREPARED_SLICE, 0, SHORE__REGION_DEVICE,
                              shore__slice_prepared_bytes(m, mode));
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t block = i ? shore__model_head(m) : 0;
        shore__regions_add_always(rows, SHORE__ROW_PREPARED_TAIL, i, SHORE__REGION_DEVICE,
                                  shore__prepared_bytes(m, block, mode));
    }
}
