/* Gradients as they come to a drive, read as fp32 while UPDATE walks over them: dense ones of bf16 are widened, sparse
 * ones scattered, a tile at a time. So a drive never holds a dense gradient that was not sent to it.
 */
#ifndef SHORE_NEAR_GRADIENT_H
#define SHORE_NEAR_GRADIENT_H

#include "longshore/state.h"
#include "number/sparse.h"

#define SHORE__GRADIENT_TILE_ELEMS 1024u /* divides a segment; a multiple of the alignment of tensors */

struct shore__gradient {
    enum shore_gradient_form form;
    const unsigned char *data;
    const uint32_t *offsets;
    struct shore__sparse_reader reader;
    float tile[SHORE__GRADIENT_TILE_ELEMS];
};

/* data, offsets: as in struct shore_update. Checks every code, trusting none; it reads again what it has checked, so
 * nobody may write there. Errors: SHORE_ECORRUPT; *segment says which (from 0). */
int shore__gradient_open(struct shore__gradient *g, enum shore_gradient_form form, const void *data,
                         const uint32_t *offsets, uint32_t segments, uint32_t *segment);

/* The gradient of the elements from `at` on. *elems: wanted, lowered to what is returned at once. Valid until the next
 * call. Calls go up without gaps, each beginning where the last one's elements ended. */
const float *shore__gradient_next(struct shore__gradient *g, uint64_t at, uint64_t *elems);

#endif
