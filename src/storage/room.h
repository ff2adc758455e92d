/* Room of a volume in its file system: all of it, except for resting blocks (SHORE_GROUP_RESTS). In a new file, the
 * parts of these that only updates need are holes, which read as zeros. Zeros written there stay holes. */
#ifndef SHORE_STORAGE_ROOM_H
#define SHORE_STORAGE_ROOM_H

#include "number/norm.h"
#include "storage/io_internal.h"
#include "storage/volume.h"

/* Contents of a new file. */
enum shore__room {
    SHORE__ROOM_WHOLE,    /* both slots, and everything behind them */
    SHORE__ROOM_SNAPSHOT, /* slot 0, without resting blocks if they lie in another file */
    SHORE__ROOM_REST      /* these, in slot 1 */
};
/* Ranges of a new volume to preallocate, in order; malloc'ed. Errors: -ENOMEM. */
int shore__room_make(const struct shore__volume_desc *desc, const struct shore__regions *at, enum shore__room what,
                     struct shore__file_range **out, size_t *count);

bool shore__extent_rests(const struct shore__volume_desc *desc, const struct shore__extent *extent);

/* Makes a hole for zeros of a resting block. False: write them like anything else. */
bool shore__room_leave_out(const struct shore__volume *v, uint32_t block, const void *data, uint64_t offset,
                           uint64_t bytes);

#endif
