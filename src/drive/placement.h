/* Which drive owns which segments. */
#ifndef SHORE_DRIVE_PLACEMENT_H
#define SHORE_DRIVE_PLACEMENT_H

#include "storage/volume.h"

#define SHORE__DRIVES_MAX 1024u

struct shore__range {
    uint32_t first, count; /* segments of a block */
};

/* Bytes that a volume at path could take: free bytes of its file system and what it replaces, or the device's size. 0:
 * no limit is known. */
uint64_t shore__drive_capacity_bytes(const char *path);

/* ranges[block * ndrives + drive]: contiguous, in drive order. Weights: 0 everywhere means equal. By cumulative
 * rounding over all blocks together that are updated, and all that rest, so that many small blocks even out. */
void shore__placement_make(const struct shore_layout *layout, const uint64_t *weights, uint32_t ndrives,
                           struct shore__range *ranges);

/* Shares of total_bytes with which drives of these speeds finish together, but none above its capacity (0: no limit;
 * if all are too small, in their proportion). Speeds: bytes a second. */
void shore__placement_weights(const uint64_t *speeds, const uint64_t *capacity_bytes, uint32_t ndrives,
                              uint64_t total_bytes, uint64_t *weights);

/* The extents of one drive, by block; *extents is malloc'ed. */
int shore__placement_extents(const struct shore_layout *layout, const struct shore__range *ranges, uint32_t ndrives,
                             uint32_t drive, struct shore__extent **extents, uint32_t *nextents, uint32_t *segments);

/* The ranges that the extents of all drives (by place in the fleet) make. Fails with SHORE_EMISMATCH unless each
 * segment of the layout is owned exactly once, in contiguous ranges in drive order. */
int shore__placement_read(const struct shore_layout *layout, const struct shore__volume_desc *const *descs,
                          uint32_t ndrives, struct shore__range *ranges, struct shore_diag *diag);

#endif
