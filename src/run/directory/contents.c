#include "run/contents.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "drive/layout.h"
#include "files/json.h"
#include "files/json_stream.h"
#include "model/adapters.h"

static void free_shape(struct shore_shape *s) {
    for (uint32_t i = 0; s->tied && i < s->ntied; i++)
        free((char *)(uintptr_t)s->tied[i]);
    free((void *)(uintptr_t)s->tied);
    free((char *)(uintptr_t)s->name);
}

void shore__contents_free(struct shore__contents *c) {
    if (!c) return;
    for (uint32_t i = 0; c->shapes && i < c->nshapes; i++)
        free_shape(&c->shapes[i]);
    free(c->shapes);
    shore_layout_free(c->layout);
    json_decref(c->program);
    free(c->program_text);
    free(c);
}

static int alloc(const struct shore_layout *layout, uint32_t nshapes, struct shore__contents **out,
                 struct shore_diag *diag) {
    struct shore__contents *c = calloc(1, sizeof *c);
    if (c) c->shapes = calloc(nshapes + 1u, sizeof *c->shapes);
    if (!c || !c->shapes || shore__layout_copy(layout, &c->layout)) {
        shore__contents_free(c);
        return shore__out_of_memory(diag);
    }
    *out = c;
    return 0;
}

/* Adds the next shape, and copies its names. */
static int add(struct shore__contents *c, const struct shore_shape *s, struct shore_diag *diag) {
    struct shore_shape *own = &c->shapes[c->nshapes++];
    const char **tied = calloc(s->ntied + 1u, sizeof *tied);
    *own = *s;
    own->tied = tied;
    own->name = strdup(s->name);
    bool whole = tied && own->name;
    for (uint32_t i = 0; whole && i < s->ntied; i++)
        whole = (tied[i] = strdup(s->tied[i])) != NULL;
    return whole ? 0 : shore__out_of_memory(diag);
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static bool is_name(const char *name) {
    return name && *name && shore__json_holds(name);
}

static int check_shape(const struct shore_shape *s, const struct shore_layout_tensor *lies, uint32_t number,
                       struct shore_diag *diag) {
    uint64_t elems = 1;
    bool fits = s->rank <= SHORE_RANK_MOST, named = is_name(s->name);
    for (uint32_t i = 0; named && i < s->ntied; i++)
        named = s->tied && is_name(s->tied[i]);
    if (!named)
        return shore__fail(diag, SHORE_EINPUT, "tensor number %" PRIu32 ": one of its names is empty, or is not UTF-8",
                           number);
    const struct shore__shown name = shore__shown(s->name);
    if (!fits)
        return shore__fail(diag, SHORE_EINPUT, "the tensor %s has rank %" PRIu32 ", and the largest rank is %u",
                           name.text, s->rank, SHORE_RANK_MOST);
    if (strcmp(s->name, lies->name) != 0)
        return shore__fail(diag, SHORE_EINPUT,
                           "the tensor %s is called %s in the layout: give shapes in the layout's order", name.text,
                           shore__shown(lies->name).text);
    if (s->dtype != SHORE_DTYPE_FP32 && s->dtype != SHORE_DTYPE_BF16 && s->dtype != SHORE_DTYPE_FP16)
        return shore__fail(diag, SHORE_EINPUT, "the tensor %s has another dtype than fp32, bf16 or fp16", name.text);
    for (uint32_t i = 0; fits && i < s->rank; i++)
        fits = !__builtin_mul_overflow(elems, s->dims[i], &elems);
    if (fits && elems == lies->elems) return 0;
    return shore__fail(diag, SHORE_EINPUT, "the tensor %s has the shape %s, but %" PRIu64 " elements in the layout",
                       name.text, shore__shape_text(s->rank, s->dims).text, lies->elems);
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const struct shore__contents *c, struct shore_diag *diag) {
    size_t count = 0, n = 0;
    int rc = 0;
    for (uint32_t i = 0; i < c->nshapes; i++)
        count += 1u + c->shapes[i].ntied;
    const char **names = calloc(count + 1, sizeof *names);
    if (!names) return shore__out_of_memory(diag);
    for (uint32_t i = 0; i < c->nshapes; i++) {
        names[n++] = c->shapes[i].name;
        for (uint32_t k = 0; k < c->shapes[i].ntied; k++)
            names[n++] = c->shapes[i].tied[k];
    }
    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 1; rc == 0 && i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            rc = shore__fail(diag, SHORE_EINPUT, "two tensors are called %s", shore__shown(names[i]).text);
    free(names);
    return rc;
}

static int fill(struct shore__contents *c, const struct shore_shape *shapes, uint32_t nshapes,
                struct shore_diag *diag) {
    uint32_t n = 0, tensors = 0;
    int rc = 0;
    for (uint32_t b = 0; b < c->layout->nblocks; b++)
        tensors += c->layout->blocks[b].ntensors;
    if (tensors != nshapes)
        return shore__fail(diag, SHORE_EINPUT,
                           "the layout has %" PRIu32 " tensors, but the number of shapes is %" PRIu32, tensors,
                           nshapes);
    for (uint32_t b = 0; b < c->layout->nblocks; b++)
        for (uint32_t t = 0; rc == 0 && t < c->layout->blocks[b].ntensors; t++, n++) {
            const struct shore_layout_tensor *lies = &c->layout->blocks[b].tensors[t];
            struct shore_shape s = shapes[n];
            rc = check_shape(&s, lies, n, diag);
            if (rc) break;
            s.block = b;
            s.tensor = t;
            s.offset_elems = lies->offset_elems;
            s.transposed = false;
            rc = add(c, &s, diag);
        }
    return rc ? rc : check_names(c, diag);
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

const char *shore__contents_maker(const struct shore__contents *c) {
    return json_string_value(json_object_get(c->program, "name"));
}

bool shore__contents_of_package(const struct shore__contents *c) {
    return c && strcmp(shore__contents_maker(c), "longshore.torch") == 0;
}

bool shore__contents_of_process(const struct shore__contents *c) {
    const char *of = json_string_value(json_object_get(json_object_get(c->program, "engine"), "memory_of"));
    return of && strcmp(of, "process") == 0;
}

/* Refuses a number that the JSON tree cannot keep: its integers are signed 64-bit ones, and a larger integer would
 * become a real number, which is another number. */
static int keeps_number(void *ctx, const struct shore__json_event *e, struct shore_diag *diag) {
    if (e->kind != SHORE__JSON_NUMBER) return 0;
    json_t *kept = json_loadb(e->text, e->bytes, JSON_DECODE_ANY, NULL);
    json_decref(kept);
    return kept ? 0
                : shore__fail(diag, SHORE_EINPUT, "%s: the number %.*s does not fit into 64 bits; write it as text",
                              (const char *)ctx, (int)(e->bytes < 64 ? e->bytes : 64), e->text);
}

int shore__contents_take_program(struct shore__contents *c, const char *text, struct shore_diag *diag) {
    json_t *program = NULL;
    size_t bytes = text ? strlen(text) : 0;
    if (bytes > SHORE_PROGRAM_BYTES)
        return shore__fail(diag, SHORE_EINPUT, "the program's JSON has %zu bytes, and at most %u are allowed", bytes,
                           SHORE_PROGRAM_BYTES);
    char whose[] = "the program's JSON";
    int rc = text ? shore__json_parse(text, bytes, whose, &program, diag) : 0;
    if (rc == 0 && text) rc = shore__json_stream_text(text, bytes, whose, 1, keeps_number, whose, diag);
    const char *name = json_string_value(json_object_get(program, "name"));
    if (rc == 0 && !(name && *name))
        rc = shore__fail(diag, SHORE_EINPUT, "the program's JSON has no \"name\", which says whose run it is");
    char *own = rc == 0 ? json_dumps(program, JSON_COMPACT) : NULL;
    if (rc == 0 && !own) rc = shore__out_of_memory(diag);
    if (rc < 0) {
        json_decref(program);
        return rc;
    }
    json_decref(c->program);
    free(c->program_text);
    c->program = program;
    c->program_text = own;
    return 0;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

int shore__contents_make(const struct shore_layout *layout, const struct shore_shape *shapes, uint32_t nshapes,
                         const char *program, struct shore__contents **out, struct shore_diag *diag) {
    struct shore__contents *c = NULL;
    int rc = alloc(layout, nshapes, &c, diag);
    if (rc == 0) rc = fill(c, shapes, nshapes, diag);
    if (rc == 0) rc = shore__contents_take_program(c, program, diag);
    if (rc < 0)
        shore__contents_free(c);
    else
        *out = c;
    return rc;
}

static bool has_part(const struct shore__model *m, enum shore__model_part part, uint32_t block) {
    return part == SHORE__WHOLE_MODEL || shore__block_adapts(m, block) == (part == SHORE__ADAPTERS_ALONE);
}

int shore__contents_of_model(const struct shore__model *m, enum shore__model_part part, bool fp32,
                             struct shore__contents **out, struct shore_diag *diag) {
    static const char *const head[] = {"lm_head.weight"}; /* of all architectures */
    struct shore__contents *c = NULL;
    uint32_t parts = 0;
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; has_part(m, part, b) && t < m->blocks[b].ntensors; t++)
            parts += m->blocks[b].tensors[t].nparts;
    int rc = alloc(m->layout, parts, &c, diag);
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; has_part(m, part, b) && t < m->blocks[b].ntensors; t++)
            for (uint32_t i = 0; rc == 0 && i < m->blocks[b].tensors[t].nparts; i++) {
                const struct shore__model_tensor *tensor = &m->blocks[b].tensors[t];
                const struct shore__part *p = &tensor->parts[i];
                const uint64_t rows = p->rows, cols = tensor->matrix ? tensor->cols : 0;
                struct shore_shape s = {
                    .name = p->name,
                    .rank = tensor->matrix ? 2 : 1,
                    .dims = {p->transposed ? cols : rows, p->transposed ? rows : cols},
                    .dtype = fp32 ? SHORE_DTYPE_FP32 : SHORE_DTYPE_BF16,
                    .tied = head,
                    .ntied = m->arch.tied && tensor->role == SHORE__TOKEN_TABLE,
                    .block = b,
                    .tensor = t,
                    .offset_elems = m->layout->blocks[b].tensors[t].offset_elems + p->row * tensor->cols,
                    .transposed = p->transposed,
                    .nslices = p->nslices,
                    .slice = p->slice,
                };
                rc = add(c, &s, diag);
            }
    if (rc < 0)
        shore__contents_free(c);
    else
        *out = c;
    return rc;
}

uint64_t shore__contents_widest_row(const struct shore__contents *c) {
    uint64_t widest = 1;
    for (uint32_t i = 0; i < c->nshapes; i++)
        if (c->shapes[i].transposed && c->shapes[i].dims[0] > widest) widest = c->shapes[i].dims[0];
    return widest;
}
