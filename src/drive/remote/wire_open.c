#include "drive/remote/wire_open.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
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
#define EXTENT_BYTES 16u
#define PLANES_BYTES (4u * SHORE_PLANE_COUNT)

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
    unsigned char *at = grow(o, 8 + bytes);
    if (!at) return NULL;
    shore__put_u16(at, (uint16_t)key);
    shore__put_u16(at + 2, 0);
    shore__put_u32(at + 4, (uint32_t)bytes);
    return at + 8;
}

static void put_u32(struct out *o, unsigned key, uint32_t v) {
    unsigned char *at = put(o, key, 4);
    if (at) shore__put_u32(at, v);
}

static void put_u64(struct out *o, unsigned key, uint64_t v) {
    unsigned char *at = put(o, key, 8);
    if (at) shore__put_u64(at, v);
}

static void put_bytes(struct out *o, unsigned key, const void *data, size_t bytes) {
    unsigned char *at = put(o, key, bytes);
    if (at && bytes) memcpy(at, data, bytes);
}

static void put_text(struct out *o, unsigned key, const char *text) {
    if (text) put_bytes(o, key, text, strlen(text));
}

static void put_planes(unsigned char *at, const uint32_t plane_bytes[SHORE_PLANE_COUNT]) {
    for (int p = 0; p < SHORE_PLANE_COUNT; p++)
        shore__put_u32(at + 4 * p, plane_bytes[p]);
}

void shore__wire_volume_put(unsigned char *at, const struct shore__volume_desc *d) {
    shore__put_u64(at, d->fleet_id[0]);
    shore__put_u64(at + 8, d->fleet_id[1]);
    shore__put_u64(at + 16, d->volume_id[0]);
    shore__put_u64(at + 24, d->volume_id[1]);
    shore__put_u64(at + 32, d->generation);
    shore__put_u64(at + 40, d->scratch_bytes);
    shore__put_u32(at + 48, d->drive);
    shore__put_u32(at + 52, d->ndrives);
    shore__put_u32(at + 56, d->spill);
    shore__put_u32(at + 60, d->segments);
    shore__put_u32(at + 64, d->plane_form);
    put_planes(at + 68, d->plane_bytes);
}

static void put_volume(struct out *o, const struct shore__volume_desc *d) {
    unsigned char *at = put(o, KEY_VOLUME, SHORE__WIRE_VOLUME_BYTES);
    if (!at) return;
    shore__wire_volume_put(at, d);
    at = put(o, KEY_EXTENTS, (size_t)d->nextents * EXTENT_BYTES);
    for (uint32_t i = 0; at && i < d->nextents; i++, at += EXTENT_BYTES) {
        shore__put_u32(at, d->extents[i].block);
        shore__put_u32(at + 4, d->extents[i].first);
        shore__put_u32(at + 8, d->extents[i].count);
        shore__put_u32(at + 12, d->extents[i].local);
    }
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
            size_t name = tensor->name ? strnlen(tensor->name, 255) : 0;
            if (!(at = grow(o, 13 + name))) return;
            shore__put_u64(at, tensor->elems);
            /* resting segments have a setting of their own and take their full room there: older servers do not know
             * them */
            shore__put_u32(at + 8, tensor->group == SHORE_GROUP_RESTS ? 0 : tensor->group);
            at[12] = (unsigned char)name;
            if (name) memcpy(at + 13, tensor->name, name);
        }
    }
    shore__put_u32(o->data + before + 4, (uint32_t)(o->used - before - 8));
}

int shore__wire_open_put(const struct shore__wire_open *o, bool answer, unsigned char **body, uint32_t *bytes) {
    struct out out = {0};
    put_text(&out, KEY_PATH, o->path);
    put_text(&out, KEY_BUILD, o->build);
    if (o->has_desc) put_volume(&out, &o->desc);
    if (answer) {
        unsigned char recovery[SHORE__WIRE_RECOVERY_BYTES];
        put_text(&out, KEY_DESCRIBE, o->describe);
        put_u32(&out, KEY_CAPS, o->caps);
        put_u64(&out, KEY_DISK_BYTES, o->disk_bytes);
        put_u32(&out, KEY_SLOTS, o->slots);
        put_u32(&out, KEY_SPAN_SEGMENTS, o->span_segments);
        put_u64(&out, KEY_SLOT_BYTES, o->slot_bytes);
        put_bytes(&out, KEY_TOKEN, o->token, sizeof o->token);
        if (o->has_recovery) put_bytes(&out, KEY_RECOVERY, recovery, shore__wire_recovery_put(recovery, &o->recovery));
    } else {
        put_u32(&out, KEY_MODE, o->mode);
        put_u32(&out, KEY_OPTIMIZER, o->optimizer);
        put_u32(&out, KEY_IO, o->io);
        unsigned char *planes = put(&out, KEY_PLANES, PLANES_BYTES);
        if (planes) put_planes(planes, o->plane_bytes);
        put_u32(&out, KEY_FP32_PARAMS, o->fp32_params);
        put_u32(&out, KEY_MOMENTS, o->moments);
        put_u32(&out, KEY_SILENCE_MS, o->silence_ms);
        put_u32(&out, KEY_CONNECTIONS, o->connections);
        if (o->layout) put_layout(&out, o->layout);
        if (o->layout) put_rests(&out, o->layout);
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

static int get_u32(struct value v, uint32_t *out) {
    if (v.bytes != 4) return SHORE_ELINK;
    *out = shore__get_u32(v.at);
    return 0;
}

static int get_u64(struct value v, uint64_t *out) {
    if (v.bytes != 8) return SHORE_ELINK;
    *out = shore__get_u64(v.at);
    return 0;
}

static int get_text(struct value v, char **out) {
    if (*out || v.bytes > 8192 || memchr(v.at, 0, v.bytes)) return SHORE_ELINK;
    *out = strndup((const char *)v.at, v.bytes);
    return *out ? 0 : -ENOMEM;
}

/* No plane is larger than this, and the parameters are always there. */
static int get_planes(struct value v, uint32_t plane_bytes[SHORE_PLANE_COUNT]) {
    if (v.bytes != PLANES_BYTES) return SHORE_ELINK;
    for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
        plane_bytes[p] = shore__get_u32(v.at + 4 * p);
        if (plane_bytes[p] > PLANE_BYTES_MOST || plane_bytes[p] % SHORE__IO_ALIGN) return SHORE_ELINK;
        if (p <= SHORE_PLANE_LO && plane_bytes[p] != SHORE_SEGMENT_ELEMS * 2) return SHORE_ELINK;
    }
    return 0;
}

bool shore__wire_volume_get(const unsigned char *at, struct shore__volume_desc *d) {
    d->fleet_id[0] = shore__get_u64(at);
    d->fleet_id[1] = shore__get_u64(at + 8);
    d->volume_id[0] = shore__get_u64(at + 16);
    d->volume_id[1] = shore__get_u64(at + 24);
    d->generation = shore__get_u64(at + 32);
    d->scratch_bytes = shore__get_u64(at + 40);
    d->drive = shore__get_u32(at + 48);
    d->ndrives = shore__get_u32(at + 52);
    d->spill = shore__get_u32(at + 56) != 0;
    d->segments = shore__get_u32(at + 60);
    d->plane_form = shore__get_u32(at + 64);
    return d->scratch_bytes % SHORE__IO_ALIGN == 0 && d->scratch_bytes <= UINT64_C(1) << 56 && d->drive < d->ndrives &&
           get_planes((struct value){at + 68, PLANES_BYTES}, d->plane_bytes) == 0;
}

static int get_volume(struct value v, struct shore__wire_open *o) {
    if (v.bytes != SHORE__WIRE_VOLUME_BYTES || o->has_desc) return SHORE_ELINK;
    o->has_desc = true;
    return shore__wire_volume_get(v.at, &o->desc) ? 0 : SHORE_ELINK;
}

static int get_extents(struct value v, struct shore__wire_open *o) {
    if (v.bytes % EXTENT_BYTES || o->desc.extents) return SHORE_ELINK;
    uint32_t n = v.bytes / EXTENT_BYTES;
    struct shore__extent *extents = calloc((size_t)n + 1, sizeof *extents);
    if (!extents) return -ENOMEM;
    o->desc.extents = extents;
    o->desc.nextents = n;
    for (uint32_t i = 0; i < n; i++, v.at += EXTENT_BYTES)
        extents[i] = (struct shore__extent){shore__get_u32(v.at), shore__get_u32(v.at + 4), shore__get_u32(v.at + 8),
                                            shore__get_u32(v.at + 12)};
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
            if (end - at < 13 || end - at - 13 < at[12]) return false;
            uint64_t elems = shore__get_u64(at);
            if (elems == 0 || elems > UINT64_C(1) << 44 || shore__get_u32(at + 8) >= SHORE__WIRE_GROUPS_MOST)
                return false;
            *name_bytes += at[12] + 1u;
            at += 13 + at[12];
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
            spec->elems = shore__get_u64(at);
            spec->group = shore__get_u32(at + 8);
            spec->name = name;
            memcpy(name, at + 13, at[12]);
            name[at[12]] = 0;
            name += at[12] + 1;
            at += 13 + at[12];
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

static int get_of_answer(unsigned key, struct value v, struct shore__wire_open *o) {
    switch (key) {
    case KEY_CAPS:
        return get_u32(v, &o->caps);
    case KEY_DESCRIBE:
        return get_text(v, &o->describe);
    case KEY_DISK_BYTES:
        return get_u64(v, &o->disk_bytes);
    case KEY_SLOTS:
        return get_u32(v, &o->slots);
    case KEY_SPAN_SEGMENTS:
        return get_u32(v, &o->span_segments);
    case KEY_SLOT_BYTES:
        return get_u64(v, &o->slot_bytes);
    case KEY_TOKEN:
        if (v.bytes != sizeof o->token) return SHORE_ELINK;
        memcpy(o->token, v.at, sizeof o->token);
        return 0;
    case KEY_RECOVERY:
        o->has_recovery = true;
        return shore__wire_recovery_get(v.at, v.bytes, &o->recovery) ? 0 : SHORE_ELINK;
    default:
        return key >= KEY_FREE ? 0 : SHORE_EFORMAT;
    }
}

static int get_of_request(unsigned key, struct value v, struct shore__wire_open *o) {
    uint32_t flag = 0;
    int rc;
    switch (key) {
    case KEY_MODE:
        return get_u32(v, &o->mode);
    case KEY_LAYOUT:
        return get_layout(v, o);
    case KEY_OPTIMIZER:
        return get_u32(v, &o->optimizer);
    case KEY_IO:
        return get_u32(v, &o->io);
    case KEY_PLANES:
        return get_planes(v, o->plane_bytes);
    case KEY_FP32_PARAMS:
        rc = get_u32(v, &flag);
        o->fp32_params = flag;
        return rc;
    case KEY_MOMENTS:
        return get_u32(v, &o->moments);
    case KEY_SILENCE_MS:
        return get_u32(v, &o->silence_ms);
    case KEY_CONNECTIONS:
        return get_u32(v, &o->connections);
    default:
        return key >= KEY_FREE ? 0 : SHORE_EFORMAT;
    }
}

static int get_one(unsigned key, struct value v, bool answer, struct shore__wire_open *o) {
    switch (key) {
    case KEY_PATH:
        return get_text(v, &o->path);
    case KEY_BUILD:
        return get_text(v, &o->build);
    case KEY_VOLUME:
        return get_volume(v, o);
    case KEY_EXTENTS:
        return get_extents(v, o);
    case KEY_IDENTITY:
        return get_identity(v, o);
    default:
        return answer ? get_of_answer(key, v, o) : get_of_request(key, v, o);
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
           o->moments <= SHORE_MOMENTS_8BIT && o->io <= SHORE_IO_BUFFERED && planes_fit(o) && (there || o->has_desc);
}

int shore__wire_open_get(const unsigned char *body, uint32_t bytes, bool answer, struct shore__wire_open *out,
                         struct shore_diag *diag) {
    int rc = 0;
    unsigned key = 0;
    struct value rests = {0};
    *out = (struct shore__wire_open){0};
    while (!rc && bytes) {
        if (bytes < 8 || shore__get_u32(body + 4) > bytes - 8) {
            rc = SHORE_ELINK;
            break;
        }
        struct value v = {body + 8, shore__get_u32(body + 4)};
        key = shore__get_u16(body);
        rc = get_one(key, v, answer, out);
        if (key == KEY_RESTS) rests = v;
        body += 8 + v.bytes;
        bytes -= 8 + v.bytes;
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
