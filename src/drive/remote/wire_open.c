#include "drive/remote/wire_open.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/fields.h"
#include "base/units.h"
#include "storage/format.h"
#include "storage/room.h"

/* A setting is u16 key, u16 zero, u32 bytes, value. Readers may ignore unknown keys from FREE on; they must understand
 * all others. */
enum key {
    KEY_PATH = 1,
    KEY_VOLUME = 2,
    KEY_EXTENTS = 3,
    KEY_IDENTITY = 4,
    KEY_MODE = 5,
    KEY_LAYOUT = 6,
    KEY_OPTIMIZER = 7,
    KEY_IO = 8,
    KEY_PLANES = 9,
    KEY_FP32_PARAMS = 10,
    KEY_SILENCE_MS = 11,
    KEY_CONNECTIONS = 12,
    KEY_CAPS = 13,
    KEY_DISK_BYTES = 14,
    KEY_SLOTS = 15,
    KEY_SPAN_SEGMENTS = 16,
    KEY_SLOT_BYTES = 17,
    KEY_TOKEN = 18,
    KEY_RECOVERY = 19,
    KEY_MOMENTS = 20,
    KEY_FREE = 0x8000,
    KEY_BUILD = 0x8001,
    KEY_DESCRIBE = 0x8002,
    KEY_RESTS = 0x8003,
};

#define PLANE_BYTES_MOST (SHORE_SEGMENT_ELEMS * 8u)
#define TENSORS_MOST 1000000u
#define BLOCKS_MOST 100000u

/* A setting without its value; older servers send anything in the gap. */
struct setting {
    uint16_t key;
    uint32_t bytes;
};
#define SETTING_BYTES 8u
static const struct shore__field setting_fields[] = {SHORE__FIELD(struct setting, key, 2), SHORE__FIELD_SPARE(2),
                                                     SHORE__FIELD(struct setting, bytes, 4), SHORE__FIELDS_END};

static const struct shore__field volume_fields[] = {
    SHORE__FIELD_ARRAY(struct shore__volume_desc, fleet_id),
    SHORE__FIELD_ARRAY(struct shore__volume_desc, volume_id),
    SHORE__FIELD(struct shore__volume_desc, generation, 8),
    SHORE__FIELD(struct shore__volume_desc, scratch_bytes, 8),
    SHORE__FIELD(struct shore__volume_desc, drive, 4),
    SHORE__FIELD(struct shore__volume_desc, ndrives, 4),
    SHORE__FIELD(struct shore__volume_desc, spill, 4),
    SHORE__FIELD(struct shore__volume_desc, segments, 4),
    SHORE__FIELD(struct shore__volume_desc, plane_form, 4),
    SHORE__FIELD_ARRAY(struct shore__volume_desc, plane_bytes),
    SHORE__FIELDS_END,
};

/* A tensor of a layout, before its name. */
struct tensor {
    uint64_t elems;
    uint32_t group;
    uint8_t name_bytes;
};
#define TENSOR_BYTES 13u
static const struct shore__field tensor_fields[] = {SHORE__FIELD(struct tensor, elems, 8),
                                                    SHORE__FIELD(struct tensor, group, 4),
                                                    SHORE__FIELD(struct tensor, name_bytes, 1), SHORE__FIELDS_END};

/* ---- writing ----------------------------------------------------------------------------------------------------- */

struct out {
    unsigned char *data;
    size_t used, room;
    bool failed;
};

static unsigned char *grow(struct out *o, size_t bytes) {
    if (o->failed || bytes > SHORE__WIRE_OPEN_BYTES) {
        o->failed = true;
        return NULL;
    }
    if (o->used + bytes > o->room) {
        size_t room = (o->used + bytes) * 2;
        unsigned char *data = realloc(o->data, room);
        if (!data) {
            o->failed = true;
            return NULL;
        }
        o->data = data;
        o->room = room;
    }
    o->used += bytes;
    return o->data + o->used - bytes;
}

/* Returns the place of the value, whose length is known. */
static unsigned char *put(struct out *o, unsigned key, size_t bytes) {
    unsigned char *at = grow(o, SETTING_BYTES + bytes);
    const struct setting head = {(uint16_t)key, (uint32_t)bytes};
    return at ? shore__fields_put(at, setting_fields, &head) : NULL;
}

static void put_bytes(struct out *o, unsigned key, const void *data, size_t bytes) {
    unsigned char *at = put(o, key, bytes);
    if (at && bytes) memcpy(at, data, bytes);
}

void shore__wire_volume_put(unsigned char *at, const struct shore__volume_desc *d) {
    const unsigned char *end = shore__fields_put(at, volume_fields, d);
    assert(end == at + SHORE__WIRE_VOLUME_BYTES);
}

static void put_volume(struct out *o, const struct shore__volume_desc *d) {
    unsigned char *at = put(o, KEY_VOLUME, SHORE__WIRE_VOLUME_BYTES);
    if (at) shore__wire_volume_put(at, d);
    at = put(o, KEY_EXTENTS, (size_t)d->nextents * SHORE__EXTENT_BYTES);
    if (at) shore__extents_write(d->extents, d->nextents, at);
    put_bytes(o, KEY_IDENTITY, d->identity, d->identity_bytes);
}

static void put_rests(struct out *o, const struct shore_layout *l) {
    unsigned char *at = put(o, KEY_RESTS, (l->nblocks + 7) / 8);
    if (at) memset(at, 0, (l->nblocks + 7) / 8);
    for (uint32_t b = 0; at && b < l->nblocks; b++)
        if (shore__block_rests(&l->blocks[b])) at[b / 8] |= (unsigned char)(1u << b % 8);
}

static void put_layout(struct out *o, const struct shore_layout *l) {
    size_t before = o->used;
    unsigned char *at = put(o, KEY_LAYOUT, 4);
    if (!at) return;
    shore__put_u32(at, l->nblocks);
    for (uint32_t b = 0; b < l->nblocks; b++) {
        const struct shore_layout_block *block = &l->blocks[b];
        if (!(at = grow(o, 4))) return;
        shore__put_u32(at, block->ntensors);
        for (uint32_t t = 0; t < block->ntensors; t++) {
            const struct shore_layout_tensor *tensor = &block->tensors[t];
            const size_t name = tensor->name ? strnlen(tensor->name, 255) : 0;
            /* resting segments have a setting of their own and take their full room there: older servers do not know
             * them */
            const struct tensor head = {tensor->elems, tensor->group == SHORE_GROUP_RESTS ? 0 : tensor->group,
                                        (uint8_t)name};
            if (!(at = grow(o, TENSOR_BYTES + name))) return;
            at = shore__fields_put(at, tensor_fields, &head);
            if (name) memcpy(at, tensor->name, name);
        }
    }
    const struct setting head = {KEY_LAYOUT, (uint32_t)(o->used - before - SETTING_BYTES)};
    shore__fields_put(o->data + before, setting_fields, &head);
}

/* What is a text, or a number or array of fixed size; the order is that of the bytes. */
enum side { BOTH, REQUEST, ANSWER };
static const struct row {
    enum key key;
    enum side side;
    struct shore__field of[2]; /* member 0: the text at that place */
} rows[] = {
#define TEXT(key, side, name)                                    \
    {                                                            \
        key, side, {                                             \
            { offsetof(struct shore__wire_open, name), 0, 1, 0 } \
        }                                                        \
    }
#define NUMBER(key, side, name, bytes)                         \
    {                                                          \
        key, side, {                                           \
            SHORE__FIELD(struct shore__wire_open, name, bytes) \
        }                                                      \
    }
#define ARRAY(key, side, name)                                \
    {                                                         \
        key, side, {                                          \
            SHORE__FIELD_ARRAY(struct shore__wire_open, name) \
        }                                                     \
    }
    TEXT(KEY_PATH, BOTH, path),
    TEXT(KEY_BUILD, BOTH, build),
    TEXT(KEY_DESCRIBE, ANSWER, describe),
    NUMBER(KEY_CAPS, ANSWER, caps, 4),
    NUMBER(KEY_DISK_BYTES, ANSWER, disk_bytes, 8),
    NUMBER(KEY_SLOTS, ANSWER, slots, 4),
    NUMBER(KEY_SPAN_SEGMENTS, ANSWER, span_segments, 4),
    NUMBER(KEY_SLOT_BYTES, ANSWER, slot_bytes, 8),
    ARRAY(KEY_TOKEN, ANSWER, token),
    NUMBER(KEY_MODE, REQUEST, mode, 4),
    NUMBER(KEY_OPTIMIZER, REQUEST, optimizer, 4),
    NUMBER(KEY_IO, REQUEST, io, 4),
    ARRAY(KEY_PLANES, REQUEST, plane_bytes),
    NUMBER(KEY_FP32_PARAMS, REQUEST, fp32_params, 4),
    NUMBER(KEY_MOMENTS, REQUEST, moments, 4),
    NUMBER(KEY_SILENCE_MS, REQUEST, silence_ms, 4),
    NUMBER(KEY_CONNECTIONS, REQUEST, connections, 4),
};
#define FOR_EACH_ROW(row) for (const struct row *row = rows; row < rows + sizeof rows / sizeof *rows; row++)

static char **text_of(const struct row *row, const struct shore__wire_open *o) {
    return (char **)(void *)((char *)(uintptr_t)o + row->of->at);
}

static void put_row(struct out *out, const struct row *row, const struct shore__wire_open *o) {
    const char *text = row->of->member ? NULL : *text_of(row, o);
    if (text) put_bytes(out, row->key, text, strlen(text));
    unsigned char *at = row->of->member ? put(out, row->key, (size_t)row->of->bytes * row->of->count) : NULL;
    if (at) shore__fields_put(at, row->of, o);
}

int shore__wire_open_put(const struct shore__wire_open *o, bool answer, unsigned char **body, uint32_t *bytes) {
    struct out out = {0};
    FOR_EACH_ROW(row) {
        if (row->side == BOTH || row->side == (answer ? ANSWER : REQUEST)) put_row(&out, row, o);
        if (row->key == KEY_BUILD && o->has_desc) put_volume(&out, &o->desc);
    }
    if (answer && o->has_recovery) {
        unsigned char recovery[SHORE__WIRE_RECOVERY_BYTES];
        put_bytes(&out, KEY_RECOVERY, recovery, shore__wire_recovery_put(recovery, &o->recovery));
    }
    if (!answer && o->layout) {
        put_layout(&out, o->layout);
        put_rests(&out, o->layout);
    }
    if (out.failed || out.used > SHORE__WIRE_OPEN_BYTES - SHORE__WIRE_ANSWER_BYTES) {
        free(out.data);
        return out.failed ? -ENOMEM : -E2BIG;
    }
    *body = out.data;
    *bytes = (uint32_t)out.used;
    return 0;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

struct value {
    const unsigned char *at;
    uint32_t bytes;
};

static int get_text(struct value v, char **out) {
    if (*out || v.bytes > 8192 || memchr(v.at, 0, v.bytes)) return SHORE_ELINK;
    *out = strndup((const char *)v.at, v.bytes);
    return *out ? 0 : -ENOMEM;
}

/* No plane is larger than this, and the parameters are always there. */
static bool planes_are_sound(const uint32_t plane_bytes[SHORE_PLANE_COUNT]) {
    for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
        if (plane_bytes[p] > PLANE_BYTES_MOST || plane_bytes[p] % SHORE__IO_ALIGN) return false;
        if (p <= SHORE_PLANE_LO && plane_bytes[p] != SHORE_SEGMENT_ELEMS * 2) return false;
    }
    return true;
}

bool shore__wire_volume_get(const unsigned char *at, struct shore__volume_desc *d) {
    shore__fields_get(at, at + SHORE__WIRE_VOLUME_BYTES, volume_fields, d);
    return d->scratch_bytes % SHORE__IO_ALIGN == 0 && d->scratch_bytes <= UINT64_C(1) << 56 && d->drive < d->ndrives &&
           planes_are_sound(d->plane_bytes);
}

static int get_volume(struct value v, struct shore__wire_open *o) {
    if (v.bytes != SHORE__WIRE_VOLUME_BYTES || o->has_desc) return SHORE_ELINK;
    o->has_desc = true;
    return shore__wire_volume_get(v.at, &o->desc) ? 0 : SHORE_ELINK;
}

static int get_extents(struct value v, struct shore__wire_open *o) {
    if (v.bytes % SHORE__EXTENT_BYTES || o->desc.extents) return SHORE_ELINK;
    uint32_t n = v.bytes / SHORE__EXTENT_BYTES;
    struct shore__extent *extents = calloc((size_t)n + 1, sizeof *extents);
    if (!extents) return -ENOMEM;
    o->desc.extents = extents;
    o->desc.nextents = n;
    shore__extents_read(v.at, n, extents);
    return 0;
}

static int get_identity(struct value v, struct shore__wire_open *o) {
    if (v.bytes > SHORE__IDENTITY_BYTES || o->desc.identity) return SHORE_ELINK;
    void *copy = malloc((size_t)v.bytes + 1);
    if (!copy) return -ENOMEM;
    memcpy(copy, v.at, v.bytes);
    o->desc.identity = copy;
    o->desc.identity_bytes = v.bytes;
    return 0;
}

/* Counts in a first pass, decodes in a second: nothing is allocated for untrusted numbers before the bytes are known to
 * be there. */
static bool count_tensors(struct value v, uint32_t nblocks, uint64_t *tensors, uint64_t *name_bytes) {
    const unsigned char *at = v.at + 4, *end = v.at + v.bytes;
    *tensors = *name_bytes = 0;
    for (uint32_t b = 0; b < nblocks; b++) {
        if (end - at < 4) return false;
        uint32_t n = shore__get_u32(at);
        at += 4;
        if (n == 0 || n > TENSORS_MOST) return false;
        *tensors += n;
        for (uint32_t t = 0; t < n; t++) {
            struct tensor head;
            at = shore__fields_get(at, end, tensor_fields, &head);
            if (!at || (size_t)(end - at) < head.name_bytes || head.elems == 0 || head.elems > UINT64_C(1) << 44 ||
                head.group >= SHORE__WIRE_GROUPS_MOST)
                return false;
            *name_bytes += head.name_bytes + 1u;
            at += head.name_bytes;
        }
    }
    return at == end && *tensors <= TENSORS_MOST;
}

static int get_layout(struct value v, struct shore__wire_open *o) {
    uint64_t tensors, name_bytes;
    if (v.bytes < 4 || o->layout) return SHORE_ELINK;
    uint32_t nblocks = shore__get_u32(v.at);
    if (nblocks == 0 || nblocks > BLOCKS_MOST || !count_tensors(v, nblocks, &tensors, &name_bytes)) return SHORE_ELINK;
    struct shore_block_spec *blocks = calloc(nblocks, sizeof *blocks);
    struct shore_tensor_spec *specs = calloc(tensors, sizeof *specs);
    char *names = malloc(name_bytes);
    int rc = blocks && specs && names ? 0 : -ENOMEM;
    const unsigned char *at = v.at + 4;
    struct shore_tensor_spec *spec = specs;
    char *name = names;
    for (uint32_t b = 0; !rc && b < nblocks; b++) {
        uint32_t n = shore__get_u32(at);
        at += 4;
        blocks[b] = (struct shore_block_spec){.name = "block", .tensors = spec, .ntensors = n};
        for (uint32_t t = 0; t < n; t++, spec++) {
            struct tensor head;
            at = shore__fields_get(at, v.at + v.bytes, tensor_fields, &head);
            *spec = (struct shore_tensor_spec){.name = name, .elems = head.elems, .group = head.group};
            memcpy(name, at, head.name_bytes);
            name[head.name_bytes] = 0;
            name += head.name_bytes + 1;
            at += head.name_bytes;
        }
    }
    if (!rc) rc = shore_layout_make(blocks, nblocks, &o->layout);
    free(names);
    free(specs);
    free(blocks);
    return rc && rc != -ENOMEM ? SHORE_ELINK : rc;
}

/* Called once the layout is there. */
static void apply_rests(struct shore__wire_open *o, struct value bits) {
    for (uint32_t b = 0; o->layout && b < o->layout->nblocks && b / 8 < bits.bytes; b++)
        for (uint32_t t = 0; bits.at[b / 8] >> b % 8 & 1 && t < o->layout->blocks[b].ntensors; t++)
            o->layout->blocks[b].tensors[t].group = SHORE_GROUP_RESTS;
}

static int get_row(const struct row *row, struct value v, struct shore__wire_open *o) {
    if (!row->of->member) return get_text(v, text_of(row, o));
    return shore__fields_get(v.at, v.at + v.bytes, row->of, o) == v.at + v.bytes ? 0 : SHORE_ELINK;
}

static int get_one(unsigned key, struct value v, bool answer, struct shore__wire_open *o) {
    FOR_EACH_ROW(row) {
        if (row->key == key && (row->side == BOTH || row->side == (answer ? ANSWER : REQUEST)))
            return get_row(row, v, o);
    }
    switch (key) {
    case KEY_VOLUME:
        return get_volume(v, o);
    case KEY_EXTENTS:
        return get_extents(v, o);
    case KEY_IDENTITY:
        return get_identity(v, o);
    case KEY_LAYOUT:
        return answer ? SHORE_EFORMAT : get_layout(v, o);
    case KEY_RECOVERY:
        o->has_recovery = answer;
        return !answer ? SHORE_EFORMAT : shore__wire_recovery_get(v.at, v.bytes, &o->recovery) ? 0 : SHORE_ELINK;
    default:
        return key >= KEY_FREE ? 0 : SHORE_EFORMAT;
    }
}

static bool extents_fit(const struct shore__volume_desc *d, const struct shore_layout *layout) {
    uint64_t local = 0;
    for (uint32_t i = 0; i < d->nextents; i++) {
        const struct shore__extent *e = &d->extents[i], *before = i ? e - 1 : NULL;
        if (e->count == 0 || e->local != local || e->count > UINT32_MAX - e->first) return false;
        if (before &&
            (e->block < before->block || (e->block == before->block && e->first < before->first + before->count)))
            return false;
        if (layout && (e->block >= layout->nblocks || e->first + e->count > layout->blocks[e->block].segments))
            return false;
        local += e->count;
    }
    return local == d->segments;
}

/* The planes follow from the other settings. Otherwise a request would be written beyond its buffers. */
static bool planes_fit(const struct shore__wire_open *o) {
    uint32_t plane_bytes[SHORE_PLANE_COUNT];
    struct shore_fleet_options options = {
        .optimizer = o->optimizer,
        .moments = o->moments,
        .with_momentum = o->plane_bytes[SHORE_PLANE_M] != 0,
        .residual = o->plane_bytes[SHORE_PLANE_R] != 0,
    };
    shore__planes_make(o->layout, &options, plane_bytes);
    return memcmp(plane_bytes, o->plane_bytes, sizeof plane_bytes) == 0 &&
           (!o->has_desc ||
            (o->desc.plane_form == o->moments && memcmp(plane_bytes, o->desc.plane_bytes, sizeof plane_bytes) == 0));
}

static bool is_sound(const struct shore__wire_open *o, bool answer) {
    if (!o->path || (o->has_desc && !extents_fit(&o->desc, o->layout))) return false;
    if (answer)
        return o->has_desc && o->has_recovery && o->slots > 0 && o->slots <= SHORE__WIRE_SLOTS_MOST &&
               o->span_segments > 0 && o->span_segments <= 1024 && o->slot_bytes <= SHORE__WIRE_BULK_BYTES &&
               o->slot_bytes >= (uint64_t)SHORE_SEGMENT_ELEMS * 16;
    bool there = o->mode == SHORE__WIRE_MODE_OPEN || o->mode == SHORE__WIRE_MODE_READ;
    return o->mode <= SHORE__WIRE_MODE_READ && o->layout && o->optimizer < SHORE_OPTIMIZER_COUNT &&
           o->moments <= SHORE_MOMENTS_8BIT && o->io <= SHORE_IO_BUFFERED && planes_are_sound(o->plane_bytes) &&
           planes_fit(o) && (there || o->has_desc);
}

int shore__wire_open_get(const unsigned char *body, uint32_t bytes, bool answer, struct shore__wire_open *out,
                         struct shore_diag *diag) {
    int rc = 0;
    unsigned key = 0;
    struct value rests = {0};
    *out = (struct shore__wire_open){0};
    for (const unsigned char *end = body + bytes; !rc && body < end;) {
        struct setting head;
        const unsigned char *at = shore__fields_get(body, end, setting_fields, &head);
        if (!at || head.bytes > (size_t)(end - at)) {
            rc = SHORE_ELINK;
            break;
        }
        key = head.key;
        const struct value v = {at, head.bytes};
        rc = get_one(key, v, answer, out);
        if (key == KEY_RESTS) rests = v;
        body = at + head.bytes;
    }
    apply_rests(out, rests);
    if (!rc && !is_sound(out, answer)) rc = SHORE_ELINK;
    if (!rc) return 0;
    shore__wire_open_free(out);
    if (rc == SHORE_EFORMAT)
        return shore__fail(diag, rc,
                           "the other side asks for something that this longshore does not know (setting %u): install "
                           "the same version on both hosts",
                           key);
    return shore__fail(diag, rc, "%s", rc == -ENOMEM ? "out of memory" : "the description of a drive came malformed");
}

void shore__wire_open_free(struct shore__wire_open *o) {
    free(o->path);
    free(o->build);
    free(o->describe);
    free((void *)o->desc.extents);
    free((void *)o->desc.identity);
    shore_layout_free(o->layout);
    *o = (struct shore__wire_open){0};
}
