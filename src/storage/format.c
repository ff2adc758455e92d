#include "storage/format.h"

#include <errno.h>
#include <string.h>

#include "base/units.h"
#include "storage/hash.h"

#define REGION_ALIGN ((uint64_t)1 << 20)
#define SCRATCH_MOST ((uint64_t)1 << 56)
#define PLANE_BYTES_MOST (SHORE_SEGMENT_ELEMS * 16u)

#define FLAG_UNFINISHED 1u
#define FLAG_SPILL 2u
#define FLAG_APART 4u

#define SLOT_MAPPED 1u
#define SLOT_BLOB_PLACE_1 2u

static const unsigned char header_magic[8] = {'L', 'O', 'N', 'G', 'S', 'H', 'O', 'R'};
static const unsigned char record_magic[8] = {'L', 'S', 'R', 'E', 'C', 'O', 'R', 'D'};

/* All fields of a header lie in its first 512 bytes: a sector is written whole or not at all. */
enum header_field {
    HEADER_VERSION = 8,
    HEADER_FLAGS = 12,
    HEADER_VOLUME_ID = 16,
    HEADER_FLEET_ID = 32,
    HEADER_DRIVE = 48,
    HEADER_NDRIVES = 52,
    HEADER_GENERATION = 56,
    HEADER_PLANE_FORM = 64,
    HEADER_SEGMENTS = 68,
    HEADER_NEXTENTS = 72,
    HEADER_IDENTITY_BYTES = 76,
    HEADER_SCRATCH_BYTES = 80,
    HEADER_SIZE_BYTES = 88,
    HEADER_PLACEMENT_HASH = 96,
    HEADER_IDENTITY_HASH = 112,
    HEADER_PLANE_BYTES = 128, /* 4 each */
    HEADER_REST_KEY = 148,    /* version 4 */
    HEADER_CHECKSUM = 496     /* of the page with these 16 bytes zero */
};

enum record_field {
    RECORD_VERSION = 8,
    RECORD_ACTIVE = 12,
    RECORD_VOLUME_ID = 16,
    RECORD_FLEET_ID = 32,
    RECORD_GENERATION = 48,
    RECORD_SEQUENCE = 56,
    RECORD_EPOCH = 64,
    RECORD_SLOT = 72, /* step, table hash; twice */
    RECORD_SLOT_BYTES = 24,
    RECORD_METRICS_BYTES = 120,
    RECORD_METRICS = 128,
    RECORD_SLOT_MORE = 2176, /* version 3: flags, bytes of the blob, map hash, blob hash; twice */
    RECORD_SLOT_MORE_BYTES = 40,
    RECORD_CHECKSUM = 4080
};

_Static_assert(HEADER_PLANE_BYTES + 4 * SHORE_PLANE_COUNT <= HEADER_REST_KEY, "planes end before what follows them");
_Static_assert(HEADER_REST_KEY + SHORE__REST_KEY_BYTES <= HEADER_CHECKSUM, "the key ends before the checksum");
_Static_assert(HEADER_CHECKSUM + 16 == SHORE__HEADER_FIELDS_BYTES, "a header is one sector");
_Static_assert(RECORD_SLOT + 2 * RECORD_SLOT_BYTES <= RECORD_METRICS_BYTES, "slots end before the metrics");
_Static_assert(RECORD_METRICS + SHORE__METRICS_BYTES <= RECORD_SLOT_MORE, "metrics end before the rest of the slots");
_Static_assert(RECORD_SLOT_MORE + 2 * RECORD_SLOT_MORE_BYTES <= RECORD_CHECKSUM, "slots end before the checksum");
_Static_assert(RECORD_CHECKSUM + 16 == SHORE__PAGE_BYTES, "a record is one page");
_Static_assert(sizeof header_magic == SHORE__HEADER_MAGIC_BYTES, "both are the same");
_Static_assert(sizeof(struct shore__extent) == SHORE__EXTENT_BYTES, "extents are read in place");
_Static_assert(sizeof(struct shore__leaves) == 16 * SHORE_PLANE_COUNT, "tables are written as they are");
_Static_assert(SHORE__HEADER_A_OFFSET + SHORE__PAGE_BYTES <= SHORE__MAP_OFFSET &&
                   SHORE__RECORD_OFFSET + SHORE__PAGE_BYTES <= SHORE__MAP_OFFSET + SHORE__MAP_STRIDE,
               "small maps lie behind a header and a record");
_Static_assert(SHORE__BLOB_HALF_OFFSET + SHORE__BLOB_HALF_BYTES <= SHORE__RECORD_OFFSET &&
                   SHORE__BLOB_HALF_OFFSET + 2 * SHORE__BLOB_HALF_STRIDE + SHORE__BLOB_HALF_BYTES <=
                       SHORE__HEADER_B_OFFSET &&
                   SHORE__HEADER_B_OFFSET + SHORE__PAGE_BYTES <= SHORE__BLOB_HALF_OFFSET + 3 * SHORE__BLOB_HALF_STRIDE,
               "blobs lie between headers and records");
_Static_assert(SHORE__BLOB_HALF_OFFSET + 3 * SHORE__BLOB_HALF_STRIDE + SHORE__BLOB_HALF_BYTES <= SHORE__IDENTITY_OFFSET,
               "blobs end before the identity");
_Static_assert(SHORE__IDENTITY_OFFSET + SHORE__IDENTITY_BYTES <= SHORE__PLACEMENT_OFFSET,
               "the identity ends before the placement");
_Static_assert((uint64_t)SHORE__SEGMENTS_MOST *PLANE_BYTES_MOST * 2 * SHORE_PLANE_COUNT < SCRATCH_MOST,
               "offsets fit 63 bits");

static void put_pair(unsigned char *p, const uint64_t pair[2]) {
    shore__put_u64(p, pair[0]);
    shore__put_u64(p + 8, pair[1]);
}

static void get_pair(const unsigned char *p, uint64_t pair[2]) {
    pair[0] = shore__get_u64(p);
    pair[1] = shore__get_u64(p + 8);
}

static bool same_pair(const uint64_t a[2], const uint64_t b[2]) {
    return a[0] == b[0] && a[1] == b[1];
}

static bool all_zero(const unsigned char *page) {
    return page[0] == 0 && memcmp(page, page + 1, SHORE__PAGE_BYTES - 1) == 0;
}

static void checksum(const unsigned char *page, unsigned field, unsigned char out[16]) {
    unsigned char copy[SHORE__PAGE_BYTES];
    memcpy(copy, page, sizeof copy);
    memset(copy + field, 0, 16);
    shore__hash128(copy, sizeof copy, 0, out);
}

static bool checksum_holds(const unsigned char *page, unsigned field) {
    unsigned char sum[16];
    checksum(page, field, sum);
    return memcmp(sum, page + field, 16) == 0;
}

static bool planes_valid(const struct shore__volume_desc *desc) {
    uint32_t any = 0;
    for (unsigned plane = 0; plane < SHORE_PLANE_COUNT; plane++) {
        any |= desc->plane_bytes[plane];
        if (desc->plane_bytes[plane] > PLANE_BYTES_MOST) return false;
    }
    return any && any % SHORE__PAGE_BYTES == 0;
}

int shore__regions_make(const struct shore__volume_desc *desc, uint32_t version, struct shore__regions *out) {
    if (desc->segments > SHORE__SEGMENTS_MOST || desc->nextents > SHORE__EXTENTS_MOST ||
        desc->nextents > desc->segments || desc->identity_bytes > SHORE__IDENTITY_BYTES ||
        desc->scratch_bytes > SCRATCH_MOST || desc->scratch_bytes % SHORE__PAGE_BYTES || !planes_valid(desc))
        return -EINVAL;
    *out = (struct shore__regions){0};
    uint64_t at =
        SHORE__PLACEMENT_OFFSET + shore__round_up((uint64_t)desc->nextents * SHORE__EXTENT_BYTES, SHORE__PAGE_BYTES);
    out->table_bytes = shore__round_up((uint64_t)desc->segments * sizeof(struct shore__leaves), SHORE__PAGE_BYTES);
    for (unsigned slot = 0; slot < 2; slot++) {
        out->table[slot] = at;
        at += out->table_bytes;
    }
    out->map_bytes = shore__round_up(((uint64_t)desc->segments + 7) / 8, SHORE__PAGE_BYTES);
    for (unsigned slot = 0; slot < 2 && version > 2; slot++) {
        bool small = out->map_bytes <= SHORE__MAP_SMALL_BYTES;
        out->map[slot] = small ? SHORE__MAP_OFFSET + (uint64_t)slot * SHORE__MAP_STRIDE : at;
        if (!small) at += out->map_bytes;
    }
    at = shore__round_up(at, REGION_ALIGN);
    for (unsigned slot = 0; slot < 2; slot++) {
        for (unsigned plane = 0; plane < SHORE_PLANE_COUNT; plane++) {
            out->plane[slot][plane] = at;
            at += (uint64_t)desc->segments * desc->plane_bytes[plane];
        }
    }
    out->spill = at;
    if (desc->spill) at += (uint64_t)desc->segments * SHORE_SEGMENT_ELEMS * 4;
    out->scratch = at;
    out->end = at + desc->scratch_bytes;
    return 0;
}

bool shore__regions_renewable(const struct shore__volume_desc *desc, uint32_t version) {
    struct shore__regions now, renewed;
    return !shore__regions_make(desc, version, &now) && !shore__regions_make(desc, SHORE__VOLUME_VERSION, &renewed) &&
           now.end == renewed.end;
}

void shore__header_write(const struct shore__header *header, unsigned char *page) {
    const struct shore__volume_desc *desc = &header->desc;
    memset(page, 0, SHORE__PAGE_BYTES);
    memcpy(page, header_magic, sizeof header_magic);
    shore__put_u32(page + HEADER_VERSION, header->version);
    shore__put_u32(page + HEADER_FLAGS, (header->unfinished ? FLAG_UNFINISHED : 0) | (desc->spill ? FLAG_SPILL : 0) |
                                            (desc->apart ? FLAG_APART : 0));
    if (desc->apart) memcpy(page + HEADER_REST_KEY, desc->rest_key, sizeof desc->rest_key);
    put_pair(page + HEADER_VOLUME_ID, desc->volume_id);
    put_pair(page + HEADER_FLEET_ID, desc->fleet_id);
    shore__put_u32(page + HEADER_DRIVE, desc->drive);
    shore__put_u32(page + HEADER_NDRIVES, desc->ndrives);
    shore__put_u64(page + HEADER_GENERATION, desc->generation);
    for (unsigned plane = 0; plane < SHORE_PLANE_COUNT; plane++)
        shore__put_u32(page + HEADER_PLANE_BYTES + 4 * plane, desc->plane_bytes[plane]);
    shore__put_u32(page + HEADER_PLANE_FORM, desc->plane_form);
    shore__put_u32(page + HEADER_SEGMENTS, desc->segments);
    shore__put_u32(page + HEADER_NEXTENTS, desc->nextents);
    shore__put_u32(page + HEADER_IDENTITY_BYTES, desc->identity_bytes);
    shore__put_u64(page + HEADER_SCRATCH_BYTES, desc->scratch_bytes);
    shore__put_u64(page + HEADER_SIZE_BYTES, header->size_bytes);
    memcpy(page + HEADER_PLACEMENT_HASH, header->placement_hash, 16);
    memcpy(page + HEADER_IDENTITY_HASH, header->identity_hash, 16);
    checksum(page, HEADER_CHECKSUM, page + HEADER_CHECKSUM);
}

enum shore__parse shore__header_parse(const unsigned char *page, struct shore__header *out) {
    *out = (struct shore__header){0};
    if (all_zero(page)) return SHORE__PARSE_EMPTY;
    if (memcmp(page, header_magic, sizeof header_magic) != 0) return SHORE__PARSE_FOREIGN;
    out->version = shore__get_u32(page + HEADER_VERSION);
    /* Another version may keep its checksum elsewhere, so its number is trusted without one. */
    if (out->version < SHORE__VOLUME_OLDEST || out->version > SHORE__VOLUME_APART) return SHORE__PARSE_VERSION;
    if (!checksum_holds(page, HEADER_CHECKSUM)) return SHORE__PARSE_DAMAGED;

    struct shore__volume_desc *desc = &out->desc;
    uint32_t flags = shore__get_u32(page + HEADER_FLAGS);
    out->unfinished = flags & FLAG_UNFINISHED;
    desc->spill = flags & FLAG_SPILL;
    desc->apart = flags & FLAG_APART;
    if (desc->apart) memcpy(desc->rest_key, page + HEADER_REST_KEY, sizeof desc->rest_key);
    get_pair(page + HEADER_VOLUME_ID, desc->volume_id);
    get_pair(page + HEADER_FLEET_ID, desc->fleet_id);
    desc->drive = shore__get_u32(page + HEADER_DRIVE);
    desc->ndrives = shore__get_u32(page + HEADER_NDRIVES);
    desc->generation = shore__get_u64(page + HEADER_GENERATION);
    for (unsigned plane = 0; plane < SHORE_PLANE_COUNT; plane++)
        desc->plane_bytes[plane] = shore__get_u32(page + HEADER_PLANE_BYTES + 4 * plane);
    desc->plane_form = shore__get_u32(page + HEADER_PLANE_FORM);
    desc->segments = shore__get_u32(page + HEADER_SEGMENTS);
    desc->nextents = shore__get_u32(page + HEADER_NEXTENTS);
    desc->identity_bytes = shore__get_u32(page + HEADER_IDENTITY_BYTES);
    desc->scratch_bytes = shore__get_u64(page + HEADER_SCRATCH_BYTES);
    out->size_bytes = shore__get_u64(page + HEADER_SIZE_BYTES);
    memcpy(out->placement_hash, page + HEADER_PLACEMENT_HASH, 16);
    memcpy(out->identity_hash, page + HEADER_IDENTITY_HASH, 16);

    struct shore__regions at;
    bool sane = flags <= (FLAG_UNFINISHED | FLAG_SPILL | FLAG_APART) &&
                desc->apart == (out->version == SHORE__VOLUME_APART) && desc->drive < desc->ndrives &&
                shore__regions_make(desc, out->version, &at) == 0 && at.end == out->size_bytes;
    return sane ? SHORE__PARSE_OK : SHORE__PARSE_DAMAGED;
}

void shore__extents_write(const struct shore__extent *extents, uint32_t count, unsigned char *bytes) {
    for (uint32_t i = 0; i < count; i++, bytes += SHORE__EXTENT_BYTES) {
        struct shore__extent e = extents[i];
        shore__put_u32(bytes, e.block);
        shore__put_u32(bytes + 4, e.first);
        shore__put_u32(bytes + 8, e.count);
        shore__put_u32(bytes + 12, e.local);
    }
}

void shore__extents_read(const unsigned char *bytes, uint32_t count, struct shore__extent *extents) {
    for (uint32_t i = 0; i < count; i++, bytes += SHORE__EXTENT_BYTES) {
        struct shore__extent e = {shore__get_u32(bytes), shore__get_u32(bytes + 4), shore__get_u32(bytes + 8),
                                  shore__get_u32(bytes + 12)};
        extents[i] = e;
    }
}

bool shore__extents_valid(const struct shore__extent *extents, uint32_t count, uint32_t segments) {
    uint64_t local = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct shore__extent *e = &extents[i];
        if (e->count == 0 || e->local != local || (uint64_t)e->first + e->count > SHORE__SEGMENTS_MOST) return false;
        if (i > 0) {
            const struct shore__extent *before = e - 1;
            if (e->block < before->block || (e->block == before->block && e->first < before->first + before->count))
                return false;
        }
        local += e->count;
    }
    return local == segments;
}

static void slot_more_write(const struct shore__slot_state *slot, unsigned char *p) {
    shore__put_u32(p, (slot->mapped ? SLOT_MAPPED : 0) | (slot->blob_place ? SLOT_BLOB_PLACE_1 : 0));
    shore__put_u32(p + 4, slot->blob_bytes);
    memcpy(p + 8, slot->map_hash, 16);
    memcpy(p + 24, slot->blob_hash, 16);
}

static bool slot_more_parse(const unsigned char *p, struct shore__slot_state *slot) {
    uint32_t flags = shore__get_u32(p);
    slot->mapped = flags & SLOT_MAPPED ? 1 : 0;
    slot->blob_place = flags & SLOT_BLOB_PLACE_1 ? 1 : 0;
    slot->blob_bytes = shore__get_u32(p + 4);
    memcpy(slot->map_hash, p + 8, 16);
    memcpy(slot->blob_hash, p + 24, 16);
    return flags <= (SLOT_MAPPED | SLOT_BLOB_PLACE_1) && slot->blob_bytes <= SHORE_BLOB_BYTES;
}

void shore__record_write(const struct shore__volume_desc *desc, uint32_t version, const struct shore__record *record,
                         unsigned char *page) {
    memset(page, 0, SHORE__PAGE_BYTES);
    memcpy(page, record_magic, sizeof record_magic);
    shore__put_u32(page + RECORD_VERSION, version);
    shore__put_u32(page + RECORD_ACTIVE, record->active);
    put_pair(page + RECORD_VOLUME_ID, desc->volume_id);
    put_pair(page + RECORD_FLEET_ID, desc->fleet_id);
    shore__put_u64(page + RECORD_GENERATION, desc->generation);
    shore__put_u64(page + RECORD_SEQUENCE, record->sequence);
    shore__put_u64(page + RECORD_EPOCH, record->epoch);
    for (unsigned slot = 0; slot < 2; slot++) {
        unsigned char *p = page + RECORD_SLOT + slot * RECORD_SLOT_BYTES;
        shore__put_u64(p, record->slot[slot].step);
        memcpy(p + 8, record->slot[slot].table_hash, 16);
        if (version > 2) slot_more_write(&record->slot[slot], page + RECORD_SLOT_MORE + slot * RECORD_SLOT_MORE_BYTES);
    }
    shore__put_u32(page + RECORD_METRICS_BYTES, record->metrics_bytes);
    memcpy(page + RECORD_METRICS, record->metrics, record->metrics_bytes);
    checksum(page, RECORD_CHECKSUM, page + RECORD_CHECKSUM);
}

enum shore__parse shore__record_parse(const struct shore__volume_desc *desc, uint32_t version, unsigned place,
                                      const unsigned char *page, struct shore__record *out) {
    *out = (struct shore__record){0};
    if (all_zero(page)) return SHORE__PARSE_EMPTY;
    uint32_t written = shore__get_u32(page + RECORD_VERSION);
    if (memcmp(page, record_magic, sizeof record_magic) != 0 || written < SHORE__VOLUME_OLDEST || written > version ||
        !checksum_holds(page, RECORD_CHECKSUM))
        return SHORE__PARSE_DAMAGED;
    uint64_t volume_id[2], fleet_id[2];
    get_pair(page + RECORD_VOLUME_ID, volume_id);
    get_pair(page + RECORD_FLEET_ID, fleet_id);
    if (!same_pair(volume_id, desc->volume_id) || !same_pair(fleet_id, desc->fleet_id) ||
        shore__get_u64(page + RECORD_GENERATION) != desc->generation)
        return SHORE__PARSE_FOREIGN;
    out->active = shore__get_u32(page + RECORD_ACTIVE);
    out->sequence = shore__get_u64(page + RECORD_SEQUENCE);
    out->epoch = shore__get_u64(page + RECORD_EPOCH);
    bool slots_fit = true;
    for (unsigned slot = 0; slot < 2; slot++) {
        const unsigned char *p = page + RECORD_SLOT + slot * RECORD_SLOT_BYTES;
        out->slot[slot].step = shore__get_u64(p);
        memcpy(out->slot[slot].table_hash, p + 8, 16);
        const unsigned char *more = page + RECORD_SLOT_MORE + slot * RECORD_SLOT_MORE_BYTES;
        if (written > 2 && !slot_more_parse(more, &out->slot[slot])) slots_fit = false;
    }
    out->metrics_bytes = shore__get_u32(page + RECORD_METRICS_BYTES);
    bool sane = slots_fit && out->active < 2 && out->metrics_bytes <= SHORE__METRICS_BYTES &&
                (out->sequence & 1) == place && out->sequence != 0 && out->slot[out->active].step != SHORE__STEP_NONE;
    if (!sane) {
        *out = (struct shore__record){0};
        return SHORE__PARSE_DAMAGED;
    }
    memcpy(out->metrics, page + RECORD_METRICS, out->metrics_bytes);
    return SHORE__PARSE_OK;
}
