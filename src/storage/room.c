#include "storage/room.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/format.h"

static bool rests(const struct shore__volume_desc *desc, uint32_t block) {
    return desc->layout && block < desc->layout->nblocks && shore__block_rests(&desc->layout->blocks[block]);
}

bool shore__extent_rests(const struct shore__volume_desc *desc, const struct shore__extent *extent) {
    return rests(desc, extent->block);
}

struct ranges {
    struct shore__file_range *range;
    size_t count;
    uint64_t at; /* everything before it is decided */
};

static void hole(struct ranges *r, uint64_t offset, uint64_t bytes) {
    if (offset > r->at) r->range[r->count++] = (struct shore__file_range){r->at, offset - r->at};
    r->at = offset + bytes;
}

/* Leaves out the resting blocks of a region, or all others. each: bytes of a local segment. */
static void leave_out(struct ranges *r, const struct shore__volume_desc *desc, bool resting, uint64_t region,
                      uint64_t each) {
    for (uint32_t e = 0; each && e < desc->nextents; e++) {
        const struct shore__extent *extent = &desc->extents[e];
        if (shore__extent_rests(desc, extent) == resting) hole(r, region + extent->local * each, extent->count * each);
    }
}

static void make_planes(struct ranges *r, const struct shore__volume_desc *desc, const struct shore__regions *at,
                        unsigned slot, enum shore__room what) {
    for (unsigned p = 0; p < SHORE_PLANE_COUNT; p++) {
        const uint64_t region = at->plane[slot][p], each = desc->plane_bytes[p];
        bool needed = desc->resting_planes & 1u << p;
        if (what == SHORE__ROOM_REST && needed)
            leave_out(r, desc, false, region, each);
        else if (what == SHORE__ROOM_REST)
            hole(r, region, desc->segments * each);
        else if (slot || !needed || desc->apart)
            leave_out(r, desc, true, region, each);
    }
}

int shore__room_make(const struct shore__volume_desc *desc, const struct shore__regions *at, enum shore__room what,
                     struct shore__file_range **out, size_t *count) {
    struct ranges r = {calloc((size_t)desc->nextents * (2 * SHORE_PLANE_COUNT + 1) + 3, sizeof *r.range), 0, 0};
    if (!r.range) return -ENOMEM;
    if (what == SHORE__ROOM_SNAPSHOT) hole(&r, at->table[1], at->plane[0][0] - at->table[1]);
    if (what == SHORE__ROOM_REST)
        hole(&r, at->table[0], at->plane[1][0] - at->table[0]);
    else
        make_planes(&r, desc, at, 0, what);
    if (what != SHORE__ROOM_SNAPSHOT) make_planes(&r, desc, at, 1, what);
    if (what == SHORE__ROOM_WHOLE && desc->spill)
        leave_out(&r, desc, true, at->spill, SHORE_SEGMENT_ELEMS * sizeof(float));
    hole(&r, what == SHORE__ROOM_SNAPSHOT ? at->plane[1][0] : at->end, 0);
    *out = r.range;
    *count = r.count;
    return 0;
}

uint64_t shore__volume_room_bytes(const struct shore__volume_desc *desc) {
    struct shore__regions at;
    struct shore__file_range *range;
    size_t count;
    if (shore__regions_make(desc, SHORE__VOLUME_VERSION, &at) ||
        shore__room_make(desc, &at, SHORE__ROOM_WHOLE, &range, &count))
        return UINT64_MAX;
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += range[i].bytes;
    free(range);
    return bytes;
}

bool shore__room_leave_out(const struct shore__volume *v, uint32_t block, const void *data, uint64_t offset,
                           uint64_t bytes) {
    const unsigned char *at = data;
    if (!rests(&v->desc, block) || at[0] || memcmp(at, at + 1, bytes - 1) != 0) return false;
    return shore__file_punch(&v->file, offset, bytes);
}
