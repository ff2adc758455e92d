#include "near/gradient.h"

#include <string.h>

#include "number/bf16.h"

_Static_assert(SHORE__SPARSE_SEGMENT == SHORE_SEGMENT_ELEMS, "a code is one segment's");

static int open_code(const struct shore__gradient *g, uint32_t segment, struct shore__sparse_reader *out) {
    const uint32_t *offsets = g->update->offsets;
    uint32_t begin = offsets[segment], end = offsets[segment + 1];
    const unsigned char *codes = g->update->gradient;
    return end < begin ? SHORE_ECORRUPT : shore__sparse_open(codes + begin, end - begin, out);
}

size_t shore__gradient_segment_bytes(enum shore_gradient_form form) {
    return form == SHORE_GRADIENT_FP32   ? SHORE_SEGMENT_ELEMS * sizeof(float)
           : form == SHORE_GRADIENT_BF16 ? SHORE_SEGMENT_ELEMS * sizeof(uint16_t)
                                         : 0;
}

int shore__gradient_open(struct shore__gradient *g, const struct shore_update *update, uint32_t *segment) {
    g->update = update;
    g->gather = (struct shore__gather_list){update->gather, update->ngather};
    for (*segment = 0; update->form == SHORE_GRADIENT_SPARSE && *segment < update->count; ++*segment) {
        int rc = open_code(g, *segment, &g->reader);
        if (rc) return rc;
    }
    return 0;
}

/* Splits leave blocks of 8-bit moments whole. */
static const float *next_gathered(struct shore__gradient *g, uint64_t at, uint64_t *elems) {
    uint64_t first = (uint64_t)g->update->segment * SHORE_SEGMENT_ELEMS + at, there = *elems;
    bool narrow = g->update->form == SHORE_GRADIENT_BF16;
    const float *view = narrow ? NULL : shore__gather_view(&g->gather, first, &there);
    if (there < *elems) there -= there % SHORE_TENSOR_ALIGN_ELEMS;
    if (view && there) {
        *elems = there;
        return view;
    }
    uint64_t tile = SHORE__GRADIENT_TILE_ELEMS - at % SHORE__GRADIENT_TILE_ELEMS;
    if (*elems > tile) *elems = tile;
    if (narrow) {
        uint16_t rounded[SHORE__GRADIENT_TILE_ELEMS];
        shore__gather_fill_bf16(&g->gather, first, *elems, rounded);
        shore__f32_from_bf16(g->tile, rounded, *elems);
    } else {
        shore__gather_fill(&g->gather, first, *elems, g->tile);
    }
    return g->tile;
}

const float *shore__gradient_next(struct shore__gradient *g, uint64_t at, uint64_t *elems) {
    const struct shore_update *u = g->update;
    if (u->gather) return next_gathered(g, at, elems);
    if (u->form == SHORE_GRADIENT_FP32) return (const float *)u->gradient + at;
    uint64_t tile = SHORE__GRADIENT_TILE_ELEMS - at % SHORE__GRADIENT_TILE_ELEMS;
    if (*elems > tile) *elems = tile;
    if (u->form == SHORE_GRADIENT_BF16) {
        shore__f32_from_bf16(g->tile, (const uint16_t *)u->gradient + at, *elems);
        return g->tile;
    }
    uint32_t within = (uint32_t)(at % SHORE_SEGMENT_ELEMS);
    /* it passed the check when it was opened */
    if (within == 0) (void)open_code(g, (uint32_t)(at / SHORE_SEGMENT_ELEMS), &g->reader);
    memset(g->tile, 0, *elems * sizeof g->tile[0]);
    shore__sparse_scatter(&g->reader, within, within + (uint32_t)*elems, g->tile);
    return g->tile;
}
