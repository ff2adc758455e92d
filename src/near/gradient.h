/* Gradients of an update, read as fp32 tile by tile while UPDATE walks over them. bf16 is widened, sparse codes are
 * scattered, and gather lists are read in place or put together. A drive therefore never holds a dense gradient that
 * was not sent to it. */
#ifndef SHORE_NEAR_GRADIENT_H
#define SHORE_NEAR_GRADIENT_H

#include "longshore/state.h"
#include "number/gather.h"
#include "number/sparse.h"

#define SHORE__GRADIENT_TILE_ELEMS 1024u /* divides a segment; a multiple of the alignment of tensors */

struct shore__gradient {
    const struct shore_update *update;
    struct shore__gather_list gather; /* used if the update has one */
    struct shore__sparse_reader reader;
    float tile[SHORE__GRADIENT_TILE_ELEMS];
};

size_t shore__gradient_segment_bytes(enum shore_gradient_form form); /* 0: SPARSE, ROWS have no fixed size */

/* Opens the gradient or gather list of an update, which is borrowed. Checks every code and trusts none. It reads again
 * what it has checked, so nobody may write there. Errors: SHORE_ECORRUPT; *segment says where (from 0). */
int shore__gradient_open(struct shore__gradient *g, const struct shore_update *update, uint32_t *segment);

/* Returns the gradient of the elements from `at` on, which lies in the update's first segment 0. *elems: wanted,
 * lowered to the number returned. Valid until the next call. Each call starts where the previous one's elements
 * ended. */
const float *shore__gradient_next(struct shore__gradient *g, uint64_t at, uint64_t *elems);

#endif
