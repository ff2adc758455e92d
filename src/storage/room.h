/* What a volume takes of its file system: all of it, but for blocks that rest (SHORE_GROUP_RESTS). What only updates
 * need of these is a hole in a new file, which reads as zeros, and zeros of theirs that are written stay one. */
#ifndef SHORE_STORAGE_ROOM_H
#define SHORE_STORAGE_ROOM_H

#include "longshore/layout.h"
#include "storage/io_internal.h"
#include "storage/volume.h"

/* All tensors of a block do, or none. */
static inline bool shore__block_rests(const struct shore_layout_block *block) {
    return block->tensors[0].group == SHORE_GROUP_RESTS;
}

/* The ranges of a new volume that are preallocated, in order; malloc'ed. one_slot: of the planes only slot 0, and
 * nothing behind them. Errors: -ENOMEM. */
int shore__room_make(const struct shore__volume_desc *desc, const struct shore__regions *at, bool one_slot,
                     struct shore__file_range **out, size_t *count);

/* Makes a hole of zeros of a block that rests. False: they are to be written, as anything else. */
bool shore__room_leave_out(const struct shore__volume *v, uint32_t block, const void *data, uint64_t offset,
                           uint64_t bytes);

#endif
