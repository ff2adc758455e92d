#include "files/gguf_write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/diag.h"
#include "files/atomic.h"

enum { VERSION = 3, ALIGNMENT = 32, LIST = 9 };

/* A text that grows. */
struct part {
    FILE *file;
    char *text;
    size_t bytes;
};

struct shore__gguf {
    char *path;
    struct shore__atomic file;
    struct part metadata, tensors; /* the two lists of the header */
    uint64_t nmetadata, data_offset, data_bytes;
    struct placed {
        enum shore__st_type type;
        uint64_t elems, offset, put;
    } * placed;
    uint32_t nplaced;
    bool failed; /* memory was short */
};

/* ---- the header, in the byte order of the machines that Longshore runs on -----------------------------------------
 */

static void put(struct shore__gguf *g, struct part *p, const void *data, size_t bytes) {
    g->failed |= fwrite(data, 1, bytes, p->file) != bytes;
}

static void put_u32(struct shore__gguf *g, struct part *p, uint32_t value) {
    put(g, p, &value, sizeof value);
}

static void put_u64(struct shore__gguf *g, struct part *p, uint64_t value) {
    put(g, p, &value, sizeof value);
}

static void put_text(struct shore__gguf *g, struct part *p, const char *text, size_t bytes) {
    put_u64(g, p, bytes);
    put(g, p, text, bytes);
}

static void put_key(struct shore__gguf *g, const char *key, uint32_t kind) {
    put_text(g, &g->metadata, key, strlen(key));
    put_u32(g, &g->metadata, kind);
    g->nmetadata++;
}

void shore__gguf_u32(struct shore__gguf *g, const char *key, uint32_t value) {
    put_key(g, key, SHORE__GGUF_U32);
    put_u32(g, &g->metadata, value);
}

void shore__gguf_f32(struct shore__gguf *g, const char *key, float value) {
    put_key(g, key, SHORE__GGUF_F32);
    put(g, &g->metadata, &value, sizeof value);
}

void shore__gguf_bool(struct shore__gguf *g, const char *key, bool value) {
    put_key(g, key, SHORE__GGUF_BOOL);
    put(g, &g->metadata, &value, 1);
}

void shore__gguf_text(struct shore__gguf *g, const char *key, const char *text) {
    put_key(g, key, SHORE__GGUF_TEXT);
    put_text(g, &g->metadata, text, strlen(text));
}

void shore__gguf_list(struct shore__gguf *g, const char *key, enum shore__gguf_kind of, uint64_t count) {
    put_key(g, key, LIST);
    put_u32(g, &g->metadata, of);
    put_u64(g, &g->metadata, count);
}

void shore__gguf_item_text(struct shore__gguf *g, const char *text, size_t bytes) {
    put_text(g, &g->metadata, text, bytes);
}

void shore__gguf_item_i32(struct shore__gguf *g, int32_t value) {
    put(g, &g->metadata, &value, sizeof value);
}

void shore__gguf_item_f32(struct shore__gguf *g, float value) {
    put(g, &g->metadata, &value, sizeof value);
}

void shore__gguf_item_bool(struct shore__gguf *g, bool value) {
    put(g, &g->metadata, &value, 1);
}

static uint64_t aligned(uint64_t offset) {
    return (offset + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

uint32_t shore__gguf_tensor(struct shore__gguf *g, const char *name, uint32_t rank, const uint64_t *dims,
                            enum shore__st_type type) {
    struct placed t = {.type = type, .elems = 1, .offset = aligned(g->data_bytes)};
    put_text(g, &g->tensors, name, strlen(name));
    put_u32(g, &g->tensors, rank);
    for (uint32_t d = rank; d-- > 0; t.elems *= dims[d])
        put_u64(g, &g->tensors, dims[d]);
    put_u32(g, &g->tensors, type == SHORE__ST_F32 ? 0 : type == SHORE__ST_F16 ? 1 : 30);
    put_u64(g, &g->tensors, t.offset);
    struct placed *more = realloc(g->placed, (g->nplaced + 1u) * sizeof *more);
    g->failed |= !more;
    if (!more) return g->nplaced;
    g->placed = more;
    g->placed[g->nplaced] = t;
    g->data_bytes = t.offset + t.elems * (type == SHORE__ST_F32 ? 4 : 2);
    return g->nplaced++;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

int shore__gguf_open(const char *path, struct shore__gguf **out, struct shore_diag *diag) {
    struct stat st;
    if (lstat(path, &st) == 0)
        return shore__fail(diag, SHORE_EEXISTS, "%s: exists already; choose another file", shore__shown(path).text);
    struct shore__gguf *g = calloc(1, sizeof *g);
    if (g) {
        g->path = strdup(path);
        g->metadata.file = open_memstream(&g->metadata.text, &g->metadata.bytes);
        g->tensors.file = open_memstream(&g->tensors.text, &g->tensors.bytes);
    }
    if (!g || !g->path || !g->metadata.file || !g->tensors.file) {
        shore__gguf_abort(g);
        return shore__out_of_memory(diag);
    }
    *out = g;
    return 0;
}

int shore__gguf_begin(struct shore__gguf *g, struct shore_diag *diag) {
    const uint32_t version = VERSION;
    const uint64_t counts[2] = {g->nplaced, g->nmetadata};
    char start[24] = "GGUF";
    if (fflush(g->metadata.file) || fflush(g->tensors.file) || g->failed) return shore__out_of_memory(diag);
    memcpy(start + 4, &version, sizeof version);
    memcpy(start + 8, counts, sizeof counts);
    uint64_t at = sizeof start + g->metadata.bytes;
    g->data_offset = aligned(at + g->tensors.bytes);
    int rc = shore__atomic_open(g->path, &g->file, diag);
    if (rc == 0) rc = shore__atomic_reserve(&g->file, g->data_offset + g->data_bytes, diag);
    if (rc == 0) rc = shore__write_at(g->file.fd, start, sizeof start, 0, g->path, diag);
    if (rc == 0) rc = shore__write_at(g->file.fd, g->metadata.text, g->metadata.bytes, sizeof start, g->path, diag);
    return rc ? rc : shore__write_at(g->file.fd, g->tensors.text, g->tensors.bytes, at, g->path, diag);
}

int shore__gguf_put(struct shore__gguf *g, uint32_t tensor, uint64_t first, uint64_t count, const float *values,
                    struct shore_diag *diag) {
    struct placed *t = &g->placed[tensor];
    if (tensor >= g->nplaced || first > t->elems || count > t->elems - first)
        return shore__fail(diag, SHORE_EUSAGE, "%s: elements outside tensor number %u", g->path, tensor);
    t->put += count;
    return shore__st_write_values(g->file.fd, t->type, values, first, count, g->data_offset + t->offset, g->path, diag);
}

int shore__gguf_finish(struct shore__gguf *g, struct shore_diag *diag) {
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < g->nplaced; i++)
        if (g->placed[i].put != g->placed[i].elems)
            rc = shore__fail(diag, SHORE_EUSAGE, "%s: tensor number %u has got %llu of its %llu elements", g->path, i,
                             (unsigned long long)g->placed[i].put, (unsigned long long)g->placed[i].elems);
    if (rc == 0) rc = shore__atomic_commit(&g->file, diag);
    shore__gguf_abort(g);
    return rc;
}

void shore__gguf_abort(struct shore__gguf *g) {
    if (!g) return;
    if (g->file.path) shore__atomic_abort(&g->file);
    if (g->metadata.file) fclose(g->metadata.file);
    if (g->tensors.file) fclose(g->tensors.file);
    free(g->metadata.text);
    free(g->tensors.text);
    free(g->placed);
    free(g->path);
    free(g);
}
