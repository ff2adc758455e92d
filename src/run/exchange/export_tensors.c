/* Exports a directory of safetensors from a fleet, streamed. Fetches segments one run after another, cuts them into the
 * tensors of the file, and transposes them back in tiles where the file has them the other way round. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/directory.h"
#include "drive/fleet/fleet.h"
#include "files/atomic.h"
#include "files/safetensors.h"
#include "number/fp16.h"
#include "plan/transfers.h"
#include "run/exchange/moment_files.h"
#include "run/paths.h"
#include "run/run.h"

enum { COLUMNS_AT_ONCE = 16 }; /* a cache line of fp32 */

#define LEFT_OUT UINT32_MAX

static const uint64_t usual_memory_bytes = UINT64_C(32) << 20;
static const uint64_t usual_shard_bytes = UINT64_C(5) << 30;
static const uint64_t segment_bytes = SHORE_SEGMENT_ELEMS * sizeof(float);

/* Progress of writing a transposed tensor. */
struct transposing {
    uint64_t row;  /* first row of the tile, of the tensor as stored */
    uint64_t held; /* elements in the tile */
};

struct job {
    const struct shore__exporting *e;
    enum shore_fetch_kind kind; /* the plane that is written: masters, or a moment */
    enum shore__st_type *types; /* of the tensors */
    uint32_t *numbers;          /* the tensors' numbers in the writer, or LEFT_OUT */
    uint32_t first_extra;       /* the first extra's number in the writer */
    struct shore__st_writer *writer;
    shore__put_fn put; /* where the elements go */
    void *put_ctx;
    struct shore__export_plan plan;
    float *fetched;
    float *tile;    /* whole rows of a transposed tensor */
    float *columns; /* columns of the tile, put together */
    struct transposing *transposing;
    uint64_t done_bytes, total_bytes;
};

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

static uint64_t elems_of(const struct shore_shape *s) {
    uint64_t elems = 1;
    for (uint32_t i = 0; i < s->rank; i++)
        elems *= s->dims[i];
    return elems;
}
/* Elements before it in the tensor of the files, of which it may be a slice. */
static uint64_t elems_before(const struct shore_shape *s) {
    return s->slice * elems_of(s);
}

/* Writes the tile. Its rows, [row, row + rows) as stored, are columns of the tensor, [dims[0], dims[1]]. */
static int flush_tile(struct job *job, uint32_t number, struct shore_diag *diag) {
    const struct shore_shape *s = &job->e->contents->shapes[number];
    struct transposing *t = &job->transposing[number];
    uint64_t cols = s->dims[0], rows = t->held / cols;
    int rc = 0;
    for (uint64_t c = 0; c < cols && rc == 0; c += COLUMNS_AT_ONCE) {
        uint64_t n = cols - c < COLUMNS_AT_ONCE ? cols - c : COLUMNS_AT_ONCE;
        for (uint64_t r = 0; r < rows; r++)
            for (uint64_t k = 0; k < n; k++)
                job->columns[k * rows + r] = job->tile[r * cols + c + k];
        for (uint64_t k = 0; k < n && rc == 0; k++)
            rc = job->put(job->put_ctx, job->numbers[number], elems_before(s) + (c + k) * s->dims[1] + t->row, rows,
                          job->columns + k * rows, diag);
    }
    t->row += rows;
    t->held = 0;
    return rc;
}

static int put_transposed(struct job *job, uint32_t number, const float *values, uint64_t count,
                          struct shore_diag *diag) {
    const struct shore_shape *s = &job->e->contents->shapes[number];
    struct transposing *t = &job->transposing[number];
    uint64_t cols = s->dims[0], capacity = job->plan.tile_elems / cols * cols;
    int rc = 0;
    while (count > 0 && rc == 0) {
        uint64_t left = (s->dims[1] - t->row) * cols - t->held;
        uint64_t n = capacity - t->held < count ? capacity - t->held : count;
        if (n > left) n = left;
        memcpy(job->tile + t->held, values, n * sizeof *values);
        t->held += n;
        values += n;
        count -= n;
        if (t->held == capacity || n == left) rc = flush_tile(job, number, diag);
    }
    return rc;
}

/* Refuses values that fp16 cannot hold. first: index of values[0] among the elements as stored. */
static int check_range(const struct shore_shape *s, uint64_t first, uint64_t count, const float *values,
                       struct shore_diag *diag) {
    for (uint64_t i = 0; i < count; i++) {
        if (!(fabsf(values[i]) >= SHORE__F16_OVERFLOWS)) continue;
        char at[200] = "";
        uint64_t place = first + i;
        if (s->transposed) place = place % s->dims[0] * s->dims[1] + place / s->dims[0];
        for (uint32_t d = s->rank; d-- > 0; place /= s->dims[d]) {
            char before[200];
            strcpy(before, at);
            snprintf(at, sizeof at, "%" PRIu64 "%s%.170s", place % s->dims[d], *before ? ", " : "", before);
        }
        return shore__fail(
            diag, SHORE_EINPUT,
            "the tensor %s holds %g at [%s], and the largest number of fp16 is 65504: export it as bf16 or fp32",
            s->name, (double)values[i], at);
    }
    return 0;
}

/* ---- one block --------------------------------------------------------------------------------------------------- */

static int fetch(struct job *job, uint32_t block, uint32_t segment, uint32_t count, bool bf16,
                 struct shore_diag *diag) {
    struct shore_wait wait;
    enum shore_fetch_kind kind = bf16 ? SHORE_FETCH_BF16 : job->kind;
    uint64_t elems = (uint64_t)count * SHORE_SEGMENT_ELEMS;
    /* bf16 arrives in the second half of the buffer and is widened towards the front */
    const char *narrow = (const char *)job->fetched + elems * sizeof(uint16_t);
    shore_wait_init(&wait);
    int rc = shore_fleet_fetch(job->e->fleet, job->e->step, block, segment, count, kind,
                               bf16 ? (void *)(uintptr_t)narrow : (void *)job->fetched, shore_wait_completion(&wait));
    if (rc < 0) return shore__fail(diag, rc, "the state cannot be read: %s", shore_error_text(rc));
    rc = shore_wait(&wait, diag);
    for (uint64_t i = 0; bf16 && rc == 0 && i < elems; i++) {
        uint16_t hi = 0;
        memcpy(&hi, narrow + i * sizeof hi, sizeof hi);
        job->fetched[i] = shore__bf16_to_f32(hi);
    }
    return rc;
}

/* Writes the parts of the fetched segments [segment, segment + count) that belong to tensors [from, to). */
static int put_segments(struct job *job, uint32_t from, uint32_t to, bool bf16, uint32_t segment, uint32_t count,
                        struct shore_diag *diag) {
    uint64_t first = (uint64_t)segment * SHORE_SEGMENT_ELEMS, end = first + (uint64_t)count * SHORE_SEGMENT_ELEMS;
    for (uint32_t i = from; i < to; i++) {
        const struct shore_shape *s = &job->e->contents->shapes[i];
        uint64_t start = s->offset_elems, stop = start + elems_of(s);
        uint64_t a = first > start ? first : start, b = end < stop ? end : stop;
        if (a >= b || job->numbers[i] == LEFT_OUT || (job->types[i] == SHORE__ST_BF16) != bf16) continue;
        const float *values = job->fetched + (a - first);
        int rc = job->types[i] == SHORE__ST_F16 ? check_range(s, a - start, b - a, values, diag) : 0;
        if (rc == 0)
            rc = s->transposed
                     ? put_transposed(job, i, values, b - a, diag)
                     : job->put(job->put_ctx, job->numbers[i], elems_before(s) + a - start, b - a, values, diag);
        if (rc < 0) return rc;
    }
    return 0;
}

/* Writes tensors [from, to) of a block: those that are written as bf16, or the others. */
static int put_block(struct job *job, uint32_t block, uint32_t from, uint32_t to, bool bf16, struct shore_diag *diag) {
    uint32_t segments = job->e->contents->layout->blocks[block].segments;
    for (uint32_t first = 0; first < segments; first += job->plan.segments) {
        uint32_t count = segments - first < job->plan.segments ? segments - first : job->plan.segments;
        int rc = fetch(job, block, first, count, bf16, diag);
        if (rc == 0) rc = put_segments(job, from, to, bf16, first, count, diag);
        if (rc < 0) return rc;
        job->done_bytes += count * segment_bytes;
        if (job->e->progress && job->e->progress(job->e->progress_ctx, job->done_bytes, job->total_bytes))
            return shore__fail(diag, -ECANCELED, "stopped before the export was whole");
    }
    return 0;
}

/* Writes the blocks, each fetched as what its tensors are written as. count_only: only adds up the bytes. */
static int put_blocks(struct job *job, bool count_only, struct shore_diag *diag) {
    const struct shore__contents *c = job->e->contents;
    uint32_t from = 0, to = 0;
    int rc = 0;
    for (uint32_t b = 0; b < c->layout->nblocks; b++, from = to) {
        bool has[2] = {false, false}; /* others; bf16 */
        for (; to < c->nshapes && c->shapes[to].block == b; to++)
            has[job->types[to] == SHORE__ST_BF16] |= job->numbers[to] != LEFT_OUT;
        for (int bf16 = 0; bf16 < 2 && rc == 0; bf16++) {
            if (has[bf16] && count_only)
                job->total_bytes += c->layout->blocks[b].segments * segment_bytes;
            else if (has[bf16])
                rc = put_block(job, b, from, to, bf16, diag);
        }
    }
    return rc;
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

enum shore__st_type shore__st_type_of(enum shore_dtype dtype) {
    return dtype == SHORE_DTYPE_FP32 ? SHORE__ST_F32 : dtype == SHORE_DTYPE_BF16 ? SHORE__ST_BF16 : SHORE__ST_F16;
}

static int open_writer(struct job *job, const char *directory, struct shore_diag *diag) {
    const struct shore__contents *c = job->e->contents;
    struct shore__st_decl *decls = calloc((size_t)c->nshapes + job->e->nextras + 1u, sizeof *decls);
    uint32_t n = 0;
    if (!decls) return shore__out_of_memory(diag);
    for (uint32_t i = 0; i < c->nshapes; i++) {
        const struct shore_shape *s = &c->shapes[i];
        const uint32_t sliced = s->nslices > 0;
        if (job->numbers[i] == LEFT_OUT || s->slice > 0) continue;
        decls[n] = (struct shore__st_decl){
            .name = s->name, .rank = s->rank + sliced, .type = job->types[i], .shape = {s->nslices}};
        memcpy(decls[n++].shape + sliced, s->dims, s->rank * sizeof *s->dims);
    }
    job->first_extra = n;
    for (uint32_t i = 0; job->kind == SHORE_FETCH_MASTER && i < job->e->nextras; i++) {
        const struct shore_extra *x = &job->e->extras[i];
        decls[n] = (struct shore__st_decl){.name = x->name, .rank = x->rank, .type = SHORE__ST_OTHER, .named = x->type};
        memcpy(decls[n++].shape, x->dims, sizeof x->dims);
    }
    uint64_t shard_bytes = job->e->shard_bytes ? job->e->shard_bytes : usual_shard_bytes;
    int rc = shore__st_writer_open(directory, decls, n, shard_bytes, &job->writer, diag);
    free(decls);
    return rc;
}

static int alloc_buffers(struct job *job, struct shore_diag *diag) {
    const struct shore__contents *c = job->e->contents;
    job->plan = shore__plan_export(shore__contents_widest_row(c),
                                   job->e->memory_bytes ? job->e->memory_bytes : usual_memory_bytes);
    job->fetched = shore__arena_alloc(NULL, (uint64_t)job->plan.segments * SHORE_SEGMENT_ELEMS * sizeof(float));
    job->tile = shore__arena_alloc(NULL, job->plan.tile_elems * sizeof(float));
    job->columns = shore__arena_alloc(NULL, job->plan.tile_elems * sizeof(float));
    job->transposing = calloc(c->nshapes + 1u, sizeof *job->transposing);
    job->types = calloc(c->nshapes + 1u, sizeof *job->types);
    job->numbers = calloc(c->nshapes + 1u, sizeof *job->numbers);
    if (!job->fetched || !job->tile || !job->columns || !job->transposing || !job->types || !job->numbers)
        return shore__out_of_memory(diag);
    return 0;
}

static void free_buffers(struct job *job) {
    shore__arena_free(NULL, job->fetched);
    shore__arena_free(NULL, job->tile);
    shore__arena_free(NULL, job->columns);
    free(job->transposing);
    free(job->types);
    free(job->numbers);
}

/* Chooses what is written: masters in the type that is asked for; moments in fp32, of trained tensors only. */
static void choose(struct job *job, enum shore_fetch_kind kind) {
    const struct shore__contents *c = job->e->contents;
    bool moments = kind != SHORE_FETCH_MASTER;
    uint32_t n = 0;
    job->kind = kind;
    for (uint32_t i = 0; i < c->nshapes; i++) {
        bool rests = c->layout->blocks[c->shapes[i].block].tensors[0].group == SHORE_GROUP_RESTS;
        job->types[i] = moments ? SHORE__ST_F32 : job->e->type ? *job->e->type : shore__st_type_of(c->shapes[i].dtype);
        uint32_t of = i; /* an earlier slice of the same tensor */
        while (c->shapes[i].slice > 0 && (of == i || strcmp(c->shapes[of].name, c->shapes[i].name) != 0))
            of--;
        job->numbers[i] = moments && rests ? LEFT_OUT : of < i ? job->numbers[of] : n++;
        job->transposing[i] = (struct transposing){0, 0};
    }
}

static int put_in_writer(void *ctx, uint32_t number, uint64_t first, uint64_t count, const float *values,
                         struct shore_diag *diag) {
    return shore__st_writer_put(ctx, number, first, count, values, diag);
}

static int write_tensors(struct job *job, const char *directory, struct shore_diag *diag) {
    job->writer = NULL;
    int rc = open_writer(job, directory, diag);
    job->put = put_in_writer;
    job->put_ctx = job->writer;
    if (rc == 0) rc = put_blocks(job, false, diag);
    for (uint32_t i = 0; job->kind == SHORE_FETCH_MASTER && i < job->e->nextras && rc == 0; i++)
        rc = shore__st_writer_put_bytes(job->writer, job->first_extra + i, job->e->extras[i].data, diag);
    if (rc == 0)
        rc = shore__st_writer_finish(job->writer, diag);
    else if (job->writer)
        shore__st_writer_abort(job->writer);
    return rc;
}

int shore__export_masters(const struct shore__exporting *e, shore__put_fn put, void *ctx, struct shore_diag *diag) {
    struct job job = {.e = e, .put = put, .put_ctx = ctx};
    int rc = alloc_buffers(&job, diag);
    if (rc == 0) choose(&job, SHORE_FETCH_MASTER);
    if (rc == 0) rc = put_blocks(&job, true, diag);
    if (rc == 0) rc = put_blocks(&job, false, diag);
    free_buffers(&job);
    return rc;
}

/* ---- moments ----------------------------------------------------------------------------------------------------- */

static const struct {
    enum shore_plane plane;
    enum shore_fetch_kind kind;
} moments[] = {{SHORE_PLANE_M, SHORE_FETCH_M}, {SHORE_PLANE_V, SHORE_FETCH_V}};
enum { MOMENTS = sizeof moments / sizeof moments[0] };

/* Name of moment i. NULL: moments are not asked for, or the state has none. */
static const char *moment_name(const struct job *job, int i) {
    const struct shore__drive_config *config = &job->e->fleet->config;
    bool has = job->e->moments && config->plane_bytes[moments[i].plane];
    return has ? shore__moment_name(config->optimizer, moments[i].plane) : NULL;
}

static int make_directory(const char *path, struct shore_diag *diag) {
    return mkdir(path, 0777) < 0
               ? shore__fail(diag, -errno, "%s: the directory cannot be made: %s", path,
                             errno == ENOENT ? "the one that is to hold it does not exist" : strerror(errno))
               : 0;
}

static int write_moment(struct job *job, int i, const char *directory, struct shore_diag *diag) {
    const struct shore__path path = shore__moments_path(directory, moment_name(job, i));
    int rc = make_directory(path.text, diag);
    choose(job, moments[i].kind);
    if (rc == 0) rc = write_tensors(job, path.text, diag);
    return rc ? rc : shore__directory_sync(path.text, diag);
}

static int write_moments(struct job *job, const char *directory, struct shore_diag *diag) {
    int rc = make_directory(shore__path_in(directory, SHORE__MOMENTS_DIRECTORY).text, diag);
    for (int i = 0; i < MOMENTS && rc == 0; i++)
        if (moment_name(job, i)) rc = write_moment(job, i, directory, diag);
    return rc ? rc : shore__moments_describe(directory, job->e->fleet->config.optimizer, job->e->updates, diag);
}

static int name_weights(const char *directory, const char *name, struct shore_diag *diag) {
    const struct shore__path from = shore__path_in(directory, "model.safetensors"),
                             to = shore__path_in(directory, name);
    return rename(from.text, to.text) < 0 ? shore__fail_errno(diag, to.text, "cannot be named") : 0;
}

static int write_all(struct job *job, const char *directory, struct shore_diag *diag) {
    int rc = alloc_buffers(job, diag);
    for (int i = 0; i < MOMENTS && rc == 0; i++) {
        choose(job, moments[i].kind);
        if (moment_name(job, i)) rc = put_blocks(job, true, diag);
    }
    if (rc == 0) choose(job, SHORE_FETCH_MASTER);
    if (rc == 0) rc = put_blocks(job, true, diag);
    if (rc == 0 && job->e->describe) rc = job->e->describe(job->e->describe_ctx, directory, diag);
    if (rc == 0) rc = write_tensors(job, directory, diag);
    if (rc == 0 && job->e->file) rc = name_weights(directory, job->e->file, diag);
    if (rc == 0 && job->e->moments) rc = write_moments(job, directory, diag);
    free_buffers(job);
    return rc;
}

static const char *const exported[] = {"config.json",
                                       SHORE__ADAPTER_CONFIG,
                                       SHORE__ADAPTER_WEIGHTS,
                                       "model*.safetensors",
                                       "model.safetensors.index.json",
                                       ".*.partial",
                                       SHORE__TOKENIZER_FILES,
                                       ".nfs*",
                                       SHORE__MOMENTS_DIRECTORY,
                                       SHORE__MOMENTS_FILE,
                                       NULL};

/* Removes the directory and its files, whichever optimizer's moments these are. */
static void remove_export(const char *partial) {
    for (enum shore_optimizer optimizer = SHORE_ADAMW; optimizer < SHORE_OPTIMIZER_COUNT; optimizer++)
        for (int i = 0; i < MOMENTS; i++) {
            const char *name = shore__moment_name(optimizer, moments[i].plane);
            if (name) shore__directory_remove(shore__moments_path(partial, name).text, exported);
        }
    shore__directory_remove(shore__path_in(partial, SHORE__MOMENTS_DIRECTORY).text, exported);
    shore__directory_remove(partial, exported);
}

static int refuse_strangers(const char *partial, struct shore_diag *diag) {
    struct stat st;
    char *stranger = lstat(partial, &st) < 0 ? NULL
                     : S_ISDIR(st.st_mode)   ? shore__directory_stranger(partial, exported)
                                             : strdup(partial);
    if (!stranger) return 0;
    int rc =
        shore__fail(diag, SHORE_EEXISTS,
                    "%s: is in the way: the export writes its files to %s first; move it, or choose another directory",
                    stranger, partial);
    free(stranger);
    return rc;
}

/* Refuses a target that the rename at the end of the export could not replace. */
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

int shore__export_contents(const struct shore__exporting *e, const char *directory, struct shore_diag *diag) {
    struct job job = {.e = e};
    char *target = realpath(directory, NULL), *partial = NULL;
    if (!target) target = strdup(directory);
    for (size_t n = target ? strlen(target) : 0; n > 1 && target[n - 1] == '/'; n--)
        target[n - 1] = '\0';
    if (!target || asprintf(&partial, "%s.partial", target) < 0) {
        free(target);
        return shore__out_of_memory(diag);
    }
    int rc = refuse_what_is_there(target, diag);
    if (rc == 0) rc = refuse_strangers(partial, diag);
    if (rc == 0) {
        remove_export(partial); /* of a killed export */
        rc = make_directory(partial, diag);
        if (rc == 0) rc = write_all(&job, partial, diag);
        if (rc == 0) rc = shore__directory_sync(partial, diag);
        if (rc == 0 && rename(partial, target) < 0) rc = shore__fail_errno(diag, target, "cannot be moved into place");
        if (rc == 0) rc = shore__parent_sync(target, diag);
        if (rc < 0) remove_export(partial);
    }
    free(partial);
    free(target);
    return rc;
}
