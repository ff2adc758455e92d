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

/* What a new file is to hold. */
enum shore__room {
    SHORE__ROOM_WHOLE,    /* both slots, and what is behind them */
    SHORE__ROOM_SNAPSHOT, /* slot 0, but for blocks that rest where they lie apart */
    SHORE__ROOM_REST      /* these, in slot 1 */
};
/* The ranges of a new volume that are preallocated, in order; malloc'ed. Errors: -ENOMEM. */
int shore__room_make(const struct shore__volume_desc *desc, const struct shore__regions *at, enum shore__room what,
                     struct shore__file_range **out, size_t *count);

bool shore__extent_rests(const struct shore__volume_desc *desc, const struct shore__extent *extent);

/* Makes a hole of zeros of a block that rests. False: they are to be written, as anything else. */
bool shore__room_leave_out(const struct shore__volume *v, uint32_t block, const void *data, uint64_t offset,
                           uint64_t bytes);

#endif
