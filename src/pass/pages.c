#include "pass/pages.h"

#include "longshore/plan.h"
#include "pass/row_tensor.h"

static uint32_t first_side(const struct shore__model *m) {
    return 2 + m->arch.n_layer + m->nslices * (m->arch.tied ? 1 : 2);
}

uint32_t shore__pages_count(const struct shore__model *m) {
    return first_side(m) + m->nblocks - 1 - shore__model_head(m);
}

struct shore__page_id shore__page_at(const struct shore__model *m, uint32_t number) {
    if (number >= first_side(m))
        return (struct shore__page_id){SHORE__PAGE_SIDE, shore__model_head(m) + 1 + number - first_side(m), 0};
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
    if (id.kind == SHORE__PAGE_SIDE) return first_side(m) + id.block - 1 - shore__model_head(m);
    return 2 + m->arch.n_layer + (id.block ? m->nslices : 0) + id.slice;
}

bool shore__page_block_has_table(const struct shore__model *m, uint32_t block) {
    return block == 0 || (block == shore__model_head(m) && !m->arch.tied);
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

/* The group of buffers that pages of a kind share. */
static uint32_t group_of(enum shore__page_kind kind) {
    static const uint32_t groups[] = {[SHORE__PAGE_LAYER] = SHORE__GROUP_LAYERS,
                                      [SHORE__PAGE_SLICE] = SHORE__GROUP_SLICES,
                                      [SHORE__PAGE_TAIL] = 0,
                                      [SHORE__PAGE_SIDE] = SHORE__GROUP_SIDES};
    return groups[kind];
}

static void add_buffers(struct shore_program *program, enum shore__row key, uint32_t index, enum shore_place place,
                        uint32_t group) {
    struct shore_tensor buffers = shore__row_tensor(key, index, place, 0);
    buffers.buffers = true;
    buffers.group = group;
    buffers.least = 1;
    buffers.most = 2;
    buffers.there = place == SHORE_PLACE_DEVICE;
    shore_program_tensor(program, &buffers);
}

/* The largest of blocks [from, to). */
static uint64_t prepared_most(const struct shore__model *m, enum shore__mode mode, uint32_t from, uint32_t to) {
    uint64_t most = 0;
    for (uint32_t b = from; b < to; b++)
        if (shore__prepared_bytes(m, b, mode) > most) most = shore__prepared_bytes(m, b, mode);
    return most;
}

void shore__pages_describe(const struct shore__facts *f, struct shore_program *program) {
    const struct shore__model *m = f->model;
    enum shore__mode mode = f->mode;
    for (uint32_t i = 0; i < shore__pages_count(m); i++) {
        struct shore__page_id id = shore__page_at(m, i);
        struct shore_tensor page =
            shore__row_tensor(SHORE__ROW_PAGE, i, SHORE_PLACE_PINNED, shore__page_bytes(m, mode, id));
        page.ways = id.kind == SHORE__PAGE_TAIL ? 0 : SHORE_WAY_KEEP | SHORE_WAY_MOVE;
        if (f->gathers && id.kind == SHORE__PAGE_SLICE && !id.block) page.ways = SHORE_WAY_MOVE; /* samples read them */
        page.group = group_of(id.kind);
        shore_program_tensor(program, &page);
    }
    add_buffers(program, SHORE__ROW_LAYER_BUFFER, 0, SHORE_PLACE_PINNED, SHORE__GROUP_LAYERS);
    add_buffers(program, SHORE__ROW_SLICE_BUFFER, 0, SHORE_PLACE_PINNED, SHORE__GROUP_SLICES);
    const uint32_t head = shore__model_head(m), sides = m->nblocks - 1 - head;
    if (sides) add_buffers(program, SHORE__ROW_SIDE_BUFFER, 0, SHORE_PLACE_PINNED, SHORE__GROUP_SIDES);
    for (uint32_t i = 0; i < 2 && !f->one_memory; i++)
        shore__row_add(program, SHORE__ROW_TAIL_THERE, i, SHORE_PLACE_DEVICE,
                       shore__page_bytes(m, mode, shore__page_at(m, i)));
    for (uint32_t i = 0; i < 2 && !f->one_memory; i++) { /* one is copied while the other is computed with */
        add_buffers(program, SHORE__ROW_LAYER_THERE, i, SHORE_PLACE_DEVICE, SHORE__GROUP_LAYERS);
        add_buffers(program, SHORE__ROW_SLICE_THERE, i, SHORE_PLACE_DEVICE, SHORE__GROUP_SLICES);
        if (sides) add_buffers(program, SHORE__ROW_SIDE_THERE, i, SHORE_PLACE_DEVICE, SHORE__GROUP_SIDES);
    }
    shore__row_add(program, SHORE__ROW_PREPARED_LAYER, 0, SHORE_PLACE_DEVICE, prepared_most(m, mode, 1, head));
    shore__row_add(program, SHORE__ROW_PREPARED_SLICE, 0, SHORE_PLACE_DEVICE, shore__slice_prepared_bytes(m, mode));
    for (uint32_t i = 0; i < 2; i++)
        shore__row_add(program, SHORE__ROW_PREPARED_TAIL, i, SHORE_PLACE_DEVICE,
                       shore__prepared_bytes(m, i ? head : 0, mode));
    if (sides)
        shore__row_add(program, SHORE__ROW_PREPARED_SIDE, 0, SHORE_PLACE_DEVICE,
                       prepared_most(m, mode, head + 1, m->nblocks));
}
