/* Volumes from strangers: header, records and placement, in memory and through a file. Checksums are made to fit, or
 * nothing behind them would ever be reached.
 *
 * Input: one byte of choices, the first 148 bytes of a header, the first 128 of a record and the 80 that say more of
 * its slots, then entries of a placement table. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/units.h"
#include "storage/format.h"
#include "storage/hash.h"

#define CHOICE_UNSIGNED 1u /* leave the checksums as they are */
#define CHOICE_ANY_SIZE 2u /* leave the size as it is */
#define CHOICE_FILE 4u
#define HEADER_BYTES 148u
#define RECORD_BYTES 128u
#define MORE_OFFSET 2176u
#define MORE_BYTES 80u
#define FIELDS_BYTES (HEADER_BYTES + RECORD_BYTES + MORE_BYTES)
#define PLACEMENT_MOST 4096u
#define FILE_MOST ((uint64_t)1 << 42)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void must(bool holds) {
    if (!holds) abort();
}

static void sign(unsigned char *page, unsigned field) {
    unsigned char sum[16];
    memset(page + field, 0, 16);
    shore__hash128(page, SHORE__PAGE_BYTES, 0, sum);
    memcpy(page + field, sum, 16);
}

static void check_placement(const struct shore__volume *v) {
    for (uint32_t i = 0; i < v->desc.nextents; i++) {
        const struct shore__extent *e = &v->desc.extents[i];
        must(shore__volume_local(v, e->block, e->first) == e->local);
        must(shore__volume_local(v, e->block, e->first + e->count - 1) == (int64_t)e->local + e->count - 1);
        for (unsigned slot = 0; slot < 2; slot++)
            for (unsigned plane = 0; plane < SHORE_PLANE_COUNT; plane++)
                if (v->desc.plane_bytes[plane])
                    must(shore__volume_plane_offset(v, slot, (enum shore_plane)plane, e->local + e->count) <=
                         v->at.end);
    }
}

static void through_a_file(const unsigned char *header, const unsigned char *record, const unsigned char *placement,
                           uint64_t size) {
    static int fd = -1;
    if (fd < 0) fd = memfd_create("volume", MFD_CLOEXEC);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    must(fd >= 0 && ftruncate(fd, 0) == 0 && ftruncate(fd, (off_t)(size < FILE_MOST ? size : FILE_MOST)) == 0);
    must(pwrite(fd, header, SHORE__PAGE_BYTES, SHORE__HEADER_A_OFFSET) == SHORE__PAGE_BYTES);
    must(pwrite(fd, record, SHORE__PAGE_BYTES, SHORE__RECORD_OFFSET) == SHORE__PAGE_BYTES);
    must(pwrite(fd, placement, PLACEMENT_MOST, SHORE__PLACEMENT_OFFSET) == PLACEMENT_MOST);
    struct shore__volume v;
    struct shore_diag diag = {0};
    if (shore__volume_peek(path, &v, &diag)) {
        must(diag.text[0] != '\0');
        return;
    }
    check_placement(&v);
    shore__volume_close(&v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    unsigned char header[SHORE__PAGE_BYTES] = {0}, record[SHORE__PAGE_BYTES] = {0}, placement[PLACEMENT_MOST] = {0};
    if (bytes < 1 + FIELDS_BYTES) return 0;
    unsigned choices = data[0];
    memcpy(header, data + 1, HEADER_BYTES);
    memcpy(record, data + 1 + HEADER_BYTES, RECORD_BYTES);
    memcpy(record + MORE_OFFSET, data + 1 + HEADER_BYTES + RECORD_BYTES, MORE_BYTES);
    size_t rest = bytes - 1 - FIELDS_BYTES;
    memcpy(placement, data + 1 + FIELDS_BYTES, rest < PLACEMENT_MOST ? rest : PLACEMENT_MOST);

    struct shore__header parsed;
    uint64_t size = SHORE__PLACEMENT_OFFSET + PLACEMENT_MOST;
    if (!(choices & CHOICE_UNSIGNED)) {
        uint32_t nextents = shore__get_u32(header + 72), identity = shore__get_u32(header + 76);
        static const unsigned char nothing[SHORE__IDENTITY_BYTES];
        if (nextents <= PLACEMENT_MOST / SHORE__EXTENT_BYTES)
            shore__hash128(placement, nextents * SHORE__EXTENT_BYTES, 0, header + 96);
        if (identity <= sizeof nothing) shore__hash128(nothing, identity, 0, header + 112);
        struct shore__volume_desc guess = {.segments = shore__get_u32(header + 68),
                                           .nextents = nextents,
                                           .identity_bytes = identity,
                                           .scratch_bytes = shore__get_u64(header + 80),
                                           .spill = shore__get_u32(header + 12) & 2};
        for (unsigned plane = 0; plane < SHORE_PLANE_COUNT; plane++)
            guess.plane_bytes[plane] = shore__get_u32(header + 128 + 4 * plane);
        struct shore__regions at;
        bool fits = shore__regions_make(&guess, SHORE__VOLUME_VERSION, &at) == 0;
        if (!(choices & CHOICE_ANY_SIZE)) shore__put_u64(header + 88, fits ? at.end : UINT64_MAX);
        sign(header, 496);
        memcpy(record + 16, header + 16, 32);
        memcpy(record + 48, header + 56, 8);
        sign(record, 4080);
    }

    if (shore__header_parse(header, &parsed) == SHORE__PARSE_OK) {
        struct shore__record r;
        struct shore__regions at;
        size = parsed.size_bytes;
        must(shore__regions_make(&parsed.desc, parsed.version, &at) == 0 && at.end == size && at.scratch <= at.end);
        for (unsigned place = 0; place < 2; place++)
            if (shore__record_parse(&parsed.desc, parsed.version, place, record, &r) == SHORE__PARSE_OK) {
                unsigned char again[SHORE__PAGE_BYTES];
                struct shore__record twice;
                shore__record_write(&parsed.desc, parsed.version, &r, again);
                must(shore__record_parse(&parsed.desc, parsed.version, place, again, &twice) == SHORE__PARSE_OK);
                must(memcmp(&r, &twice, sizeof r) == 0);
            }
    }
    struct shore__extent extents[PLACEMENT_MOST / SHORE__EXTENT_BYTES];
    uint32_t count = (uint32_t)(rest / SHORE__EXTENT_BYTES);
    if (count > PLACEMENT_MOST / SHORE__EXTENT_BYTES) count = PLACEMENT_MOST / SHORE__EXTENT_BYTES;
    shore__extents_read(placement, count, extents);
    uint64_t segments = 0;
    for (uint32_t i = 0; i < count; i++)
        segments += extents[i].count;
    if (segments <= SHORE__SEGMENTS_MOST && shore__extents_valid(extents, count, (uint32_t)segments)) {
        struct shore__volume v = {.desc = {.extents = extents, .nextents = count, .segments = (uint32_t)segments}};
        check_placement(&v);
    }
    if (choices & CHOICE_FILE) through_a_file(header, record, placement, size);
    return 0;
}
