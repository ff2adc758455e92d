#include "drive/placement.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/diag.h"
#include "storage/room.h"

static uint64_t device_bytes(const char *path) {
    uint64_t bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    if (ioctl(fd, BLKGETSIZE64, &bytes) != 0) bytes = 0;
    close(fd);
    return bytes;
}

uint64_t shore__drive_capacity_bytes(const char *path) {
    char *file = NULL;
    if (shore__volume_path(path, &file, NULL)) return 0;
    struct stat st;
    struct statvfs fs;
    uint64_t bytes = 0;
    bool exists = stat(file, &st) == 0;
    if (exists && S_ISBLK(st.st_mode)) {
        bytes = device_bytes(file);
    } else {
        if (exists) bytes = (uint64_t)st.st_blocks * 512;
        char *slash = strrchr(file, '/');
        if (slash && slash != file) *slash = '\0';
        if (statvfs(slash ? file : ".", &fs) == 0) bytes += (uint64_t)fs.f_bavail * fs.f_frsize;
    }
    free(file);
    return bytes;
}

void shore__placement_weights(const uint64_t *speeds, const uint64_t *capacity_bytes, uint32_t ndrives,
                              uint64_t total_bytes, uint64_t *weights) {
    uint64_t rest = total_bytes;
    bool full[SHORE__DRIVES_MAX] = {false}, again = true;
    while (again) {
        unsigned __int128 sum = 0;
        uint64_t taken = 0;
        again = false;
        for (uint32_t d = 0; d < ndrives; d++)
            if (!full[d]) sum += speeds[d];
        for (uint32_t d = 0; d < ndrives; d++) {
            if (full[d]) continue;
            weights[d] = sum ? (uint64_t)((unsigned __int128)rest * speeds[d] / sum) : 0;
            if (!capacity_bytes[d] || weights[d] <= capacity_bytes[d]) continue;
            weights[d] = capacity_bytes[d];
            taken += weights[d];
            full[d] = again = true;
        }
        rest -= taken < rest ? taken : rest;
    }
}

void shore__placement_make(const struct shore_layout *layout, const uint64_t *weights, uint32_t ndrives,
                           struct shore__range *ranges) {
    unsigned __int128 total = 0;
    for (uint32_t d = 0; d < ndrives; d++) {
        total += weights[d];
    }
    bool equal = total == 0;
    if (equal) total = ndrives;
    /* of updated blocks, and of resting ones: */
    uint64_t through[2] = {0};                  /* segments of the blocks so far */
    uint64_t owned[2][SHORE__DRIVES_MAX] = {0}; /* of these, segments of drives 0..d together */
    for (uint32_t b = 0; b < layout->nblocks; b++) {
        uint32_t segments = layout->blocks[b].segments, last = 0;
        const bool rests = shore__block_rests(&layout->blocks[b]);
        unsigned __int128 upto = 0;
        through[rests] += segments;
        for (uint32_t d = 0; d < ndrives; d++) {
            upto += equal ? 1 : weights[d];
            uint64_t target = (uint64_t)((upto * through[rests] * 2 + total) / (total * 2));
            uint64_t end = target > owned[rests][d] ? target - owned[rests][d] : 0;
            if (d + 1 == ndrives || end > segments) end = segments;
            if (end < last) end = last;
            ranges[(size_t)b * ndrives + d] = (struct shore__range){last, (uint32_t)end - last};
            last = (uint32_t)end;
            owned[rests][d] += last;
        }
    }
}

int shore__placement_extents(const struct shore_layout *layout, const struct shore__range *ranges, uint32_t ndrives,
                             uint32_t drive, struct shore__extent **extents, uint32_t *nextents, uint32_t *segments) {
    struct shore__extent *list = calloc(layout->nblocks, sizeof *list);
    if (!list) return -ENOMEM;
    uint32_t n = 0, local = 0;
    for (uint32_t b = 0; b < layout->nblocks; b++) {
        struct shore__range range = ranges[(size_t)b * ndrives + drive];
        if (range.count == 0) continue;
        list[n++] = (struct shore__extent){.block = b, .first = range.first, .count = range.count, .local = local};
        local += range.count;
    }
    *extents = list;
    *nextents = n;
    *segments = local;
    return 0;
}

int shore__placement_read(const struct shore_layout *layout, const struct shore__volume_desc *const *descs,
                          uint32_t ndrives, struct shore__range *ranges, struct shore_diag *diag) {
    memset(ranges, 0, sizeof *ranges * layout->nblocks * ndrives);
    for (uint32_t d = 0; d < ndrives; d++) {
        for (uint32_t e = 0; e < descs[d]->nextents; e++) {
            const struct shore__extent *extent = &descs[d]->extents[e];
            if (extent->block >= layout->nblocks) {
                return shore__fail(diag, SHORE_EMISMATCH, "the volumes hold block %u, the model has only %u blocks",
                                   extent->block, layout->nblocks);
            }
            struct shore__range *range = &ranges[(size_t)extent->block * ndrives + d];
            if (range->count) return shore__fail(diag, SHORE_EMISMATCH, "a block has two ranges on one drive");
            *range = (struct shore__range){extent->first, extent->count};
        }
    }
    for (uint32_t b = 0; b < layout->nblocks; b++) {
        uint32_t next = 0;
        for (uint32_t d = 0; d < ndrives; d++) {
            struct shore__range *range = &ranges[(size_t)b * ndrives + d];
            if (range->count == 0) range->first = next;
            if (range->first != next) break;
            next += range->count;
        }
        if (next != layout->blocks[b].segments) {
            return shore__fail(
                diag, SHORE_EMISMATCH,
                "block %u has %u segments in the model and %u on the drives: this is another model's state", b,
                layout->blocks[b].segments, next);
        }
    }
    return 0;
}
