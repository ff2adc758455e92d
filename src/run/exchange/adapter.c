#include "run/exchange/adapter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "files/atomic.h"
#include "files/hub.h"
#include "files/json.h"
#include "model/families/families.h"
#include "run/exchange/adapter_config.h"
#include "run/run.h"

enum { CONFIG_BYTES_MOST = 16 << 20, ROWS_AT_ONCE = 64, DORA_ELEMS_AT_ONCE = 1 << 20 };

/* What the adapter has for a tensor of the model. The canonical update is left times right. */
struct target {
    const struct shore__st_tensor *a, *b, *magnitude; /* [rank, in], [out, rank], [out]; NULL: none */
    const struct shore__st_tensor *instead;
    bool embedding;
    bool inputs_first; /* canonical rows are inputs: left is A, transposed, and right is B, transposed */
    uint64_t rank, rows, cols;
    float scale;
};

struct shore__adapter {
    struct shore__safetensors *files;
    const struct shore__contents *contents;
    shore__base_fn base;
    void *base_ctx;
    struct target *targets; /* one for each of contents->shapes */
    uint32_t held;          /* whose right and factors are in memory; nshapes: none */
    float *right, *left, *sum;
    float *factors; /* DoRA: of each output; NULL: none */
};

/* ---- tensors and the weights that they are for ------------------------------------------------------------------- */

static bool is_name(const char *name, const char *of, bool newer) {
    return strcmp(name, newer ? shore__newer_name(of).text : of) == 0;
}

/* The number of the model's tensor of this name, or of the one that is tied to it; nshapes: there is none. PEFT has the
 * text of a multimodal model where transformers has it, whatever the model's files say. */
static uint32_t shape_of(const struct shore__contents *c, const char *name, bool *tied) {
    for (int newer = 0; newer < 2; newer++)
        for (uint32_t i = 0; i < c->nshapes; i++) {
            bool same = is_name(name, c->shapes[i].name, newer);
            *tied = c->shapes[i].ntied > 0;
            for (uint32_t k = 0; k < c->shapes[i].ntied; k++)
                same |= is_name(name, c->shapes[i].tied[k], newer);
            if (same) return i;
        }
    return c->nshapes;
}

/* Takes an end and what follows the model's name from a name. Returns false if the name has no such end. */
static bool cut(char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    if (n == m || !shore__ends_with(name, end)) return false;
    name[n - m] = 0;
    return true;
}

/* Files a tensor under the weight that it is for. */
static int place(struct shore__adapter *a, const struct shore__st_tensor *t, struct shore_diag *diag) {
    static const char prefix[] = SHORE__PEFT_PREFIX;
    static const char *const ends[] = {SHORE__PEFT_A, SHORE__PEFT_B, ".lora_magnitude_vector", ".lora_embedding_A",
                                       ".lora_embedding_B"};
    enum { MAGNITUDE = 2, EMBEDDING = 3, INSTEAD = 5 };
    char name[512];
    bool tied = false;
    int kind = 0;
    if (strncmp(t->name, prefix, sizeof prefix - 1) != 0 || strlen(t->name) + 16 > sizeof name)
        return shore__st_refuse(a->files, t, diag, "is not named as PEFT names tensors (%s...)", prefix);
    snprintf(name, sizeof name, "%s", t->name + sizeof prefix - 1);
    while (kind < INSTEAD && !cut(name, ends[kind]))
        kind++;
    bool around = kind < INSTEAD;
    char *layer = strstr(name, ".base_layer.");
    if (around) strcat(name, ".weight");
    if (!around && layer) memmove(layer, layer + 11, strlen(layer + 11) + 1);
    uint32_t shape = shape_of(a->contents, name, &tied);
    if (shape == a->contents->nshapes)
        return shore__st_refuse(a->files, t, diag,
                                "is for %s, which the model does not have, or which Longshore does not merge",
                                shore__shown(name).text);
    if (t->type != SHORE__ST_F32 && t->type != SHORE__ST_BF16 && t->type != SHORE__ST_F16)
        return shore__st_refuse(a->files, t, diag,
                                "has a type that Longshore does not read: it reads F32, BF16 and F16");
    if (tied)
        return shore__st_refuse(
            a->files, t, diag,
            "changes the embedding or the head, which are one tensor in this model: merged into one, it would "
            "change the other, too");
    struct target *target = &a->targets[shape];
    const struct shore__st_tensor **slots[] = {&target->a, &target->b, &target->magnitude,
                                               &target->a, &target->b, &target->instead};
    if (*slots[kind]) return shore__st_refuse(a->files, t, diag, "stands beside another one for the same weight");
    *slots[kind] = t;
    target->embedding |= kind >= EMBEDDING && kind < INSTEAD;
    return 0;
}

/* PEFT wraps a module that has an update: its own tensors then lie in a base_layer. */
static int check_instead(const struct shore__adapter *a, const struct target *t, const char *name,
                         struct shore_diag *diag) {
    char module[512];
    bool tied, wrapped = t->a;
    if (!t->instead) return 0;
    snprintf(module, sizeof module, "%s", name);
    if (cut(module, ".bias")) {
        uint32_t weight = shape_of(a->contents, strcat(module, ".weight"), &tied);
        wrapped = weight < a->contents->nshapes && a->targets[weight].a;
    }
    if (wrapped == (strstr(t->instead->name, ".base_layer.") != NULL)) return 0;
    return shore__st_refuse(a->files, t->instead, diag, "is for a module that %s by the adapter: PEFT would ignore it",
                            wrapped ? "is wrapped" : "is not wrapped");
}

static bool has_shape(const struct shore__st_tensor *t, uint32_t rank, uint64_t rows, uint64_t cols) {
    return t->rank == rank && t->shape[0] == rows && (rank < 2 || t->shape[1] == cols);
}

/* Completes what the adapter has for a tensor, and checks that it fits. */
static int fit(struct shore__adapter *a, uint32_t number, const struct shore__adapter_config *config,
               const char *model_type, struct shore_diag *diag) {
    const struct shore_shape *shape = &a->contents->shapes[number];
    struct target *t = &a->targets[number];
    char module[512];
    int rc = check_instead(a, t, shape->name, diag);
    if (rc || (!t->a && !t->b && !t->magnitude && !t->instead)) return rc;
    if (t->instead && (t->instead->rank != shape->rank ||
                       memcmp(t->instead->shape, shape->dims, shape->rank * sizeof *shape->dims) != 0))
        return shore__st_refuse(a->files, t->instead, diag, "has the shape %s, but that of the model has %s",
                                shore__shape_text(t->instead->rank, t->instead->shape).text,
                                shore__shape_text(shape->rank, shape->dims).text);
    if (!t->a && !t->b && !t->magnitude) return 0;
    if (!t->a || !t->b)
        return shore__st_refuse(a->files,
                                t->a   ? t->a
                                : t->b ? t->b
                                       : t->magnitude,
                                diag, "stands without its other half");
    /* so has an embedding */
    bool inputs_first =
        t->embedding || (shore__family_of(model_type)->inputs_first && strcmp(shape->name, "lm_head.weight") != 0);
    uint64_t in = shape->dims[!inputs_first], out = shape->dims[inputs_first];
    if (shape->rank != 2 || t->a->rank != 2 || !has_shape(t->a, 2, t->a->shape[0], in) ||
        !has_shape(t->b, 2, out, t->a->shape[0]))
        return shore__st_refuse(
            a->files, t->a, diag, "has the shape %s, and its other half %s, which do not fit the weight's %s",
            shore__shape_text(t->a->rank, t->a->shape).text, shore__shape_text(t->b->rank, t->b->shape).text,
            shore__shape_text(shape->rank, shape->dims).text);
    if (config->dora != (t->magnitude != NULL) || (t->magnitude && !has_shape(t->magnitude, 1, out, 0)))
        return shore__st_refuse(a->files, t->magnitude ? t->magnitude : t->a, diag, "does not go with \"use_dora\": %s",
                                !t->magnitude  ? "there is no lora_magnitude_vector beside it"
                                : config->dora ? "it has not one number for each output"
                                               : "that is false");
    t->rank = t->a->shape[0];
    t->inputs_first = inputs_first != shape->transposed;
    t->rows = t->inputs_first ? in : out;
    t->cols = t->inputs_first ? out : in;
    /* as the model that it was saved from has it, which is what its configuration speaks of */
    snprintf(module, sizeof module, "%s", t->a->name + strlen(SHORE__PEFT_PREFIX));
    cut(module, t->embedding ? ".lora_embedding_A" : SHORE__PEFT_A);
    return shore__adapter_config_scale(config, module, t->rank, &t->scale, diag);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static int open_files(const char *directory, struct shore__safetensors **files, json_t **config,
                      struct shore_diag *diag) {
    struct stat st;
    const struct shore__shown shown = shore__shown(directory);
    int rc = stat(directory, &st) ? shore__hub_refuse("adapter", directory, SHORE__HUB_MODEL, diag) : 0;
    if (rc) return rc;
    if (!shore__path_exists(directory, SHORE__ADAPTER_CONFIG))
        return shore__fail(diag, SHORE_EMISSING, "%s: is not an adapter's directory: it has no " SHORE__ADAPTER_CONFIG,
                           shown.text);
    if (!shore__path_exists(directory, SHORE__ADAPTER_WEIGHTS) && shore__path_exists(directory, "adapter_model.bin"))
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: has adapter_model.bin, a pickle, which could run code: load the adapter in Python with "
                           "peft and save it again (save_pretrained), which writes " SHORE__ADAPTER_WEIGHTS,
                           shown.text);
    rc = shore__json_read(shore__path_in(directory, SHORE__ADAPTER_CONFIG).text, CONFIG_BYTES_MOST, config, diag);
    if (rc == 0) rc = shore__safetensors_open_file(directory, SHORE__ADAPTER_WEIGHTS, files, diag);
    if (rc || (*files)->ntensors) return rc;
    return shore__fail(diag, SHORE_EINPUT,
                       "%s: holds no tensors, so that there is nothing to merge: save the adapter again",
                       shore__path_in(directory, SHORE__ADAPTER_WEIGHTS).text);
}

int shore__adapter_open(const char *directory, const struct shore__contents *contents, const char *model_type,
                        shore__base_fn base, void *ctx, struct shore__adapter **out, struct shore_diag *diag) {
    struct shore__adapter *a = calloc(1, sizeof *a);
    struct shore__adapter_config config;
    json_t *said = NULL;
    uint64_t right = 0, cols = 0, rank = 0, outs = 0;
    if (a) *a = (struct shore__adapter){.contents = contents, .base = base, .base_ctx = ctx, .held = contents->nshapes};
    if (a) a->targets = calloc(contents->nshapes + 1u, sizeof *a->targets);
    int rc = a && a->targets ? open_files(directory, &a->files, &said, diag) : shore__out_of_memory(diag);
    const struct shore__path path = shore__path_in(directory, SHORE__ADAPTER_CONFIG);
    if (rc == 0) rc = shore__adapter_config_take(said, path.text, &config, diag);
    for (uint32_t i = 0; rc == 0 && i < a->files->ntensors; i++)
        rc = place(a, &a->files->tensors[i], diag);
    for (uint32_t i = 0; rc == 0 && i < contents->nshapes; i++) {
        const struct target *t = &a->targets[i];
        rc = fit(a, i, &config, model_type, diag);
        if (t->rank * t->cols > right) right = t->rank * t->cols;
        if (t->cols > cols) cols = t->cols;
        if (t->rank > rank) rank = t->rank;
        if (t->magnitude && t->magnitude->elems > outs) outs = t->magnitude->elems;
    }
    json_decref(said);
    if (rc == 0) {
        a->right = calloc(right + 1, sizeof *a->right);
        a->left = calloc(ROWS_AT_ONCE * rank + 1, sizeof *a->left);
        a->sum = calloc(cols + 1, sizeof *a->sum);
        a->factors = config.dora ? calloc(outs + 1, sizeof *a->factors) : NULL;
        if (!a->right || !a->left || !a->sum || (config.dora && !a->factors)) rc = shore__out_of_memory(diag);
    }
    if (rc)
        shore__adapter_close(a);
    else
        *out = a;
    return rc;
}

void shore__adapter_close(struct shore__adapter *a) {
    if (!a) return;
    shore__safetensors_close(a->files);
    free(a->targets);
    free(a->right);
    free(a->left);
    free(a->sum);
    free(a->factors);
    free(a);
}

const struct shore__st_tensor *shore__adapter_instead(const struct shore__adapter *a, uint32_t shape,
                                                      const struct shore__safetensors **files) {
    const struct shore__st_tensor *t = a ? a->targets[shape].instead : NULL;
    if (t) *files = a->files;
    return t;
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

static void add_row(const struct shore__adapter *a, const struct target *t, const float *left, uint64_t col, uint64_t n,
                    float *values) {
    memset(a->sum, 0, n * sizeof *a->sum);
    for (uint64_t k = 0; k < t->rank; k++) {
        const float x = left[k], *right = a->right + k * t->cols + col;
        for (uint64_t i = 0; i < n; i++)
            a->sum[i] += x * right[i];
    }
    for (uint64_t i = 0; i < n; i++)
        values[i] += t->scale * a->sum[i];
}

/* Adds the update to canonical elements. */
static int add(const struct shore__adapter *a, const struct target *t, uint64_t first, uint64_t count, float *values,
               struct shore_diag *diag) {
    for (uint64_t end = first + count; first < end;) {
        uint64_t row = first / t->cols, rows = (end - 1) / t->cols + 1 - row;
        if (rows > ROWS_AT_ONCE) rows = ROWS_AT_ONCE;
        int rc = t->inputs_first
                     ? shore__safetensors_read_transposed(a->files, t->a, row, rows, a->left, diag)
                     : shore__safetensors_read(a->files, t->b, row * t->rank, rows * t->rank, a->left, diag);
        if (rc) return rc;
        for (uint64_t r = 0; r < rows; r++) {
            uint64_t col = first % t->cols, n = end - first < t->cols - col ? end - first : t->cols - col;
            add_row(a, t, a->left + r * t->rank, col, n, values);
            first += n;
            values += n;
        }
    }
    return 0;
}

/* The output that a canonical element is for. */
static uint64_t output_of(const struct target *t, uint64_t element) {
    return t->inputs_first ? element % t->cols : element / t->cols;
}

/* DoRA's factor of each output: its magnitude, divided by the norm of its weights with the update. */
static int find_factors(struct shore__adapter *a, uint32_t number, struct shore_diag *diag) {
    const struct target *t = &a->targets[number];
    uint64_t outs = t->magnitude->elems, elems = t->rows * t->cols;
    uint64_t at_once = (t->cols < DORA_ELEMS_AT_ONCE ? DORA_ELEMS_AT_ONCE / t->cols : 1) * t->cols;
    float *values = malloc(at_once * sizeof *values);
    double *squares = calloc(outs, sizeof *squares);
    int rc = values && squares ? 0 : shore__out_of_memory(diag);
    for (uint64_t first = 0, n; rc == 0 && first < elems; first += n) {
        n = elems - first < at_once ? elems - first : at_once;
        rc = a->base(a->base_ctx, number, first, n, values, diag);
        if (rc == 0) rc = add(a, t, first, n, values, diag);
        for (uint64_t i = 0; rc == 0 && i < n; i++)
            squares[output_of(t, first + i)] += (double)values[i] * values[i];
    }
    if (rc == 0) rc = shore__safetensors_read(a->files, t->magnitude, 0, outs, a->factors, diag);
    for (uint64_t i = 0; rc == 0 && i < outs; i++)
        a->factors[i] /= (float)sqrt(squares[i]);
    free(values);
    free(squares);
    return rc;
}

static int hold(struct shore__adapter *a, uint32_t number, struct shore_diag *diag) {
    const struct target *t = &a->targets[number];
    if (a->held == number) return 0;
    a->held = a->contents->nshapes;
    int rc = t->inputs_first ? shore__safetensors_read_transposed(a->files, t->b, 0, t->rank, a->right, diag)
                             : shore__safetensors_read(a->files, t->a, 0, t->a->elems, a->right, diag);
    if (rc == 0 && t->magnitude) rc = find_factors(a, number, diag);
    if (rc == 0) a->held = number;
    return rc;
}

int shore__adapter_merge(struct shore__adapter *a, uint32_t shape, uint64_t first, uint64_t count, float *values,
                         struct shore_diag *diag) {
    const struct target *t = a ? &a->targets[shape] : NULL;
    if (!t || !t->a) return 0;
    int rc = hold(a, shape, diag);
    if (rc == 0) rc = add(a, t, first, count, values, diag);
    for (uint64_t i = 0; rc == 0 && t->magnitude && i < count; i++)
        values[i] *= a->factors[output_of(t, first + i)];
    return rc;
}
