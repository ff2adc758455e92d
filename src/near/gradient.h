/* Gradients as they come to a drive, read as fp32 while UPDATE walks over them: dense ones of bf16 are widened, sparse
 * ones scattered, those of a gather list read where they lie or put together, a tile at a time. So a drive never holds
 * a dense gradient that was not sent to it.
 */
#ifndef SHORE_NEAR_GRADIENT_H
#define SHORE_NEAR_GRADIENT_H

#include "longshore/state.h"
#include "number/gather.h"
#include "number/sparse.h"

#define SHORE__GRADIENT_TILE_ELEMS 1024u /* divides a segment; a multiple of the alignment of tensors */

struct shore__gradient {
    const struct shore_update *update;
    struct shore__gather_list gather; /* of it; used where it has one */
    struct shore__sparse_reader reader;
    float tile[SHORE__GRADIENT_TILE_ELEMS];
};

/* Of an update with a gradient or a gather list; it is borrowed. Checks every code, trusting none; it reads again what
 * it has checked, so nobody may write there. Errors: SHORE_ECORRUPT; *segment says which (from 0). */
int shore__gradient_open(struct shore__gradient *g, const struct shore_update *update, uint32_t *segment);

/* The gradient of the elements from `at` on, which is in the update's first segment 0. *elems: wanted, lowered to what
 * is returned at once. Valid until the next call. Calls go up without gaps, each beginning where the last one's
 * elements ended. */
const float *shore__gradient_next(struct shore__gradient *g, uint64_t at, uint64_t *elems);

#endif
