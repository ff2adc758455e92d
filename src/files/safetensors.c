#include "files/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "files/atomic.h"
#include "files/json_stream.h"
#include "files/read_file.h"
#include "files/safetensors_header.h"
#include "number/fp16.h"
#include "number/fp8.h"

#define INDEX_LIMIT_BYTES (256u << 20)
#define FILE_LIMIT 4096u
#define SHOWN 200

static int by_name(const void *a, const void *b) {
    const struct shore__st_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int by_name_and_file(const void *a, const void *b) {
    const struct shore__st_tensor *x = a, *y = b;
    int order = by_name(a, b);
    return order ? order : x->file < y->file ? -1 : x->file > y->file;
}

const struct shore__st_tensor *shore__safetensors_find(const struct shore__safetensors *st, const char *name) {
    struct shore__st_tensor key = {.name = (char *)name};
    return st->ntensors == 0 ? NULL : bsearch(&key, st->tensors, st->ntensors, sizeof key, by_name);
}

int shore__st_refuse(const struct shore__safetensors *st, const struct shore__st_tensor *t, struct shore_diag *diag,
                     const char *format, ...) {
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return shore__fail(diag, SHORE_EINPUT, "%s: the tensor %s %s",
                       shore__shown(shore__path_in(st->directory, st->files[t->file]).text).text,
                       shore__shown(t->name).text, what);
}

/* Whether a shard's name leads out of the directory. */
static bool leaves(const char *name) {
    bool out = name[0] == '/' || name[0] == 0;
    for (const char *part = name, *end; !out && part; part = end ? end + 1 : NULL) {
        end = strchr(part, '/');
        out = (end ? (size_t)(end - part) : strlen(part)) == 2 && !memcmp(part, "..", 2);
    }
    return out;
}

static int add_file(struct shore__safetensors *st, const char *name, struct shore_diag *diag) {
    if (st->nfiles == FILE_LIMIT)
        return shore__fail(diag, SHORE_EINPUT, "%s: has more than %u safetensors files", st->directory, FILE_LIMIT);
    if (leaves(name))
        return shore__fail(diag, SHORE_EINPUT,
                           "%s/model.safetensors.index.json: the file name \"%s\" leaves the directory; "
                           "shards must lie beside their index, or below it",
                           st->directory, shore__shown(name).text);
    char **files = realloc(st->files, (st->nfiles + 1) * sizeof *files);
    if (files) st->files = files;
    int *fds = realloc(st->fds, (st->nfiles + 1) * sizeof *fds);
    if (fds) st->fds = fds;
    char *copy = files && fds ? strdup(name) : NULL;
    if (!copy) return shore__fail(diag, -ENOMEM, "%s: out of memory", st->directory);
    st->fds[st->nfiles] = -1;
    st->files[st->nfiles++] = copy;
    return 0;
}

/* weight_map of the index: a first pass collects the files, a second one looks up each tensor, and so decides which of
 * several copies counts. */
struct index {
    struct shore__safetensors *st;
    const char *path;
    bool in_map, looking_up;
    char *tensor;
    unsigned last;
    uint64_t entries;
};

static int on_index_entry(struct index *x, const char *file, struct shore_diag *diag) {
    struct shore__safetensors *st = x->st;
    unsigned f = x->last;
    x->entries++;
    if (f >= st->nfiles || strcmp(st->files[f], file) != 0)
        for (f = 0; f < st->nfiles && strcmp(st->files[f], file) != 0; f++)
            ;
    x->last = f;
    if (!x->looking_up) return f < st->nfiles ? 0 : add_file(st, file, diag);
    struct shore__st_tensor key = {.name = x->tensor, .file = f};
    struct shore__st_tensor *t =
        st->ntensors ? bsearch(&key, st->tensors, st->ntensors, sizeof key, by_name_and_file) : NULL;
    if (t) {
        t->indexed = true;
        return 0;
    }
    return shore__fail(diag, SHORE_EINPUT, "%s: says that tensor \"%s\" is in \"%s\", which does not hold it", x->path,
                       shore__shown(x->tensor).text, shore__shown(file).text);
}

static int on_index_event(void *ctx, const struct shore__json_event *e, struct shore_diag *diag) {
    struct index *x = ctx;
    if (e->depth == 0) return shore__fail(diag, SHORE_EINPUT, "%s: is not a JSON object", x->path);
    if (e->kind == SHORE__JSON_KEY && e->depth == 1) {
        if (shore__json_event_is(e, "weight_map")) {
            if (x->entries) return shore__fail(diag, SHORE_EINPUT, "%s: has \"weight_map\" twice", x->path);
            x->in_map = true;
        } else {
            x->in_map = false;
        }
        return 0;
    }
    bool braces = e->kind == SHORE__JSON_OBJECT_OPEN || e->kind == SHORE__JSON_OBJECT_CLOSE;
    if (!x->in_map || e->depth < 2 || (e->depth == 2 && braces)) return 0;
    if (e->depth == 2 && (e->kind == SHORE__JSON_KEY || e->kind == SHORE__JSON_STRING)) {
        if (memchr(e->text, 0, e->bytes))
            return shore__fail(diag, SHORE_EINPUT, "%s: a name holds the character U+0000", x->path);
        char *text = strndup(e->text, e->bytes);
        if (!text) return shore__fail(diag, -ENOMEM, "%s: out of memory", x->path);
        if (e->kind == SHORE__JSON_KEY) {
            free(x->tensor);
            x->tensor = text;
            return 0;
        }
        int rc = on_index_entry(x, text, diag);
        free(text);
        return rc;
    }
    return shore__fail(diag, SHORE_EINPUT, "%s: \"weight_map\" must map names of tensors to names of files", x->path);
}

static int read_index(struct shore__safetensors *st, bool looking_up, struct shore_diag *diag) {
    const struct shore__path path = shore__path_in(st->directory, "model.safetensors.index.json");
    struct index x = {.st = st, .path = path.text, .looking_up = looking_up};
    int rc = shore__json_stream_file(path.text, INDEX_LIMIT_BYTES, on_index_event, &x, diag);
    if (rc == 0 && x.entries == 0)
        rc = shore__fail(diag, SHORE_EINPUT, "%s: names no tensors: it has no \"weight_map\", or an empty one", x.path);
    free(x.tensor);
    return rc;
}

static int ends_in_safetensors(const struct dirent *entry) {
    size_t n = strlen(entry->d_name);
    return n > 12 && entry->d_name[0] != '.' && !strcmp(entry->d_name + n - 12, ".safetensors");
}

static int find_files(struct shore__safetensors *st, bool *indexed, struct shore_diag *diag) {
    bool whole = access(shore__path_in(st->directory, "model.safetensors").text, F_OK) == 0;
    *indexed = false;
    int rc = whole ? add_file(st, "model.safetensors", diag) : 0;
    if (rc == 0) rc = read_index(st, false, diag);
    *indexed = rc == 0;
    if (rc == 0 && whole && st->nfiles > 1)
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: has weights twice, in model.safetensors and in the files that "
                           "model.safetensors.index.json names: remove one of the two",
                           st->directory);
    if (whole && rc == SHORE_EMISSING) return 0;
    if (rc != SHORE_EMISSING) return rc;
    struct dirent **entries;
    int n = scandir(st->directory, &entries, ends_in_safetensors, alphasort);
    if (n < 0) return shore__fail_errno(diag, st->directory, "cannot read the directory");
    rc = n ? 0
           : shore__fail(diag, SHORE_EMISSING,
                         "%s: has no model.safetensors and no other *.safetensors file; load weights of another format "
                         "with transformers, and save them as safetensors (save_pretrained)",
                         st->directory);
    for (int i = 0; i < n; i++) {
        if (rc == 0) rc = add_file(st, entries[i]->d_name, diag);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

static int open_file(struct shore__safetensors *st, uint32_t f, struct shore_diag *diag) {
    const struct shore__path path = shore__path_in(st->directory, st->files[f]);
    uint64_t bytes;
    int rc = shore__regular_open(path.text, UINT64_MAX, &st->fds[f], &bytes, diag);
    return rc ? rc : shore__st_header_read(st, f, path.text, bytes, diag);
}

/* Keeps of each tensor the copy that the index names. */
static int drop_copies(struct shore__safetensors *st, struct shore_diag *diag) {
    uint32_t kept = 0;
    int rc = 0;
    for (uint32_t i = 0; i < st->ntensors; i++) {
        struct shore__st_tensor next = st->tensors[i], *last = kept ? &st->tensors[kept - 1] : NULL;
        if (!last || strcmp(last->name, next.name) != 0) {
            st->tensors[kept++] = next;
            continue;
        }
        if (rc == 0 && (last->indexed == next.indexed || last->file == next.file))
            rc = shore__fail(diag, SHORE_EINPUT, "%s: tensor \"%s\" stands twice: in %s and in %s", st->directory,
                             shore__shown(next.name).text, st->files[last->file], st->files[next.file]);
        free(next.indexed ? last->name : next.name);
        if (next.indexed) *last = next;
    }
    st->ntensors = kept;
    return rc;
}

int shore__safetensors_open(const char *directory, struct shore__safetensors **out, struct shore_diag *diag) {
    return shore__safetensors_open_file(directory, NULL, out, diag);
}

int shore__safetensors_open_file(const char *directory, const char *name, struct shore__safetensors **out,
                                 struct shore_diag *diag) {
    struct shore__safetensors *st = calloc(1, sizeof *st);
    bool indexed = false;
    if (!st || !(st->directory = strdup(directory))) {
        free(st);
        return shore__fail(diag, -ENOMEM, "%s: out of memory", directory);
    }
    int rc = name ? add_file(st, name, diag) : find_files(st, &indexed, diag);
    for (uint32_t f = 0; rc == 0 && f < st->nfiles; f++)
        rc = open_file(st, f, diag);
    if (rc == 0 && st->ntensors) qsort(st->tensors, st->ntensors, sizeof *st->tensors, by_name_and_file);
    if (rc == 0 && indexed) rc = read_index(st, true, diag);
    if (rc == 0) rc = drop_copies(st, diag);
    if (rc) {
        shore__safetensors_close(st);
        return rc;
    }
    *out = st;
    return 0;
}

void shore__safetensors_close(struct shore__safetensors *st) {
    if (!st) return;
    for (uint32_t i = 0; i < st->ntensors; i++)
        free(st->tensors[i].name);
    for (uint32_t f = 0; f < st->nfiles; f++) {
        if (st->fds[f] >= 0) close(st->fds[f]);
        free(st->files[f]);
    }
    free(st->codings);
    free(st->tensors);
    free(st->files);
    free(st->fds);
    free(st->directory);
    free(st);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

struct shore__st_tensor shore__safetensors_slice(const struct shore__st_tensor *t, uint64_t i) {
    struct shore__st_tensor slice = *t;
    slice.rank--;
    slice.elems = t->elems / t->shape[0];
    slice.first += i * slice.elems;
    memmove(slice.shape, t->shape + 1, slice.rank * sizeof *slice.shape);
    return slice;
}

static float number_at(enum shore__st_type type, const unsigned char *at) {
    switch (type) {
    case SHORE__ST_BF16:
        return shore__bf16_to_f32(shore__get_u16(at));
    case SHORE__ST_F16:
        return shore__f16_to_f32(shore__get_u16(at));
    case SHORE__ST_E4M3:
        return shore__e4m3_to_f32(*at);
    case SHORE__ST_E8M0:
        return shore__e8m0_to_f32(*at);
    case SHORE__ST_I8:
        return (float)(int8_t)*at;
    default:
        return (float)*at;
    }
}

/* In the order of the file. */
static int read_stored(const struct shore__safetensors *st, const struct shore__st_tensor *t, uint64_t first,
                       uint64_t count, float *out, struct shore_diag *diag) {
    const size_t size = t->bytes;
    first += t->first;
    if (t->coding) return t->coding->read(st, t->coding, first, count, out, diag);
    /* narrow values are read into the far end of out and widened forward: the write never overtakes the read */
    char *raw = (char *)out + count * (4 - size);
    int rc = shore__read_at(st->fds[t->file], raw, count * size, t->offset + first * size,
                            shore__path_in(st->directory, st->files[t->file]).text, diag);
    if (rc || size == 4) return rc;
    for (uint64_t i = 0; i < count; i++) {
        float value = number_at(t->type, (unsigned char *)raw + size * i);
        memcpy((char *)out + 4 * i, &value, 4);
    }
    return 0;
}

/* Reads rows of ncols elements, `apart` elements from one to the next, as the columns of out [ncols, nrows]. */
static int read_as_columns(const struct shore__safetensors *st, const struct shore__st_tensor *t, uint64_t first,
                           uint64_t apart, uint64_t nrows, uint64_t ncols, float *out, struct shore_diag *diag) {
    enum { ROWS = 16, COLS = 512 };
    float tile[ROWS * COLS];
    for (uint64_t c0 = 0; c0 < ncols; c0 += COLS) {
        uint64_t nc = ncols - c0 < COLS ? ncols - c0 : COLS;
        for (uint64_t r0 = 0; r0 < nrows; r0 += ROWS) {
            uint64_t nr = nrows - r0 < ROWS ? nrows - r0 : ROWS;
            for (uint64_t r = 0; r < nr; r++) {
                int rc = read_stored(st, t, first + (r0 + r) * apart + c0, nc, tile + r * COLS, diag);
                if (rc) return rc;
            }
            for (uint64_t c = 0; c < nc; c++)
                for (uint64_t r = 0; r < nr; r++)
                    out[(c0 + c) * nrows + r0 + r] = tile[r * COLS + c];
        }
    }
    return 0;
}

/* Reads a tensor whose matrices are stored transposed: whole rows together, and the rest of a row alone. */
static int read_flipped(const struct shore__safetensors *st, const struct shore__st_tensor *t, uint64_t first,
                        uint64_t count, float *out, struct shore_diag *diag) {
    const uint64_t rows = t->shape[t->rank - 2], cols = t->shape[t->rank - 1];
    int rc = 0;
    for (uint64_t done = 0, nr, nc; rc == 0 && done < count; done += nr * nc) {
        const uint64_t row = (first + done) / cols, col = (first + done) % cols, left = count - done;
        nc = cols - col < left ? cols - col : left;
        nr = nc < cols ? 1 : left / cols;
        if (nr > rows - row % rows) nr = rows - row % rows;
        rc = read_as_columns(st, t, (row / rows * cols + col) * rows + row % rows, rows, nc, nr, out + done, diag);
    }
    return rc;
}

int shore__safetensors_read(const struct shore__safetensors *st, const struct shore__st_tensor *t, uint64_t first,
                            uint64_t count, float *out, struct shore_diag *diag) {
    if (t->type == SHORE__ST_OTHER)
        return shore__fail(diag, SHORE_EINPUT, "%s/%s: tensor \"%s\" is neither F32 nor BF16 nor F16 nor of bytes",
                           st->directory, st->files[t->file], shore__shown(t->name).text);
    if (first > t->elems || count > t->elems - first)
        return shore__fail(diag, SHORE_EINPUT, "%s/%s: tensor \"%s\" has %llu elements, fewer than are asked for",
                           st->directory, st->files[t->file], shore__shown(t->name).text, (unsigned long long)t->elems);
    return (t->flipped ? read_flipped : read_stored)(st, t, first, count, out, diag);
}

int shore__safetensors_read_transposed(const struct shore__safetensors *st, const struct shore__st_tensor *t,
                                       uint64_t col, uint64_t ncols, float *out, struct shore_diag *diag) {
    uint64_t rows = t->shape[0], cols = t->shape[1];
    if (t->rank != 2 || col > cols || ncols > cols - col) {
        return shore__fail(diag, SHORE_EINPUT, "%s/%s: tensor \"%s\" is not a matrix of at least %llu columns",
                           st->directory, st->files[t->file], shore__shown(t->name).text,
                           (unsigned long long)(col + ncols));
    }
    return t->flipped ? read_stored(st, t, col * rows, ncols * rows, out, diag)
                      : read_as_columns(st, t, col, cols, rows, ncols, out, diag);
}
