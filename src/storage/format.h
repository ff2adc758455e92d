/* The bytes of a volume: writes them to memory, and checks those it reads. docs/volume-format.md describes them. It
 * does no I/O, so that all of it can be fuzzed. */
#ifndef SHORE_STORAGE_FORMAT_H
#define SHORE_STORAGE_FORMAT_H

#include "storage/volume.h"

#define SHORE__PAGE_BYTES 4096u
#define SHORE__HEADER_A_OFFSET 0x00000u
#define SHORE__RECORD_OFFSET 0x10000u /* of place 0; place 1 lies 64 KiB behind */
#define SHORE__RECORD_STRIDE 0x10000u
#define SHORE__HEADER_B_OFFSET 0x30000u
#define SHORE__HEADER_MAGIC_BYTES 8u
#define SHORE__HEADER_FIELDS_BYTES 512u /* one sector: written whole or not at all */
#define SHORE__IDENTITY_OFFSET 0x40000u
#define SHORE__PLACEMENT_OFFSET 0x50000u
#define SHORE__EXTENT_BYTES 16u
#define SHORE__BLOB_HALF_OFFSET 0x08000u /* of the first of four halves, between the headers and records */
#define SHORE__BLOB_HALF_STRIDE 0x10000u
#define SHORE__BLOB_HALF_BYTES (SHORE_BLOB_BYTES / 2)
#define SHORE__MAP_OFFSET 0x01000u /* of slot 0's map, where it is small; slot 1's lies 64 KiB behind */
#define SHORE__MAP_STRIDE 0x10000u
#define SHORE__MAP_SMALL_BYTES (SHORE__BLOB_HALF_OFFSET - SHORE__MAP_OFFSET)
#define SHORE__EXTENTS_MOST (1u << 20)
#define SHORE__SEGMENTS_MOST (1u << 30)

static inline uint64_t shore__round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

struct shore__header {
    struct shore__volume_desc desc; /* without identity and extents */
    uint32_t version;
    bool unfinished; /* the rest of the volume was not written yet */
    uint64_t size_bytes;
    unsigned char placement_hash[16], identity_hash[16];
};

enum shore__parse {
    SHORE__PARSE_OK,
    SHORE__PARSE_EMPTY,   /* all zero */
    SHORE__PARSE_FOREIGN, /* something else, or another volume's */
    SHORE__PARSE_VERSION, /* ours, in another version */
    SHORE__PARSE_DAMAGED
};

/* version: of the format. 0, or -EINVAL if sizes are out of range. */
int shore__regions_make(const struct shore__volume_desc *desc, uint32_t version, struct shore__regions *out);
/* Whether a volume of an older version has room for this version's additions. */
bool shore__regions_renewable(const struct shore__volume_desc *desc, uint32_t version);

/* page: SHORE__PAGE_BYTES each. */
void shore__header_write(const struct shore__header *header, unsigned char *page);
enum shore__parse shore__header_parse(const unsigned char *page, struct shore__header *out);

void shore__extents_write(const struct shore__extent *extents, uint32_t count, unsigned char *bytes);
/* In place: extents may be the same memory as bytes. */
void shore__extents_read(const unsigned char *bytes, uint32_t count, struct shore__extent *extents);
/* Checks order (by block, then first), that none overlap, and that local segments have no gaps and are `segments` in
 * total. */
bool shore__extents_valid(const struct shore__extent *extents, uint32_t count, uint32_t segments);

/* version: the volume's, which holds records of that version and older ones. */
void shore__record_write(const struct shore__volume_desc *desc, uint32_t version, const struct shore__record *record,
                         unsigned char *page);
enum shore__parse shore__record_parse(const struct shore__volume_desc *desc, uint32_t version, unsigned place,
                                      const unsigned char *page, struct shore__record *out);

#endif
