/* A Hugging Face directory from a fleet, streamed: segments are fetched one run after another, cut into the tensors of
 * the file, and transposed back in tiles where the file has them the other way round. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/directory.h"
#include "files/atomic.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "number/fp16.h"
#include "plan/transfers.h"
#include "run/paths.h"
#include "run/run.h"

enum { COLUMNS_AT_ONCE = 16 }; /* a cache line of fp32 */

static const uint64_t usual_memory_bytes = UINT64_C(32) << 20;
static const uint64_t usual_shard_bytes = UINT64_C(5) << 30;

struct job {
    uint64_t shard_bytes;
    struct shore_fleet *fleet;
    const struct shore__model *model;
    uint64_t step;
    enum shore__st_type type;
    struct shore__st_writer *writer;
    struct shore__export_plan plan;
    float *fetched;
    float *tile;    /* whole rows of a transposed part */
    float *columns; /* of the tile, put together */
    shore__progress_fn progress;
    void *ctx;
    uint64_t done_bytes;
};

/* ---- one part ---------------------------------------------------------------------------------------------------- */

/* What is being written of a transposed part. */
struct transposing {
    uint64_t row;  /* of the part: the tile's first */
    uint64_t held; /* elements in the tile */
};

/* Rows [row, row + rows) of the part are columns of the stored [cols, part rows]. */
static int flush_tile(struct job *job, uint32_t tensor, const struct shore__part *part, uint64_t cols,
                      struct transposing *t, struct shore_diag *diag) {
    uint64_t rows = t->held / cols;
    int rc = 0;
    for (uint64_t c = 0; c < cols && rc == 0; c += COLUMNS_AT_ONCE) {
        uint64_t n = cols - c < COLUMNS_AT_ONCE ? cols - c : COLUMNS_AT_ONCE;
        for (uint64_t r = 0; r < rows; r++)
            for (uint64_t k = 0; k < n; k++)
                job->columns[k * rows + r] = job->tile[r * cols + c + k];
        for (uint64_t k = 0; k < n && rc == 0; k++)
            rc = shore__st_writer_put(job->writer, tensor, (c + k) * part->rows + t->row, rows, job->columns + k * rows,
                                      diag);
    }
    t->row += rows;
    t->held = 0;
    return rc;
}

static int put_transposed(struct job *job, uint32_t tensor, const struct shore__part *part, uint64_t cols,
                          struct transposing *t, const float *values, uint64_t count, struct shore_diag *diag) {
    uint64_t capacity = job->plan.tile_elems / cols * cols;
    int rc = 0;
    while (count > 0 && rc == 0) {
        uint64_t left = (part->rows - t->row) * cols - t->held;
        uint64_t n = capacity - t->held < count ? capacity - t->held : count;
        if (n > left) n = left;
        memcpy(job->tile + t->held, values, n * sizeof *values);
        t->held += n;
        values += n;
        count -= n;
        if (t->held == capacity || n == left) rc = flush_tile(job, tensor, part, cols, t, diag);
    }
    return rc;
}

/* ---- one block --------------------------------------------------------------------------------------------------- */

static int fetch(struct job *job, uint32_t block, uint32_t segment, uint32_t count, struct shore_diag *diag) {
    struct shore_wait wait;
    bool bf16 = job->type == SHORE__ST_BF16;
    enum shore_fetch_kind kind = bf16 ? SHORE_FETCH_BF16 : SHORE_FETCH_MASTER;
    uint64_t elems = (uint64_t)count * SHORE_SEGMENT_ELEMS;
    /* bf16 arrives in the second half of the buffer and is widened towards the front */
    const char *narrow = (const char *)job->fetched + elems * sizeof(uint16_t);
    shore_wait_init(&wait);
    int rc = shore_fleet_fetch(job->fleet, job->step, block, segment, count, kind,
                               bf16 ? (void *)(uintptr_t)narrow : (void *)job->fetched, shore_wait_completion(&wait));
    if (rc < 0) return shore__fail(diag, rc, "the parameters cannot be read: %s", shore_error_text(rc));
    rc = shore_wait(&wait, diag);
    for (uint64_t i = 0; bf16 && rc == 0 && i < elems; i++) {
        uint16_t hi = 0;
        memcpy(&hi, narrow + i * sizeof hi, sizeof hi);
        job->fetched[i] = shore__bf16_to_f32(hi);
    }
    return rc;
}

/* first: of values, in the part's elements. */
static int check_range(const struct job *job, const struct shore__part *part, uint64_t cols, uint64_t first,
                       uint64_t count, const float *values, struct shore_diag *diag) {
    for (uint64_t i = 0; job->type == SHORE__ST_F16 && i < count; i++) {
        if (!(fabsf(values[i]) >= SHORE__F16_OVERFLOWS)) continue;
        uint64_t row = (first + i) / cols, col = (first + i) % cols;
        return shore__fail(diag, SHORE_EINPUT,
                           "the tensor %s holds %g at [%llu, %llu], and fp16 ends at 65504: export with --dtype bf16 "
                           "or fp32",
                           part->name, (double)values[i], (unsigned long long)(part->transposed ? col : row),
                           (unsigned long long)(part->transposed ? row : col));
    }
    return 0;
}

/* The pieces of segments [segment, segment + count), which are fetched, that belong to tensors. declared: number of the
 * block's first part. */
static int put_segments(struct job *job, uint32_t block, uint32_t declared, struct transposing *states,
                        uint32_t segment, uint32_t count, struct shore_diag *diag) {
    const struct shore_layout_block *layout = &job->model->layout->blocks[block];
    uint64_t first = (uint64_t)segment * SHORE_SEGMENT_ELEMS, end = first + (uint64_t)count * SHORE_SEGMENT_ELEMS;
    uint32_t number = 0;
    for (uint32_t t = 0; t < layout->ntensors; t++) {
        const struct shore__model_tensor *tensor = &job->model->blocks[block].tensors[t];
        for (uint32_t i = 0; i < tensor->nparts; i++, number++) {
            const struct shore__part *part = &tensor->parts[i];
            uint64_t start = layout->tensors[t].offset_elems + part->row * tensor->cols;
            uint64_t stop = start + part->rows * tensor->cols;
            uint64_t a = first > start ? first : start, b = end < stop ? end : stop;
            if (a >= b) continue;
            const float *values = job->fetched + (a - first);
            int rc = check_range(job, part, tensor->cols, a - start, b - a, values, diag);
            if (rc == 0)
                rc = part->transposed
                         ? put_transposed(job, declared + number, part, tensor->cols, &states[number], values, b - a,
                                          diag)
                         : shore__st_writer_put(job->writer, declared + number, a - start, b - a, values, diag);
            if (rc < 0) return rc;
        }
    }
    return 0;
}

static int put_block(struct job *job, uint32_t block, uint32_t *declared, struct shore_diag *diag) {
    enum { PARTS_MOST = 48 };
    struct transposing states[PARTS_MOST] = {{0}};
    const uint64_t segment_bytes = SHORE_SEGMENT_ELEMS * sizeof(float);
    uint32_t segments = job->model->layout->blocks[block].segments;
    for (uint32_t first = 0; first < segments; first += job->plan.segments) {
        uint32_t count = segments - first < job->plan.segments ? segments - first : job->plan.segments;
        int rc = fetch(job, block, first, count, diag);
        if (rc == 0) rc = put_segments(job, block, *declared, states, first, count, diag);
        if (rc < 0) return rc;
        job->done_bytes += count * segment_bytes;
        if (job->progress && job->progress(job->ctx, job->done_bytes, job->model->layout->segments * segment_bytes))
            return shore__fail(diag, -ECANCELED, "stopped before the export was whole");
    }
    for (uint32_t t = 0; t < job->model->blocks[block].ntensors; t++)
        *declared += job->model->blocks[block].tensors[t].nparts;
    return 0;
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

static uint32_t count_parts(const struct shore__model *m) {
    uint32_t n = 0;
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; t < m->blocks[b].ntensors; t++)
            n += m->blocks[b].tensors[t].nparts;
    return n;
}

static int open_writer(struct job *job, const char *directory, struct shore_diag *diag) {
    const struct shore__model *m = job->model;
    uint32_t n = 0;
    struct shore__st_decl *decls = calloc(count_parts(m), sizeof *decls);
    if (!decls) return shore__fail(diag, -ENOMEM, "out of memory");
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; t < m->blocks[b].ntensors; t++)
            for (uint32_t i = 0; i < m->blocks[b].tensors[t].nparts; i++) {
                const struct shore__model_tensor *tensor = &m->blocks[b].tensors[t];
                const struct shore__part *part = &tensor->parts[i];
                struct shore__st_decl *d = &decls[n++];
                d->name = part->name;
                d->rank = tensor->matrix ? 2 : 1;
                d->shape[0] = part->transposed ? tensor->cols : part->rows;
                d->shape[1] = part->transposed ? part->rows : tensor->cols;
                d->type = job->type;
            }
    int rc = shore__st_writer_open(directory, decls, n, job->shard_bytes, &job->writer, diag);
    free(decls);
    return rc;
}

static int alloc_buffers(struct job *job, uint64_t memory_bytes, struct shore_diag *diag) {
    job->plan = shore__plan_export(job->model, memory_bytes ? memory_bytes : usual_memory_bytes);
    job->fetched = shore__arena_alloc(NULL, (uint64_t)job->plan.segments * SHORE_SEGMENT_ELEMS * sizeof(float));
    job->tile = shore__arena_alloc(NULL, job->plan.tile_elems * sizeof(float));
    job->columns = shore__arena_alloc(NULL, job->plan.tile_elems * sizeof(float));
    return job->fetched && job->tile && job->columns ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
}

static int write_json(const char *directory, const char *name, json_t *value, struct shore_diag *diag) {
    char *path = shore__path_join(directory, name);
    int rc = path && value ? shore__json_write(path, value, 2, diag) : shore__fail(diag, -ENOMEM, "out of memory");
    free(path);
    json_decref(value);
    return rc;
}

static int write_description(const struct job *job, const struct shore__tokenizer *tokenizer, const char *directory,
                             struct shore_diag *diag) {
    struct shore__arch arch = job->model->arch;
    int64_t end_of_text = tokenizer ? shore__tokenizer_end_of_text(tokenizer) : -1;
    if (!arch.neos && end_of_text >= 0) arch.eos[arch.neos++] = end_of_text;
    json_t *config = shore__arch_to_json(&arch);
    json_t *generation =
        json_pack("{s:b, s:o}", "_from_model_config", 1, "eos_token_id", shore__arch_eos_to_json(&arch));
    if (config)
        json_object_set_new(config, "torch_dtype",
                            json_string(job->type == SHORE__ST_BF16  ? "bfloat16"
                                        : job->type == SHORE__ST_F16 ? "float16"
                                                                     : "float32"));
    if (arch.bos >= 0) json_object_set_new(generation, "bos_token_id", json_integer(arch.bos));
    int rc = write_json(directory, "config.json", config, diag);
    if (rc == 0)
        rc = write_json(directory, "generation_config.json", generation, diag);
    else
        json_decref(generation);
    if (rc == 0 && tokenizer) rc = shore__tokenizer_save(tokenizer, directory, diag);
    return rc;
}

static int write_all(struct job *job, const struct shore__tokenizer *tokenizer, uint64_t memory_bytes,
                     const char *directory, struct shore_diag *diag) {
    uint32_t declared = 0;
    int rc = alloc_buffers(job, memory_bytes, diag);
    if (rc == 0) rc = write_description(job, tokenizer, directory, diag);
    if (rc == 0) rc = open_writer(job, directory, diag);
    for (uint32_t b = 0; b < job->model->nblocks && rc == 0; b++)
        rc = put_block(job, b, &declared, diag);
    if (rc == 0)
        rc = shore__st_writer_finish(job->writer, diag);
    else if (job->writer)
        shore__st_writer_abort(job->writer);
    shore__arena_free(NULL, job->fetched);
    shore__arena_free(NULL, job->tile);
    shore__arena_free(NULL, job->columns);
    return rc;
}

static const char *const exported[] = {"config.json", "model*.safetensors",   "model.safetensors.index.json",
                                       ".*.partial",  SHORE__TOKENIZER_FILES, ".nfs*",
                                       NULL};

static int refuse_strangers(const char *partial, struct shore_diag *diag) {
    struct stat st;
    char *stranger = lstat(partial, &st) < 0 ? NULL
                     : S_ISDIR(st.st_mode)   ? shore__directory_stranger(partial, exported)
                                             : strdup(partial);
    if (!stranger) return 0;
    int rc = shore__fail(diag, SHORE_EEXISTS,
                         "%s: is in the way, since files are written in %s first; move it, or choose another directory",
                         stranger, partial);
    free(stranger);
    return rc;
}

/* What is exported takes its place, by a rename. */
static int refuse_what_is_there(const char *target, struct shore_diag *diag) {
    struct stat st, above, here;
    char *parent = NULL;
    if (lstat(target, &st) < 0) return 0;
    if (!S_ISDIR(st.st_mode) || !shore__directory_is_empty(target))
        return shore__fail(diag, SHORE_EEXISTS, "%s: exists already and is not an empty directory; choose another",
                           target);
    bool mounted = asprintf(&parent, "%s/..", target) >= 0 && stat(parent, &above) == 0 && above.st_dev != st.st_dev;
    bool used = stat(".", &here) == 0 && here.st_dev == st.st_dev && here.st_ino == st.st_ino;
    free(parent);
    if (!mounted && !used) return 0;
    return shore__fail(diag, SHORE_EEXISTS, "%s: is %s; name a directory in it", target,
                       mounted ? "where a file system is mounted" : "the working directory");
}

int shore__export(struct shore_fleet *fleet, const struct shore__model *m, const struct shore__tokenizer *tokenizer,
                  uint64_t step, const char *directory, enum shore__st_type type, uint64_t memory_bytes,
                  uint64_t shard_bytes, shore__progress_fn progress, void *ctx, struct shore_diag *diag) {
    struct job job = {.fleet = fleet, .model = m, .step = step, .type = type, .progress = progress, .ctx = ctx};
    job.shard_bytes = shard_bytes ? shard_bytes : usual_shard_bytes;
    char *target = realpath(directory, NULL), *partial = NULL;
    if (!target) target = strdup(directory);
    for (size_t n = target ? strlen(target) : 0; n > 1 && target[n - 1] == '/'; n--)
        target[n - 1] = '\0';
    if (!target || asprintf(&partial, "%s.partial", target) < 0) {
        free(target);
        return shore__fail(diag, -ENOMEM, "out of memory");
    }
    int rc = refuse_what_is_there(target, diag);
    if (rc == 0) rc = refuse_strangers(partial, diag);
    if (rc == 0) {
        shore__directory_remove(partial, exported); /* of an export that was killed */
        if (mkdir(partial, 0777) < 0)
            rc = shore__fail(diag, -errno, "%s: the directory cannot be made: %s", target,
                             errno == ENOENT ? "the one that is to hold it does not exist" : strerror(errno));
        if (rc == 0) rc = write_all(&job, tokenizer, memory_bytes, partial, diag);
        if (rc == 0) rc = shore__directory_sync(partial, diag);
        if (rc == 0 && rename(partial, target) < 0)
            rc = shore__fail(diag, -errno, "%s: cannot be moved into place: %s", target, strerror(errno));
        if (rc == 0) rc = shore__parent_sync(target, diag);
        if (rc < 0) shore__directory_remove(partial, exported);
    }
    free(partial);
    free(target);
    return rc;
}
