/* Placement: which drive owns which segments. */
#ifndef SHORE_DRIVE_PLACEMENT_H
#define SHORE_DRIVE_PLACEMENT_H

#include "storage/volume.h"

#define SHORE__DRIVES_MAX 1024u

struct shore__range {
    uint32_t first, count; /* segments of a block */
};

/* Bytes that a volume at path could take: its file system's free bytes plus what it replaces, or the device's size. 0:
 * no known limit. */
uint64_t shore__drive_capacity_bytes(const char *path);

/* ranges[block * ndrives + drive]: contiguous, in drive order. All weights 0: equal shares. Rounds cumulatively over
 * all blocks that are updated, and over all that rest, so that many small blocks even out. */
void shore__placement_make(const struct shore_layout *layout, const uint64_t *weights, uint32_t ndrives,
                           struct shore__range *ranges);

/* Shares of total_bytes with which drives of these speeds finish together, none above its capacity (0: no limit; if all
 * are too small, in proportion to them). Speeds: bytes per second. */
void shore__placement_weights(const uint64_t *speeds, const uint64_t *capacity_bytes, uint32_t ndrives,
                              uint64_t total_bytes, uint64_t *weights);

/* Extents of one drive, by block; *extents is malloc'ed. */
int shore__placement_extents(const struct shore_layout *layout, const struct shore__range *ranges, uint32_t ndrives,
                             uint32_t drive, struct shore__extent **extents, uint32_t *nextents, uint32_t *segments);

/* Ranges from the extents of all drives, by place in the fleet. SHORE_EMISMATCH unless each segment of the layout has
 * exactly one owner, in contiguous ranges in drive order. */
int shore__placement_read(const struct shore_layout *layout, const struct shore__volume_desc *const *descs,
                          uint32_t ndrives, struct shore__range *ranges, struct shore_diag *diag);

#endif
