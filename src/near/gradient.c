#include "near/gradient.h"

#include <string.h>

#include "number/bf16.h"

_Static_assert(SHORE__SPARSE_SEGMENT == SHORE_SEGMENT_ELEMS, "a code is one segment's");

static int open_code(const struct shore__gradient *g, uint32_t segment, struct shore__sparse_reader *out) {
    uint32_t begin = g->offsets[segment], end = g->offsets[segment + 1];
    return end < begin ? SHORE_ECORRUPT : shore__sparse_open(g->data + begin, end - begin, out);
}

int shore__gradient_open(struct shore__gradient *g, enum shore_gradient_form form, const void *data,
                         const uint32_t *offsets, uint32_t segments, uint32_t *segment) {
    g->form = form;
    g->data = data;
    g->offsets = offsets;
    for (*segment = 0; form == SHORE_GRADIENT_SPARSE && *segment < segments; ++*segment) {
        int rc = open_code(g, *segment, &g->reader);
        if (rc) return rc;
    }
    return 0;
}

const float *shore__gradient_next(struct shore__gradient *g, uint64_t at, uint64_t *elems) {
    if (g->form == SHORE_GRADIENT_FP32) return (const float *)(const void *)g->data + at;
    uint64_t tile = SHORE__GRADIENT_TILE_ELEMS - at % SHORE__GRADIENT_TILE_ELEMS;
    if (*elems > tile) *elems = tile;
    if (g->form == SHORE_GRADIENT_BF16) {
        shore__f32_from_bf16(g->tile, (const uint16_t *)(const void *)g->data + at, *elems);
        return g->tile;
    }
    uint32_t within = (uint32_t)(at % SHORE_SEGMENT_ELEMS);
    /* it was good when it was opened */
    if (within == 0) (void)open_code(g, (uint32_t)(at / SHORE_SEGMENT_ELEMS), &g->reader);
    memset(g->tile, 0, *elems * sizeof g->tile[0]);
    shore__sparse_scatter(&g->reader, within, within + (uint32_t)*elems, g->tile);
    return g->tile;
}
