#include "storage/format.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/fields.h"
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

#define HEADER_MAGIC "LONGSHOR"
#define RECORD_MAGIC "LSRECORD"
#define VERSION_OFFSET 8u    /* behind either magic */
#define CHECKSUM_BYTES 16u   /* of the page with these bytes zero */
#define HEADER_CHECKSUM 496u /* all fields of a header lie in one sector: it is written whole or not at all */
#define HEADER_REST_KEY 148u /* version 4 */
#define RECORD_METRICS 128u
#define RECORD_SLOT_MORE 2176u /* version 3 */
#define RECORD_CHECKSUM 4080u

/* Behind the magic. */
struct head {
    struct shore__header header;
    uint32_t flags;
};
#define DESC(name) header.desc.name
static const struct shore__field header_fields[] = {
    SHORE__FIELD(struct head, header.version, 4),
    SHORE__FIELD(struct head, flags, 4),
    SHORE__FIELD_ARRAY(struct head, DESC(volume_id)),
    SHORE__FIELD_ARRAY(struct head, DESC(fleet_id)),
    SHORE__FIELD(struct head, DESC(drive), 4),
    SHORE__FIELD(struct head, DESC(ndrives), 4),
    SHORE__FIELD(struct head, DESC(generation), 8),
    SHORE__FIELD(struct head, DESC(plane_form), 4),
    SHORE__FIELD(struct head, DESC(segments), 4),
    SHORE__FIELD(struct head, DESC(nextents), 4),
    SHORE__FIELD(struct head, DESC(identity_bytes), 4),
    SHORE__FIELD(struct head, DESC(scratch_bytes), 8),
    SHORE__FIELD(struct head, header.size_bytes, 8),
    SHORE__FIELD_ARRAY(struct head, header.placement_hash),
    SHORE__FIELD_ARRAY(struct head, header.identity_hash),
    SHORE__FIELD_ARRAY(struct head, DESC(plane_bytes)),
    SHORE__FIELDS_END,
};

/* Behind the magic. */
struct entry {
    struct shore__record record;
    struct shore__volume_desc desc; /* its ids and generation */
    uint32_t version;
};
static const struct shore__field record_fields[] = {
    SHORE__FIELD(struct entry, version, 4),
    SHORE__FIELD(struct entry, record.active, 4),
    SHORE__FIELD_ARRAY(struct entry, desc.volume_id),
    SHORE__FIELD_ARRAY(struct entry, desc.fleet_id),
    SHORE__FIELD(struct entry, desc.generation, 8),
    SHORE__FIELD(struct entry, record.sequence, 8),
    SHORE__FIELD(struct entry, record.epoch, 8),
    SHORE__FIELD(struct entry, record.slot[0].step, 8),
    SHORE__FIELD_ARRAY(struct entry, record.slot[0].table_hash),
    SHORE__FIELD(struct entry, record.slot[1].step, 8),
    SHORE__FIELD_ARRAY(struct entry, record.slot[1].table_hash),
    SHORE__FIELD(struct entry, record.metrics_bytes, 4),
    SHORE__FIELDS_END,
};

/* Of a slot, behind the metrics. */
struct more {
    struct shore__slot_state slot;
    uint32_t flags;
};
static const struct shore__field more_fields[] = {
    SHORE__FIELD(struct more, flags, 4),
    SHORE__FIELD(struct more, slot.blob_bytes, 4),
    SHORE__FIELD_ARRAY(struct more, slot.map_hash),
    SHORE__FIELD_ARRAY(struct more, slot.blob_hash),
    SHORE__FIELDS_END,
};

_Static_assert(HEADER_REST_KEY + SHORE__REST_KEY_BYTES <= HEADER_CHECKSUM, "the key ends before the checksum");
_Static_assert(HEADER_CHECKSUM + CHECKSUM_BYTES == SHORE__HEADER_FIELDS_BYTES, "a header is one sector");
_Static_assert(RECORD_METRICS + SHORE__METRICS_BYTES <= RECORD_SLOT_MORE, "metrics end before the rest of the slots");
_Static_assert(RECORD_CHECKSUM + CHECKSUM_BYTES == SHORE__PAGE_BYTES, "a record is one page");
_Static_assert(sizeof HEADER_MAGIC - 1 == SHORE__HEADER_MAGIC_BYTES && VERSION_OFFSET == SHORE__HEADER_MAGIC_BYTES,
               "both are the same");
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

static bool same_pair(const uint64_t a[2], const uint64_t b[2]) {
    return a[0] == b[0] && a[1] == b[1];
}

static bool all_zero(const unsigned char *page) {
    return page[0] == 0 && memcmp(page, page + 1, SHORE__PAGE_BYTES - 1) == 0;
}

static void checksum(const unsigned char *page, unsigned field, unsigned char out[16]) {
    unsigned char copy[SHORE__PAGE_BYTES];
    memcpy(copy, page, sizeof copy);
    memset(copy + field, 0, CHECKSUM_BYTES);
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
    struct head head = {.header = *header};
    memset(page, 0, SHORE__PAGE_BYTES);
    memcpy(page, HEADER_MAGIC, VERSION_OFFSET);
    head.flags =
        (header->unfinished ? FLAG_UNFINISHED : 0) | (desc->spill ? FLAG_SPILL : 0) | (desc->apart ? FLAG_APART : 0);
    const unsigned char *end = shore__fields_put(page + VERSION_OFFSET, header_fields, &head);
    assert(end == page + HEADER_REST_KEY);
    if (desc->apart) memcpy(page + HEADER_REST_KEY, desc->rest_key, sizeof desc->rest_key);
    checksum(page, HEADER_CHECKSUM, page + HEADER_CHECKSUM);
}

enum shore__parse shore__header_parse(const unsigned char *page, struct shore__header *out) {
    struct head head = {0};
    *out = (struct shore__header){0};
    if (all_zero(page)) return SHORE__PARSE_EMPTY;
    if (memcmp(page, HEADER_MAGIC, VERSION_OFFSET) != 0) return SHORE__PARSE_FOREIGN;
    out->version = shore__get_u32(page + VERSION_OFFSET);
    /* Another version may keep its checksum elsewhere, so its number is trusted without one. */
    if (out->version < SHORE__VOLUME_OLDEST || out->version > SHORE__VOLUME_APART) return SHORE__PARSE_VERSION;
    if (!checksum_holds(page, HEADER_CHECKSUM)) return SHORE__PARSE_DAMAGED;

    shore__fields_get(page + VERSION_OFFSET, page + HEADER_CHECKSUM, header_fields, &head);
    *out = head.header;
    struct shore__volume_desc *desc = &out->desc;
    out->unfinished = head.flags & FLAG_UNFINISHED;
    desc->spill = head.flags & FLAG_SPILL;
    desc->apart = head.flags & FLAG_APART;
    if (desc->apart) memcpy(desc->rest_key, page + HEADER_REST_KEY, sizeof desc->rest_key);

    struct shore__regions at;
    bool sane = head.flags <= (FLAG_UNFINISHED | FLAG_SPILL | FLAG_APART) &&
                desc->apart == (out->version == SHORE__VOLUME_APART) && desc->drive < desc->ndrives &&
                shore__regions_make(desc, out->version, &at) == 0 && at.end == out->size_bytes;
    return sane ? SHORE__PARSE_OK : SHORE__PARSE_DAMAGED;
}

static const struct shore__field extent_fields[] = {
    SHORE__FIELD(struct shore__extent, block, 4),
    SHORE__FIELD(struct shore__extent, first, 4),
    SHORE__FIELD(struct shore__extent, count, 4),
    SHORE__FIELD(struct shore__extent, local, 4),
    SHORE__FIELDS_END,
};

void shore__extents_write(const struct shore__extent *extents, uint32_t count, unsigned char *bytes) {
    for (uint32_t i = 0; i < count; i++)
        bytes = shore__fields_put(bytes, extent_fields, &extents[i]);
}

void shore__extents_read(const unsigned char *bytes, uint32_t count, struct shore__extent *extents) {
    const unsigned char *end = bytes + (size_t)count * SHORE__EXTENT_BYTES;
    for (uint32_t i = 0; i < count; i++)
        bytes = shore__fields_get(bytes, end, extent_fields, &extents[i]);
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

void shore__record_write(const struct shore__volume_desc *desc, uint32_t version, const struct shore__record *record,
                         unsigned char *page) {
    const struct entry entry = {.record = *record, .desc = *desc, .version = version};
    memset(page, 0, SHORE__PAGE_BYTES);
    memcpy(page, RECORD_MAGIC, VERSION_OFFSET);
    const unsigned char *end = shore__fields_put(page + VERSION_OFFSET, record_fields, &entry);
    assert(end <= page + RECORD_METRICS && record->metrics_bytes <= SHORE__METRICS_BYTES);
    memcpy(page + RECORD_METRICS, record->metrics, record->metrics_bytes);
    unsigned char *at = page + RECORD_SLOT_MORE;
    for (unsigned s = 0; s < 2 && version > 2; s++) {
        struct more more = {record->slot[s], 0};
        more.flags = (more.slot.mapped ? SLOT_MAPPED : 0) | (more.slot.blob_place ? SLOT_BLOB_PLACE_1 : 0);
        at = shore__fields_put(at, more_fields, &more);
    }
    assert(at <= page + RECORD_CHECKSUM);
    checksum(page, RECORD_CHECKSUM, page + RECORD_CHECKSUM);
}

/* What version 3 added to the slots. */
static bool more_parse(const unsigned char *page, struct shore__record *record) {
    const unsigned char *at = page + RECORD_SLOT_MORE;
    for (unsigned s = 0; s < 2; s++) {
        struct more more = {record->slot[s], 0};
        at = shore__fields_get(at, page + RECORD_CHECKSUM, more_fields, &more);
        more.slot.mapped = more.flags & SLOT_MAPPED ? 1 : 0;
        more.slot.blob_place = more.flags & SLOT_BLOB_PLACE_1 ? 1 : 0;
        if (more.flags > (SLOT_MAPPED | SLOT_BLOB_PLACE_1) || more.slot.blob_bytes > SHORE_BLOB_BYTES) return false;
        record->slot[s] = more.slot;
    }
    return true;
}

enum shore__parse shore__record_parse(const struct shore__volume_desc *desc, uint32_t version, unsigned place,
                                      const unsigned char *page, struct shore__record *out) {
    struct entry entry = {0};
    struct shore__record *r = &entry.record;
    *out = (struct shore__record){0};
    if (all_zero(page)) return SHORE__PARSE_EMPTY;
    shore__fields_get(page + VERSION_OFFSET, page + RECORD_METRICS, record_fields, &entry);
    if (memcmp(page, RECORD_MAGIC, VERSION_OFFSET) != 0 || entry.version < SHORE__VOLUME_OLDEST ||
        entry.version > version || !checksum_holds(page, RECORD_CHECKSUM))
        return SHORE__PARSE_DAMAGED;
    if (!same_pair(entry.desc.volume_id, desc->volume_id) || !same_pair(entry.desc.fleet_id, desc->fleet_id) ||
        entry.desc.generation != desc->generation)
        return SHORE__PARSE_FOREIGN;
    bool sane = (entry.version < 3 || more_parse(page, r)) && r->active < 2 &&
                r->metrics_bytes <= SHORE__METRICS_BYTES && (r->sequence & 1) == place && r->sequence != 0 &&
                r->slot[r->active].step != SHORE__STEP_NONE;
    if (!sane) return SHORE__PARSE_DAMAGED;
    memcpy(r->metrics, page + RECORD_METRICS, r->metrics_bytes);
    *out = *r;
    return SHORE__PARSE_OK;
}
