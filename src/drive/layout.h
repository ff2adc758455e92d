/* Layouts: limits and helpers inside the fleet. */
#ifndef SHORE_DRIVE_LAYOUT_H
#define SHORE_DRIVE_LAYOUT_H

#include <errno.h>

#include "longshore/state.h"

/* Far above any model, and far below the overflow of a byte count. */
#define SHORE__BLOCK_ELEMS_MAX (UINT64_C(1) << 46)

/* Elements of [segment, segment + count) of a block without the padding behind its last tensor. Padding is zero in
 * gradients and parameters, and does not cross the host link. 0: no such block. */
uint64_t shore__layout_elems(const struct shore_layout *layout, uint32_t block, uint32_t segment, uint32_t count);

/* Bytes of these segments that cross the link, if a whole segment has segment_bytes. */
static inline uint64_t shore__layout_bytes(const struct shore_layout *layout, uint32_t block, uint32_t segment,
                                           uint32_t count, size_t segment_bytes) {
    return shore__layout_elems(layout, block, segment, count) * (segment_bytes / SHORE_SEGMENT_ELEMS);
}

/* The tensor of element `at` of a block: the last one that starts at or before it. */
uint32_t shore__layout_tensor_at(const struct shore_layout_block *block, uint64_t at);

/* Ownership: the caller frees the copy with shore_layout_free(). */
int shore__layout_copy(const struct shore_layout *layout, struct shore_layout **out);

#endif
