/* The tensors of a state as blocks, which are fetched and updated together, and where each tensor lies. */
#ifndef LONGSHORE_LAYOUT_H
#define LONGSHORE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHORE_SEGMENT_ELEMS 65536u    /* the unit of checksums, norms and digests */
#define SHORE_TENSOR_ALIGN_ELEMS 256u /* each tensor of a block starts at a multiple of this */

/* The group of tensors that rest: no update ever touches them (frozen weights). All tensors of a block have it, or
 * none. A new volume that is a file takes no room for their moments, residuals, spilled gradients and other slot, which
 * only updates need. A state that is stored there all the same takes the room then. */
#define SHORE_GROUP_RESTS UINT32_MAX

struct shore_tensor_spec {
    const char *name;
    uint64_t elems;
    uint32_t group; /* index of its parameter group (remote drives take those below 1,024), or SHORE_GROUP_RESTS */
};

struct shore_block_spec {
    const char *name;
    const struct shore_tensor_spec *tensors;
    uint32_t ntensors;
};

struct shore_layout_tensor {
    char *name;
    uint64_t offset_elems; /* within the block; times 2 (BF16, plane R) or 4 (fp32): in bytes. Elements lie in a row */
    uint64_t elems;
    uint32_t group;
};

struct shore_layout_block {
    char *name;
    struct shore_layout_tensor *tensors;
    uint32_t ntensors;
    uint32_t segments;
    uint64_t elems;        /* end of the last tensor */
    uint64_t padded_elems; /* segments * SHORE_SEGMENT_ELEMS: the size of a whole-block buffer */
};

/* Canonical layout: the tensors of each block in the given order, each at a multiple of 256 elements, gaps zero. An
 * element is a number; its size depends on the fetch or the request. Shapes and dtypes are the caller's. */
struct shore_layout {
    struct shore_layout_block *blocks;
    uint32_t nblocks;
    uint64_t elems;    /* of all tensors, without gaps */
    uint64_t segments; /* of all blocks */
};

/* Makes a layout. Ownership: it is the caller's, for shore_layout_free(), and holds copies of the names. Fleets copy
 * it. Threading: any; a layout does not change, so any thread may read it. Errors: SHORE_EINPUT (no blocks, an empty
 * block or tensor, too large, a block of which only a part rests), -ENOMEM. */
int shore_layout_make(const struct shore_block_spec *blocks, uint32_t nblocks, struct shore_layout **out);

/* Frees a layout. Ownership: nobody uses it, or anything read from it. NULL is allowed. */
void shore_layout_free(struct shore_layout *layout);

#ifdef __cplusplus
}
#endif

#endif
