/* Initial weights: random numbers, or the tensors of a Hugging Face directory in canonical order. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "files/safetensors.h"
#include "number/bf16.h"
#include "run/exchange/tensors.h"
#include "run/run.h"

enum { PARTS = sizeof((struct shore__model_tensor *)0)->parts / sizeof(struct shore__part), TENSORS = 16 };

struct shore__source {
    const struct shore__model *model;
    uint64_t seed;
    struct shore__safetensors *files;        /* NULL: random numbers */
    const struct shore__st_tensor **tensors; /* of each part: [block][tensor][part] */
    bool *used;                              /* by index into files->tensors */
    float *row;                              /* a whole row, if only a span of it is wanted */
    bool squares;                            /* means or sums of squares, of which none is negative */
};

static const struct shore__st_tensor **tensor_of(const struct shore__source *s, uint32_t block, uint32_t tensor,
                                                 uint32_t part) {
    return &s->tensors[((size_t)block * TENSORS + tensor) * PARTS + part];
}

int shore__source_init(const struct shore__model *m, uint64_t seed, struct shore__source **out) {
    struct shore__source *s = calloc(1, sizeof *s);
    if (!s) return -ENOMEM;
    s->model = m;
    s->seed = seed;
    *out = s;
    return 0;
}

void shore__source_holds_squares(struct shore__source *s) {
    s->squares = true;
}

void shore__source_close(struct shore__source *s) {
    if (!s) return;
    shore__safetensors_close(s->files);
    free(s->tensors);
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

static int find_part(struct shore__source *s, uint32_t block, uint32_t tensor, uint32_t part, struct shore_diag *diag) {
    const struct shore__model_tensor *ours = &s->model->blocks[block].tensors[tensor];
    const struct shore__part *p = &ours->parts[part];
    const struct shore__st_tensor *t = shore__tensor_find(s->files, &s->model->arch, p->name);
    const uint64_t shape[2] = {p->transposed ? ours->cols : p->rows, p->transposed ? p->rows : ours->cols};
    uint32_t rank = ours->matrix ? 2 : 1;
    if (!t) return is_missing(s, p->name, diag);
    const struct shore__shown name = shore__shown(t->name);
    if (t->rank != rank || memcmp(t->shape, shape, rank * sizeof *shape) != 0) {
        return shore__fail(diag, SHORE_EINPUT, "%s: the tensor %s has the shape %s, but config.json asks for %s",
                           shore__shown(s->files->directory).text, name.text, shore__shape_text(t->rank, t->shape).text,
                           shore__shape_text(rank, shape).text);
    }
    if (t->type == SHORE__ST_OTHER || t->type == SHORE__ST_BYTE)
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: the tensor %s has a type that Longshore does not read: it reads F32, BF16 and F16",
                           shore__shown(s->files->directory).text, name.text);
    s->used[t - s->files->tensors] = true;
    *tensor_of(s, block, tensor, part) = t;
    return 0;
}

static int check_all(struct shore__source *s, struct shore_diag *diag) {
    const struct shore__model *m = s->model;
    int wrapped = shore__tensors_refuse_wrapped(s->files, diag);
    if (wrapped < 0) return wrapped;
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; t < m->blocks[b].ntensors; t++)
            for (uint32_t p = 0; p < m->blocks[b].tensors[t].nparts; p++) {
                int rc = find_part(s, b, t, p, diag);
                if (rc < 0) return rc;
            }
    for (uint32_t i = 0; i < s->files->ntensors; i++) {
        int rc = s->used[i] ? 0 : shore__tensor_check_unused(s->files, &m->arch, &s->files->tensors[i], diag);
        if (rc < 0) return rc;
    }
    return 0;
}

static uint64_t widest_row(const struct shore__model *m) {
    uint64_t widest = 1;
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; t < m->blocks[b].ntensors; t++)
            if (m->blocks[b].tensors[t].cols > widest) widest = m->blocks[b].tensors[t].cols;
    return widest;
}

int shore__source_directory(const struct shore__model *m, const char *directory, struct shore__source **out,
                            struct shore_diag *diag) {
    struct shore__source *s = NULL;
    int rc = shore__source_init(m, 0, &s);
    if (rc < 0) return shore__fail(diag, rc, "out of memory");
    rc = shore__safetensors_open(directory, &s->files, diag);
    if (rc < 0) goto failed;
    s->tensors = calloc((size_t)m->nblocks * TENSORS * PARTS, sizeof *s->tensors);
    s->used = calloc(s->files->ntensors + 1u, sizeof *s->used);
    s->row = malloc(widest_row(m) * sizeof *s->row);
    rc = s->tensors && s->used && s->row ? check_all(s, diag) : shore__fail(diag, -ENOMEM, "out of memory");
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

/* Refuses values that cannot be stored. first: index of values[0] among the part's canonical elements. */
static int check_values(const struct shore__source *s, const struct shore__st_tensor *t, const struct shore__part *p,
                        uint64_t cols, uint64_t first, uint64_t count, const float *values, struct shore_diag *diag) {
    for (uint64_t i = 0; i < count; i++) {
        if (is_storable(values[i]) && !(s->squares && values[i] < 0)) continue;
        uint64_t row = (first + i) / cols, col = (first + i) % cols;
        uint64_t index[2] = {p->transposed ? col : row, p->transposed ? row : col};
        const char *what = values[i] != values[i]   ? "NaN"
                           : is_storable(values[i]) ? "a negative number"
                                                    : "infinity (or a number too large for bf16)";
        return shore__fail(diag, SHORE_EINPUT, "%s: the tensor %s holds %s at %s: these %s cannot be used",
                           shore__shown(s->files->directory).text, shore__shown(t->name).text, what,
                           shore__shape_text(t->rank == 1 ? 1 : 2, index).text,
                           s->squares ? "moments, of squares," : "weights");
    }
    return 0;
}

/* Reads columns [from, end) of one row of a transposed part. */
static int read_row_span(struct shore__source *s, const struct shore__st_tensor *t, uint64_t row, uint64_t from,
                         uint64_t end, float *out, struct shore_diag *diag) {
    int rc = shore__safetensors_read_transposed(s->files, t, row, 1, s->row, diag);
    if (rc == 0) memcpy(out, s->row + from, (end - from) * sizeof *out);
    return rc;
}

static int read_transposed(struct shore__source *s, const struct shore__st_tensor *t, uint64_t cols, uint64_t first,
                           uint64_t count, float *out, struct shore_diag *diag) {
    uint64_t end = first + count;
    while (first < end) {
        uint64_t row = first / cols, col = first % cols, taken = 0;
        int rc = 0;
        if (col != 0 || end - first < cols) {
            uint64_t stop = end - first < cols - col ? col + (end - first) : cols;
            taken = stop - col;
            rc = read_row_span(s, t, row, col, stop, out, diag);
        } else {
            uint64_t rows = (end - first) / cols;
            taken = rows * cols;
            rc = shore__safetensors_read_transposed(s->files, t, row, rows, out, diag);
        }
        if (rc < 0) return rc;
        first += taken;
        out += taken;
    }
    return 0;
}

/* Reads elements [from, end) of a tensor of ours. */
static int read_tensor(struct shore__source *s, uint32_t block, uint32_t tensor, uint64_t from, uint64_t end,
                       float *out, struct shore_diag *diag) {
    const struct shore__model_tensor *ours = &s->model->blocks[block].tensors[tensor];
    for (uint32_t i = 0; i < ours->nparts; i++) {
        const struct shore__part *p = &ours->parts[i];
        const struct shore__st_tensor *t = *tensor_of(s, block, tensor, i);
        uint64_t start = p->row * ours->cols, stop = (p->row + p->rows) * ours->cols;
        uint64_t a = from > start ? from : start, b = end < stop ? end : stop;
        if (a >= b) continue;
        float *to = out + (a - from);
        int rc = p->transposed ? read_transposed(s, t, ours->cols, a - start, b - a, to, diag)
                               : shore__safetensors_read(s->files, t, a - start, b - a, to, diag);
        if (rc == 0) rc = check_values(s, t, p, ours->cols, a - start, b - a, to, diag);
        if (rc < 0) return rc;
    }
    return 0;
}

int shore__source_read(struct shore__source *s, uint32_t block, uint32_t segment, uint32_t count, float *out,
                       struct shore_diag *diag) {
    if (!s->files) {
        shore__model_init(s->model, s->seed, block, segment, count, out);
        return 0;
    }
    const struct shore_layout_block *layout = &s->model->layout->blocks[block];
    uint64_t first = (uint64_t)segment * SHORE_SEGMENT_ELEMS, end = first + (uint64_t)count * SHORE_SEGMENT_ELEMS;
    memset(out, 0, (end - first) * sizeof *out);
    for (uint32_t t = 0; t < layout->ntensors; t++) {
        uint64_t start = layout->tensors[t].offset_elems, stop = start + layout->tensors[t].elems;
        uint64_t a = first > start ? first : start, b = end < stop ? end : stop;
        int rc = a < b ? read_tensor(s, block, t, a - start, b - start, out + (a - first), diag) : 0;
        if (rc < 0) return rc;
    }
    return 0;
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
            rc = shore__fail(diag, -ENOMEM, "out of memory");
    for (uint32_t b = 0; b < m->nblocks && rc == 0; b++) {
        uint32_t segments = m->layout->blocks[b].segments;
        for (uint32_t first = 0; first < segments && rc == 0; first += at_once) {
            uint32_t count = segments - first < at_once ? segments - first : at_once;
            for (int i = 0; i < 3 && rc == 0; i++)
                if (sources[i]) rc = shore__source_read(sources[i], b, first, count, values[i], diag);
            if (rc == 0 && fleet)
                rc = shore_fleet_init_block(fleet, b, first, count, values[0], values[1], values[2], diag);
            done += count * segment_bytes;
            if (rc == 0 && progress && progress(ctx, done, m->layout->segments * segment_bytes) != 0)
                rc = shore__fail(diag, -ECANCELED, "stopped before the initial state was written");
        }
    }
    for (int i = 0; i < 3; i++)
        free(values[i]);
    return rc;
}
