/* Reads and writes the tensors of a run as run.json has them. */
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "run/contents.h"
#include "run/strings.h"

static const char *const dtypes[] = {
    [SHORE_DTYPE_FP32] = "fp32",
    [SHORE_DTYPE_BF16] = "bf16",
    [SHORE_DTYPE_FP16] = "fp16",
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static json_t *tensor_json(const struct shore_shape *s, uint32_t group) {
    json_t *dims = json_array();
    for (uint32_t i = 0; i < s->rank; i++)
        json_array_append_new(dims, json_integer((json_int_t)s->dims[i]));
    json_t *j = json_pack("{s:s, s:o, s:s, s:I}", "name", s->name, "shape", dims, "dtype", dtypes[s->dtype], "group",
                          (json_int_t)group);
    if (j && s->ntied) json_object_set_new(j, "tied", shore__texts_to_json(s->tied, s->ntied));
    return j;
}

json_t *shore__contents_to_json(const struct shore__contents *c) {
    json_t *blocks = json_array();
    const struct shore_shape *s = c->shapes;
    bool whole = blocks != NULL;
    for (uint32_t b = 0; b < c->layout->nblocks; b++) {
        const struct shore_layout_block *block = &c->layout->blocks[b];
        json_t *tensors = json_array();
        for (uint32_t t = 0; t < block->ntensors; t++)
            whole &= json_array_append_new(tensors, tensor_json(s++, block->tensors[t].group)) == 0;
        whole &= json_array_append_new(blocks, json_pack("{s:s, s:o}", "name", block->name, "tensors", tensors)) == 0;
    }
    if (whole) return blocks;
    json_decref(blocks);
    return NULL;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* What is read, in flat arrays. */
struct reading {
    struct shore_block_spec *blocks;
    struct shore_tensor_spec *specs;
    struct shore_shape *shapes;
    uint32_t nshapes;
};

static void free_reading(struct reading *r) {
    for (uint32_t i = 0; r->shapes && i < r->nshapes; i++)
        free((void *)(uintptr_t)r->shapes[i].tied);
    free(r->blocks);
    free(r->specs);
    free(r->shapes);
}

static bool read_tied(const json_t *j, struct shore_shape *s) {
    const char **tied = calloc(json_array_size(j) + 1, sizeof *tied);
    const json_t *item = NULL;
    size_t i = 0;
    s->tied = tied;
    s->ntied = (uint32_t)json_array_size(j);
    json_array_foreach((json_t *)(uintptr_t)j, i, item) {
        if (!tied || !(tied[i] = json_string_value(item))) return false;
    }
    return tied && (!j || json_is_array(j));
}

static bool read_tensor(const json_t *j, struct shore_tensor_spec *spec, struct shore_shape *s) {
    const json_t *dims = json_object_get(j, "shape"), *item = NULL, *group = json_object_get(j, "group");
    const char *dtype = json_string_value(json_object_get(j, "dtype"));
    size_t i = 0;
    uint64_t elems = 1;
    bool good = json_is_array(dims) && json_array_size(dims) <= SHORE_RANK_MOST && json_is_integer(group) &&
                json_integer_value(group) >= 0 && json_integer_value(group) <= UINT32_MAX && dtype &&
                (s->name = json_string_value(json_object_get(j, "name")));
    s->rank = (uint32_t)json_array_size(dims);
    json_array_foreach((json_t *)(uintptr_t)dims, i, item) {
        good = good && json_is_integer(item) && json_integer_value(item) > 0;
        if (good) s->dims[i] = (uint64_t)json_integer_value(item);
        good = good && !__builtin_mul_overflow(elems, s->dims[i], &elems);
    }
    int known = 0;
    while (good && known < DTYPES && strcmp(dtypes[known], dtype) != 0)
        known++;
    s->dtype = (enum shore_dtype)known;
    *spec = (struct shore_tensor_spec){s->name, elems, (uint32_t)json_integer_value(group)};
    return good && known < DTYPES && read_tied(json_object_get(j, "tied"), s);
}

static bool read_blocks(const json_t *blocks, struct reading *r) {
    const json_t *block = NULL, *tensor = NULL;
    size_t b = 0, t = 0, count = 0;
    json_array_foreach((json_t *)(uintptr_t)blocks, b, block) {
        count += json_array_size(json_object_get(block, "tensors"));
    }
    r->blocks = calloc(json_array_size(blocks) + 1, sizeof *r->blocks);
    r->specs = calloc(count + 1, sizeof *r->specs);
    r->shapes = calloc(count + 1, sizeof *r->shapes);
    if (!r->blocks || !r->specs || !r->shapes) return false;
    json_array_foreach((json_t *)(uintptr_t)blocks, b, block) {
        const json_t *tensors = json_object_get(block, "tensors");
        r->blocks[b] = (struct shore_block_spec){json_string_value(json_object_get(block, "name")),
                                                 r->specs + r->nshapes, (uint32_t)json_array_size(tensors)};
        if (!r->blocks[b].name) return false;
        json_array_foreach((json_t *)(uintptr_t)tensors, t, tensor) {
            uint32_t n = r->nshapes++;
            if (!read_tensor(tensor, &r->specs[n], &r->shapes[n])) return false;
        }
    }
    return true;
}

int shore__contents_from_json(const json_t *blocks, const json_t *program, const char *name,
                              struct shore__contents **out, struct shore_diag *diag) {
    struct reading r = {0};
    struct shore_layout *layout = NULL;
    struct shore_diag why = {0};
    char *text = program ? json_dumps(program, JSON_COMPACT) : NULL;
    int rc = read_blocks(blocks, &r) ? 0 : SHORE_EINPUT;
    if (rc == 0) rc = shore_layout_make(r.blocks, (uint32_t)json_array_size(blocks), &layout);
    if (rc == 0) rc = shore__contents_make(layout, r.shapes, r.nshapes, text, out, &why);
    shore_layout_free(layout);
    free_reading(&r);
    free(text);
    if (rc == SHORE_EINPUT)
        return shore__fail(diag, rc, "%s: its \"blocks\" or \"program\" have been changed by hand%s%s; put them back",
                           name, why.text[0] ? ": " : "", why.text);
    return rc ? shore__fail(diag, rc, "%s: its tensors cannot be described: %s", name, shore_error_text(rc)) : 0;
}
