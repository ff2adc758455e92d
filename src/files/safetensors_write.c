#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "files/atomic.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "files/safetensors_header.h"
#include "number/fp16.h"

struct placed {
    enum shore__st_type type;
    uint32_t shard, size; /* size: of an element */
    uint64_t elems, offset;
    uint64_t put_elems;
};

struct shore__st_writer {
    char *directory;
    uint32_t ntensors, nshards;
    struct placed *tensors;
    struct shore__atomic *shards;
    json_t *index; /* NULL for one file */
};

/* Bytes of an element; 0: the type cannot be written. */
static uint32_t size_of(const struct shore__st_decl *decl) {
    if (decl->type == SHORE__ST_OTHER) return decl->named ? (uint32_t)shore__st_type_bytes(decl->named) : 0;
    return decl->type == SHORE__ST_F32 ? 4 : decl->type == SHORE__ST_BF16 || decl->type == SHORE__ST_F16 ? 2 : 0;
}

static void shard_name(uint32_t shard, uint32_t nshards, char out[64]) {
    if (nshards == 1)
        strcpy(out, "model.safetensors");
    else
        snprintf(out, 64, "model-%05u-of-%05u.safetensors", shard + 1, nshards);
}

static json_t *describe(const struct shore__st_decl *decl, uint64_t begin, uint64_t end) {
    json_t *shape = json_array();
    for (uint32_t i = 0; i < decl->rank; i++)
        json_array_append_new(shape, json_integer((json_int_t)decl->shape[i]));
    const char *name = decl->type == SHORE__ST_OTHER ? decl->named
                       : decl->type == SHORE__ST_F32 ? "F32"
                       : decl->type == SHORE__ST_F16 ? "F16"
                                                     : "BF16";
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", name, "shape", shape, "data_offsets", (json_int_t)begin,
                     (json_int_t)end);
}

/* Places the tensors in a shard so that each starts at a multiple of its element size. */
static uint64_t place_in_shard(struct shore__st_writer *w, uint32_t shard) {
    uint64_t bytes = 0;
    for (uint32_t size = 8; size >= 1; size /= 2)
        for (uint32_t i = 0; i < w->ntensors; i++) {
            struct placed *t = &w->tensors[i];
            if (t->shard != shard || t->size != size) continue;
            t->offset = bytes;
            bytes += t->elems * size;
        }
    return bytes;
}

/* Writes the header of a shard at the front of its file. Offsets of its tensors become offsets in the file. */
static int begin_shard(struct shore__st_writer *w, const struct shore__st_decl *decls, uint32_t shard,
                       struct shore_diag *diag) {
    char name[64];
    shard_name(shard, w->nshards, name);
    const struct shore__path place = shore__path_in(w->directory, name);
    const char *path = place.text;
    int rc = shore__atomic_open(path, &w->shards[shard], diag);
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    const uint64_t bytes = place_in_shard(w, shard);
    for (uint32_t i = 0; rc == 0 && i < w->ntensors; i++) {
        const struct placed *t = &w->tensors[i];
        if (t->shard != shard) continue;
        if (json_object_get(header, decls[i].name) || json_object_get(w->index, decls[i].name))
            rc = shore__fail(diag, SHORE_EINPUT, "%s: tensor %s is declared twice", path, decls[i].name);
        else if (json_object_set_new(header, decls[i].name,
                                     describe(&decls[i], t->offset, t->offset + t->elems * t->size)))
            rc = shore__fail(diag, SHORE_EINPUT,
                             "%s: cannot describe tensor number %u: no memory, or its name is not "
                             "UTF-8",
                             path, i);
        if (rc == 0 && w->index) json_object_set_new(w->index, decls[i].name, json_string(name));
    }
    char *text = rc == 0 ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (rc == 0 && !text) rc = shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    if (rc == 0) {
        size_t text_bytes = strlen(text), padded = (text_bytes + 7) / 8 * 8;
        unsigned char prefix[8];
        shore__put_u64(prefix, padded);
        rc = shore__atomic_reserve(&w->shards[shard], 8 + padded + bytes, diag);
        if (rc == 0) rc = shore__write_at(w->shards[shard].fd, prefix, 8, 0, path, diag);
        if (rc == 0) rc = shore__write_at(w->shards[shard].fd, text, text_bytes, 8, path, diag);
        if (rc == 0)
            rc = shore__write_at(w->shards[shard].fd, "        ", padded - text_bytes, 8 + text_bytes, path, diag);
        for (uint32_t i = 0; i < w->ntensors; i++)
            if (w->tensors[i].shard == shard) w->tensors[i].offset += 8 + padded;
    }
    free(text);
    return rc;
}

static int place_tensors(struct shore__st_writer *w, const struct shore__st_decl *decls, uint64_t shard_bytes,
                         uint64_t *total, struct shore_diag *diag) {
    uint64_t in_shard = 0;
    w->nshards = 1;
    *total = 0;
    for (uint32_t i = 0; i < w->ntensors; i++) {
        uint64_t elems = 1, bytes;
        int bad = decls[i].rank > 8;
        for (uint32_t d = 0; !bad && d < decls[i].rank; d++)
            bad = __builtin_mul_overflow(elems, decls[i].shape[d], &elems);
        bad = bad || __builtin_mul_overflow(elems, size_of(&decls[i]), &bytes) ||
              __builtin_add_overflow(*total, bytes, total) || *total > INT64_MAX / 2;
        if (bad)
            return shore__fail(diag, SHORE_EINPUT, "%s: the size of tensor %s overflows", w->directory, decls[i].name);
        if (shard_bytes && in_shard && bytes > shard_bytes - (in_shard < shard_bytes ? in_shard : shard_bytes)) {
            w->nshards++;
            in_shard = 0;
        }
        w->tensors[i] =
            (struct placed){.type = decls[i].type, .shard = w->nshards - 1, .size = size_of(&decls[i]), .elems = elems};
        in_shard += bytes;
    }
    return 0;
}

int shore__st_writer_open(const char *directory, const struct shore__st_decl *tensors, uint32_t ntensors,
                          uint64_t shard_bytes, struct shore__st_writer **out, struct shore_diag *diag) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < ntensors; i++)
        if (!size_of(&tensors[i]))
            return shore__fail(diag, SHORE_EUSAGE, "%s: the tensor %s is of a type that is not written", directory,
                               tensors[i].name);
    struct shore__st_writer *w = calloc(1, sizeof *w);
    if (!w) return shore__fail(diag, -ENOMEM, "%s: out of memory", directory);
    w->ntensors = ntensors;
    w->directory = strdup(directory);
    w->tensors = calloc(ntensors + 1u, sizeof *w->tensors);
    int rc = w->directory && w->tensors ? place_tensors(w, tensors, shard_bytes, &total, diag)
                                        : shore__fail(diag, -ENOMEM, "%s: out of memory", directory);
    if (rc == 0 && !(w->shards = calloc(w->nshards, sizeof *w->shards)))
        rc = shore__fail(diag, -ENOMEM, "%s: out of memory", directory);
    if (rc == 0 && w->nshards > 1) w->index = json_object();
    for (uint32_t shard = 0; rc == 0 && shard < w->nshards; shard++)
        rc = begin_shard(w, tensors, shard, diag);
    if (rc == 0 && w->index) {
        json_t *map = w->index;
        w->index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
        if (!w->index) rc = shore__fail(diag, -ENOMEM, "%s: out of memory", directory);
    }
    if (rc) {
        shore__st_writer_abort(w);
        return rc;
    }
    *out = w;
    return 0;
}

int shore__st_write_values(int fd, enum shore__st_type type, const float *values, uint64_t first, uint64_t count,
                           uint64_t offset, const char *name, struct shore_diag *diag) {
    uint16_t block[16384];
    int rc = 0;
    if (type == SHORE__ST_F32) return shore__write_at(fd, values, count * 4, offset + first * 4, name, diag);
    for (uint64_t done = 0, n; rc == 0 && done < count; done += n) {
        n = count - done < 16384 ? count - done : 16384;
        for (size_t i = 0; i < n; i++)
            block[i] =
                type == SHORE__ST_F16 ? shore__f32_to_f16(values[done + i]) : shore__f32_to_bf16(values[done + i]);
        rc = shore__write_at(fd, block, n * 2, offset + (first + done) * 2, name, diag);
    }
    return rc;
}

int shore__st_writer_put(struct shore__st_writer *w, uint32_t tensor, uint64_t first, uint64_t count, const float *data,
                         struct shore_diag *diag) {
    struct placed *t = &w->tensors[tensor];
    if (tensor >= w->ntensors || t->type == SHORE__ST_OTHER || first > t->elems || count > t->elems - first)
        return shore__fail(diag, SHORE_EUSAGE, "%s: elements outside tensor number %u", w->directory, tensor);
    const struct shore__atomic *file = &w->shards[t->shard];
    __atomic_fetch_add(&t->put_elems, count, __ATOMIC_RELAXED);
    return shore__st_write_values(file->fd, t->type, data, first, count, t->offset, file->path, diag);
}

int shore__st_writer_put_bytes(struct shore__st_writer *w, uint32_t tensor, const void *data, struct shore_diag *diag) {
    struct placed *t = &w->tensors[tensor];
    if (tensor >= w->ntensors || t->type != SHORE__ST_OTHER)
        return shore__fail(diag, SHORE_EUSAGE, "%s: tensor number %u is none of bytes", w->directory, tensor);
    const struct shore__atomic *file = &w->shards[t->shard];
    t->put_elems = t->elems;
    return shore__write_at(file->fd, data, t->elems * t->size, t->offset, file->path, diag);
}

static void close_writer(struct shore__st_writer *w) {
    for (uint32_t i = 0; w->shards && i < w->nshards; i++)
        shore__atomic_abort(&w->shards[i]);
    json_decref(w->index);
    free(w->shards);
    free(w->tensors);
    free(w->directory);
    free(w);
}

int shore__st_writer_finish(struct shore__st_writer *w, struct shore_diag *diag) {
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < w->ntensors; i++)
        if (w->tensors[i].put_elems != w->tensors[i].elems)
            rc = shore__fail(diag, SHORE_EUSAGE, "%s: tensor number %u has got %llu of its %llu elements", w->directory,
                             i, (unsigned long long)w->tensors[i].put_elems, (unsigned long long)w->tensors[i].elems);
    for (uint32_t i = 0; rc == 0 && i < w->nshards; i++)
        rc = shore__atomic_commit(&w->shards[i], diag);
    if (rc == 0 && w->index)
        rc = shore__json_write(shore__path_in(w->directory, "model.safetensors.index.json").text, w->index, 2, diag);
    close_writer(w);
    return rc;
}

void shore__st_writer_abort(struct shore__st_writer *w) {
    if (w) close_writer(w);
}
