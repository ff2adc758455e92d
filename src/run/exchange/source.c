/* Initial weights: random numbers, or the tensors of a Hugging Face directory in canonical order. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "files/safetensors.h"
#include "model/adapters.h"
#include "number/bf16.h"
#include "run/exchange/adapter.h"
#include "run/exchange/tensors.h"
#include "run/run.h"

struct shore__source {
    const struct shore__model *model;
    uint64_t seed;
    struct shore__safetensors *files;        /* NULL: random numbers */
    struct shore__contents *contents;        /* what is wanted of them */
    const struct shore__st_tensor **tensors; /* of each of its shapes */
    struct shore__st_tensor *slices;         /* of each: those that are slices of larger tensors */
    bool *used;                              /* by index into files->tensors */
    struct shore__adapter *adapter;          /* merged into them; NULL: none */
    float *row;                              /* a whole row, if only a span of it is wanted */
    bool squares;                            /* means or sums of squares, of which none is negative */
};

int shore__source_init(const struct shore__model *m, uint64_t seed, struct shore__source **out) {
    struct shore__source *s = calloc(1, sizeof *s);
    if (!s) return -ENOMEM;
    s->model = m;
    s->seed = seed;
    *out = s;
    return 0;
}

void shore__source_set_seed(struct shore__source *s, uint64_t seed) {
    s->seed = seed;
}

void shore__source_holds_squares(struct shore__source *s) {
    s->squares = true;
}

void shore__source_close(struct shore__source *s) {
    if (!s) return;
    shore__adapter_close(s->adapter);
    shore__safetensors_close(s->files);
    shore__contents_free(s->contents);
    free(s->tensors);
    free(s->slices);
    free(s->used);
    free(s->row);
    free(s);
}

/* ---- finding our tensors in the files ---------------------------------------------------------------------------- */

static int is_missing(const struct shore__source *s, const char *wanted, struct shore_diag *diag) {
    const struct shore__st_tensor *t = shore__tensor_prefixed(s->files, wanted);
    const struct shore__shown directory = shore__shown(s->files->directory);
    if (!t)
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: the tensor %s is missing: the safetensors files do not fit config.json", directory.text,
                           wanted);
    return shore__fail(diag, SHORE_EINPUT,
                       "%s: the tensor %s is missing, but %s is there: these are the weights of a larger model: save "
                       "the language model in it alone (save_pretrained)",
                       directory.text, wanted, shore__shown(t->name).text);
}

static int find_shape(struct shore__source *s, uint32_t i, struct shore_diag *diag) {
    const struct shore_shape *wanted = &s->contents->shapes[i];
    const struct shore__st_tensor *t = shore__tensor_find(s->files, &s->model->arch, wanted->name), *stored = t;
    if (!t && (stored = shore__tensor_of_expert(s->files, &s->model->arch, wanted->name, &s->slices[i])))
        t = &s->slices[i];
    if (!t) return is_missing(s, wanted->name, diag);
    const struct shore__shown name = shore__shown(t->name), directory = shore__shown(s->files->directory);
    uint64_t dims[SHORE_RANK_MOST + 1] = {wanted->nslices};
    const uint32_t sliced = wanted->nslices > 0, rank = wanted->rank + sliced;
    memcpy(dims + sliced, wanted->dims, wanted->rank * sizeof *dims);
    if (t->rank != rank || memcmp(t->shape, dims, rank * sizeof *dims) != 0)
        return shore__fail(diag, SHORE_EINPUT, "%s: the tensor %s has the shape %s, but config.json asks for %s",
                           directory.text, name.text, shore__shape_text(t->rank, t->shape).text,
                           shore__shape_text(rank, dims).text);
    if (!shore__st_is_weight(t))
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: the tensor %s has a type that Longshore does not read: it reads F32, BF16, F16 and "
                           "F8_E4M3",
                           directory.text, name.text);
    s->used[stored - s->files->tensors] = true;
    if (sliced) s->slices[i] = shore__safetensors_slice(t, wanted->slice);
    s->tensors[i] = sliced ? &s->slices[i] : t;
    return 0;
}

static int check_all(struct shore__source *s, struct shore_diag *diag) {
    int rc = shore__tensors_refuse_wrapped(s->files, diag);
    for (uint32_t i = 0; rc == 0 && i < s->contents->nshapes; i++)
        rc = find_shape(s, i, diag);
    for (uint32_t i = 0; rc == 0 && i < s->files->ntensors; i++)
        if (!s->used[i]) rc = shore__tensor_check_unused(s->files, &s->model->arch, &s->files->tensors[i], diag);
    return rc;
}

int shore__source_directory(const struct shore__model *m, const char *directory, struct shore__source **out,
                            struct shore_diag *diag) {
    struct shore__source *s = NULL;
    int rc = shore__source_init(m, 0, &s);
    if (rc < 0) return shore__fail(diag, rc, "out of memory");
    rc = shore__tensors_open(directory, &m->arch, &s->files, diag);
    if (rc == 0) rc = shore__contents_of_model(m, SHORE__BASE_ALONE, true, &s->contents, diag);
    if (rc < 0) goto failed;
    s->tensors = calloc(s->contents->nshapes, sizeof *s->tensors);
    s->slices = calloc(s->contents->nshapes, sizeof *s->slices);
    s->used = calloc(s->files->ntensors + 1u, sizeof *s->used);
    s->row = malloc(shore__contents_widest_row(s->contents) * sizeof *s->row);
    rc = s->tensors && s->slices && s->used && s->row ? check_all(s, diag) : shore__out_of_memory(diag);
    if (rc < 0) goto failed;
    *out = s;
    return 0;
failed:
    shore__source_close(s);
    return rc;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* From this magnitude on, the bf16 rounding of a master weight is infinite. */
static bool is_storable(float x) {
    return (shore__f32_bits(x) & 0x7FFFFFFFu) < 0x7F7F8000u;
}

/* Refuses values that cannot be stored. first: index of values[0] among the shape's canonical elements. */
static int check_values(const struct shore__source *s, uint32_t number, uint64_t first, uint64_t count,
                        const float *values, struct shore_diag *diag) {
    const struct shore_shape *shape = &s->contents->shapes[number];
    uint64_t cols = shape->rank == 1 ? 1 : shape->dims[!shape->transposed];
    for (uint64_t i = 0; i < count; i++) {
        if (is_storable(values[i]) && !(s->squares && values[i] < 0)) continue;
        uint64_t index[2] = {(first + i) / cols, (first + i) % cols};
        if (shape->transposed) index[0] = (first + i) % cols, index[1] = (first + i) / cols;
        const char *what = values[i] != values[i]   ? "NaN"
                           : is_storable(values[i]) ? "a negative number"
                                                    : "infinity (or a number too large for bf16)";
        return shore__fail(diag, SHORE_EINPUT, "%s: the tensor %s holds %s at %s: these %s cannot be used",
                           shore__shown(s->files->directory).text, shore__shown(s->tensors[number]->name).text, what,
                           shore__shape_text(shape->rank, index).text, s->squares ? "moments, of squares," : "weights");
    }
    return 0;
}

/* Reads columns [from, end) of one row of a transposed part. */
static int read_row_span(struct shore__source *s, const struct shore__safetensors *files,
                         const struct shore__st_tensor *t, uint64_t row, uint64_t from, uint64_t end, float *out,
                         struct shore_diag *diag) {
    int rc = shore__safetensors_read_transposed(files, t, row, 1, s->row, diag);
    if (rc == 0) memcpy(out, s->row + from, (end - from) * sizeof *out);
    return rc;
}

static int read_transposed(struct shore__source *s, const struct shore__safetensors *files,
                           const struct shore__st_tensor *t, uint64_t cols, uint64_t first, uint64_t count, float *out,
                           struct shore_diag *diag) {
    uint64_t end = first + count;
    while (first < end) {
        uint64_t row = first / cols, col = first % cols, taken = 0;
        int rc = 0;
        if (col != 0 || end - first < cols) {
            uint64_t stop = end - first < cols - col ? col + (end - first) : cols;
            taken = stop - col;
            rc = read_row_span(s, files, t, row, col, stop, out, diag);
        } else {
            uint64_t rows = (end - first) / cols;
            taken = rows * cols;
            rc = shore__safetensors_read_transposed(files, t, row, rows, out, diag);
        }
        if (rc < 0) return rc;
        first += taken;
        out += taken;
    }
    return 0;
}

/* Reads canonical elements of a tensor as the files have them. */
static int read_base(void *ctx, uint32_t number, uint64_t first, uint64_t count, float *out, struct shore_diag *diag) {
    struct shore__source *s = ctx;
    const struct shore_shape *shape = &s->contents->shapes[number];
    const struct shore__safetensors *files = s->files;
    const struct shore__st_tensor *t = shore__adapter_instead(s->adapter, number, &files);
    if (!t) t = s->tensors[number];
    return shape->transposed ? read_transposed(s, files, t, shape->dims[0], first, count, out, diag)
                             : shore__safetensors_read(files, t, first, count, out, diag);
}

int shore__source_merge(struct shore__source *s, const char *directory, struct shore_diag *diag) {
    return shore__adapter_open(directory, s->contents, s->model->arch.model_type, read_base, s, &s->adapter, diag);
}

int shore__source_read(struct shore__source *s, uint32_t block, uint32_t segment, uint32_t count, float *out,
                       struct shore_diag *diag) {
    if (!s->files || shore__block_adapts(s->model, block)) {
        shore__model_init(s->model, s->seed, block, segment, count, out);
        return 0;
    }
    uint64_t first = (uint64_t)segment * SHORE_SEGMENT_ELEMS, end = first + (uint64_t)count * SHORE_SEGMENT_ELEMS;
    int rc = 0;
    memset(out, 0, (end - first) * sizeof *out);
    for (uint32_t i = 0; rc == 0 && i < s->contents->nshapes; i++) {
        const struct shore_shape *shape = &s->contents->shapes[i];
        const struct shore__st_tensor *t = s->tensors[i];
        uint64_t start = shape->offset_elems, stop = start + t->elems;
        uint64_t a = first > start ? first : start, b = end < stop ? end : stop;
        if (shape->block != block || a >= b) continue;
        float *to = out + (a - first);
        rc = read_base(s, i, a - start, b - a, to, diag);
        if (rc == 0) rc = shore__adapter_merge(s->adapter, i, a - start, b - a, to, diag);
        if (rc == 0) rc = check_values(s, i, a - start, b - a, to, diag);
    }
    return rc;
}

/* ---- import ------------------------------------------------------------------------------------------------------ */

int shore__import(struct shore_fleet *fleet, const struct shore__model *m, struct shore__source *source,
                  const struct shore__moment_sources *moments, shore__progress_fn progress, void *ctx,
                  struct shore_diag *diag) {
    const uint64_t segment_bytes = SHORE_SEGMENT_ELEMS * sizeof(float);
    const uint32_t at_once = moments && (moments->m || moments->v) ? 5 : 16; /* 4 MiB in all, as budgets have it */
    struct shore__source *const sources[] = {source, moments ? moments->m : NULL, moments ? moments->v : NULL};
    uint64_t done = 0;
    float *values[3] = {NULL};
    int rc = 0;
    for (int i = 0; i < 3 && rc == 0; i++)
        if (sources[i] && !(values[i] = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, at_once * segment_bytes)))
            rc = shore__out_of_memory(diag);
    for (uint32_t b = 0; b < m->nblocks && rc == 0; b++) {
        uint32_t segments = m->layout->blocks[b].segments;
        const bool rests = shore__model_rests(m, b);
        for (uint32_t first = 0; first < segments && rc == 0; first += at_once) {
            uint32_t count = segments - first < at_once ? segments - first : at_once;
            for (int i = 0; i < 3 && rc == 0; i++)
                if (sources[i]) rc = shore__source_read(sources[i], b, first, count, values[i], diag);
            if (rc == 0 && fleet)
                rc = shore_fleet_init_block(fleet, b, first, count, values[0], rests ? NULL : values[1],
                                            rests ? NULL : values[2], diag);
            done += count * segment_bytes;
            if (rc == 0 && progress && progress(ctx, done, m->layout->segments * segment_bytes) != 0)
                rc = shore__fail(diag, -ECANCELED, "stopped before the initial state was written");
        }
    }
    for (int i = 0; i < 3; i++)
        free(values[i]);
    return rc;
}
