#include "files/safetensors_header.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "files/atomic.h"
#include "files/json_stream.h"

/* the format's own limit (https://huggingface.co/docs/safetensors) */
#define HEADER_LIMIT_BYTES 100000000u
#define TENSOR_LIMIT 1000000u
#define NAME_LIMIT_BYTES 1024u
#define SHOWN 200

static const struct {
    const char *name;
    unsigned bits;
    enum shore__st_type type;
} types[] = {
    {"F32", 32, SHORE__ST_F32},      {"BF16", 16, SHORE__ST_BF16},   {"F16", 16, SHORE__ST_F16},
    {"BOOL", 8, SHORE__ST_BYTE},     {"U8", 8, SHORE__ST_BYTE},      {"I8", 8, SHORE__ST_I8},
    {"F8_E5M2", 8, SHORE__ST_OTHER}, {"F8_E4M3", 8, SHORE__ST_E4M3}, {"F8_E8M0", 8, SHORE__ST_E8M0},
    {"I16", 16, SHORE__ST_OTHER},    {"U16", 16, SHORE__ST_OTHER},   {"I32", 32, SHORE__ST_OTHER},
    {"U32", 32, SHORE__ST_OTHER},    {"F64", 64, SHORE__ST_OTHER},   {"I64", 64, SHORE__ST_OTHER},
    {"U64", 64, SHORE__ST_OTHER},    {"C64", 64, SHORE__ST_OTHER},
};

size_t shore__st_type_bytes(const char *name) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (!strcmp(name, types[i].name)) return types[i].bits / 8;
    return 0;
}

enum field { NO_FIELD, DTYPE = 1, SHAPE = 2, OFFSETS = 4 };

/* A tensor of this file: what its public description leaves out. */
struct extent {
    uint64_t begin, end;
    uint32_t tensor;
};

struct header {
    struct shore__safetensors *st;
    const char *path;
    uint32_t file;
    uint64_t data_bytes, data_offset;
    bool in_metadata, had_metadata;
    enum field field;
    unsigned seen, nvalues, bits;
    uint64_t offsets[2];
    struct shore__st_tensor tensor;
    struct extent *extents;
    uint32_t nextents, capacity;
};

static int fault(const struct header *h, struct shore_diag *diag, const char *what) {
    const char *name = h->tensor.name ? h->tensor.name : "";
    return shore__fail(diag, SHORE_EINPUT, "%s: tensor \"%s\" %s", h->path, shore__shown(name).text, what);
}

static int begin_tensor(struct header *h, const struct shore__json_event *e, struct shore_diag *diag) {
    char shown[SHOWN];
    h->in_metadata = shore__json_event_is(e, "__metadata__");
    if (h->in_metadata) {
        if (h->had_metadata) return shore__fail(diag, SHORE_EINPUT, "%s: the header has __metadata__ twice", h->path);
        h->had_metadata = true;
        return 0;
    }
    if (e->bytes == 0 || e->bytes > NAME_LIMIT_BYTES || memchr(e->text, 0, e->bytes))
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: the name of tensor \"%s\" is empty, longer than %u bytes, or holds "
                           "the character U+0000",
                           h->path, shore__escape(e->text, e->bytes, shown, SHOWN), NAME_LIMIT_BYTES);
    h->tensor = (struct shore__st_tensor){.name = strndup(e->text, e->bytes), .file = h->file};
    h->seen = 0;
    return h->tensor.name ? 0 : shore__fail(diag, -ENOMEM, "%s: out of memory", h->path);
}

static int begin_field(struct header *h, const struct shore__json_event *e, struct shore_diag *diag) {
    static const struct {
        const char *name;
        enum field field;
    } fields[] = {{"dtype", DTYPE}, {"shape", SHAPE}, {"data_offsets", OFFSETS}};
    h->field = NO_FIELD;
    for (size_t i = 0; i < 3; i++)
        if (shore__json_event_is(e, fields[i].name)) h->field = fields[i].field;
    if (h->field == NO_FIELD) return fault(h, diag, "has a field other than dtype, shape, data_offsets");
    if (h->seen & h->field) return fault(h, diag, "has a field twice");
    h->seen |= h->field;
    h->nvalues = 0;
    return 0;
}

static int take_dtype(struct header *h, const struct shore__json_event *e, struct shore_diag *diag) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strlen(types[i].name) != e->bytes || memcmp(types[i].name, e->text, e->bytes) != 0) continue;
        h->tensor.type = types[i].type;
        h->tensor.bytes = (uint8_t)(types[i].bits / 8);
        h->bits = types[i].bits;
        return 0;
    }
    return fault(h, diag, "has an unknown dtype");
}

static int take_number(struct header *h, const struct shore__json_event *e, struct shore_diag *diag) {
    uint64_t value;
    if (shore__json_event_u64(e, &value) != 0)
        return fault(h, diag, "has a size or an offset that is no whole number in range");
    if (h->field == SHAPE) {
        if (h->nvalues == 8) return fault(h, diag, "has more than 8 dimensions");
        h->tensor.shape[h->nvalues++] = value;
        h->tensor.rank = h->nvalues;
    } else {
        if (h->nvalues == 2) return fault(h, diag, "has more than two data_offsets");
        h->offsets[h->nvalues++] = value;
    }
    return 0;
}

static int end_tensor(struct header *h, struct shore_diag *diag) {
    struct shore__safetensors *st = h->st;
    struct shore__st_tensor *t = &h->tensor;
    uint64_t bytes;
    if (h->seen != (DTYPE | SHAPE | OFFSETS)) return fault(h, diag, "lacks one of dtype, shape, data_offsets");
    t->elems = 1;
    for (uint32_t i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(t->elems, t->shape[i], &t->elems))
            return fault(h, diag, "has a shape whose product overflows");
    if (__builtin_mul_overflow(t->elems, h->bits / 8, &bytes)) return fault(h, diag, "has a size that overflows");
    if (h->offsets[0] > h->offsets[1]) return fault(h, diag, "ends before it begins");
    if (h->offsets[1] > h->data_bytes) return fault(h, diag, "reaches past the end of the file; has it been cut?");
    if (h->offsets[1] - h->offsets[0] != bytes) return fault(h, diag, "has data_offsets that do not fit its shape");
    if (st->ntensors == TENSOR_LIMIT) return fault(h, diag, "is one more than the limit of tensors");
    t->offset = h->data_offset + h->offsets[0];
    if (h->nextents == h->capacity) {
        uint32_t more = h->capacity ? 2 * h->capacity : 64;
        struct extent *extents = realloc(h->extents, more * sizeof *extents);
        if (extents) h->extents = extents;
        struct shore__st_tensor *tensors = realloc(st->tensors, (st->ntensors + more - h->nextents) * sizeof *tensors);
        if (tensors) st->tensors = tensors;
        if (!extents || !tensors) return shore__fail(diag, -ENOMEM, "%s: out of memory", h->path);
        h->capacity = more;
    }
    h->extents[h->nextents++] = (struct extent){h->offsets[0], h->offsets[1], st->ntensors};
    st->tensors[st->ntensors++] = *t;
    t->name = NULL;
    return 0;
}

static int on_event(void *ctx, const struct shore__json_event *e, struct shore_diag *diag) {
    struct header *h = ctx;
    if (e->depth == 0 || (e->depth == 1 && e->kind == SHORE__JSON_ARRAY_OPEN))
        return shore__fail(diag, SHORE_EINPUT, "%s: the header is not a JSON object", h->path);
    if (e->depth == 1) {
        if (e->kind == SHORE__JSON_KEY) return begin_tensor(h, e, diag);
        if (e->kind == SHORE__JSON_OBJECT_OPEN || e->kind == SHORE__JSON_OBJECT_CLOSE) return 0;
        return h->in_metadata ? shore__fail(diag, SHORE_EINPUT, "%s: __metadata__ is not an object", h->path)
                              : fault(h, diag, "is not described by an object");
    }
    if (h->in_metadata) return 0;
    if (e->depth == 2) {
        if (e->kind == SHORE__JSON_OBJECT_OPEN) return 0;
        if (e->kind == SHORE__JSON_OBJECT_CLOSE) return end_tensor(h, diag);
        if (e->kind == SHORE__JSON_KEY) return begin_field(h, e, diag);
        if (e->kind == SHORE__JSON_STRING && h->field == DTYPE) return take_dtype(h, e, diag);
    }
    if (e->depth == 3 && (h->field == SHAPE || h->field == OFFSETS)) {
        if (e->kind == SHORE__JSON_ARRAY_OPEN) return 0;
        if (e->kind == SHORE__JSON_NUMBER) return take_number(h, e, diag);
        if (e->kind == SHORE__JSON_ARRAY_CLOSE)
            return h->field == OFFSETS && h->nvalues != 2 ? fault(h, diag, "has not two data_offsets") : 0;
    }
    return fault(h, diag, "has a field of the wrong kind");
}

static int by_offset(const void *a, const void *b) {
    const struct extent *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Checks that the data has no gaps and no overlap, from the first byte to the last, as the format requires. */
static int check_extents(struct header *h, struct shore_diag *diag) {
    uint64_t at = 0;
    if (h->nextents) qsort(h->extents, h->nextents, sizeof *h->extents, by_offset);
    for (uint32_t i = 0; i < h->nextents; i++) {
        const char *name = h->st->tensors[h->extents[i].tensor].name;
        const char *last = i ? h->st->tensors[h->extents[i - 1].tensor].name : "";
        const struct shore__shown shown = shore__shown(name);
        const struct shore__shown before = shore__shown(last);
        if (h->extents[i].begin < at)
            return shore__fail(diag, SHORE_EINPUT, "%s: tensors \"%s\" and \"%s\" overlap", h->path, before.text,
                               shown.text);
        if (h->extents[i].begin > at)
            return shore__fail(diag, SHORE_EINPUT, "%s: %llu bytes before tensor \"%s\" belong to no tensor", h->path,
                               (unsigned long long)(h->extents[i].begin - at), shown.text);
        at = h->extents[i].end;
    }
    if (at != h->data_bytes)
        return shore__fail(diag, SHORE_EINPUT, "%s: the tensors end %llu bytes before the file does", h->path,
                           (unsigned long long)(h->data_bytes - at));
    return 0;
}

int shore__st_header_read(struct shore__safetensors *st, uint32_t f, const char *path, uint64_t file_bytes,
                          struct shore_diag *diag) {
    unsigned char prefix[8];
    if (file_bytes < 8)
        return shore__fail(diag, SHORE_EINPUT, "%s: has %llu bytes, too few for a safetensors file", path,
                           (unsigned long long)file_bytes);
    int rc = shore__read_at(st->fds[f], prefix, 8, 0, path, diag);
    if (rc) return rc;
    if (!memcmp(prefix, "version ", 8))
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: is a pointer of Git LFS, not the weights: fetch them (git lfs pull)", path);
    uint64_t header_bytes = shore__get_u64(prefix);
    if (header_bytes > HEADER_LIMIT_BYTES)
        return shore__fail(diag, SHORE_EINPUT, "%s: claims a header of %llu bytes; the format allows %u", path,
                           (unsigned long long)header_bytes, HEADER_LIMIT_BYTES);
    if (header_bytes > file_bytes - 8)
        return shore__fail(diag, SHORE_EINPUT, "%s: claims a header of %llu bytes, but the file has %llu", path,
                           (unsigned long long)header_bytes, (unsigned long long)file_bytes);
    struct header h = {.st = st, .path = path, .file = f, .data_offset = 8 + header_bytes};
    h.data_bytes = file_bytes - h.data_offset;
    rc = shore__json_stream_fd(st->fds[f], 8, header_bytes, path, on_event, &h, diag);
    if (rc == 0) rc = check_extents(&h, diag);
    free(h.tensor.name);
    free(h.extents);
    return rc;
}
