#include "files/quant_state.h"

#include <math.h>
#include <string.h>

#include "base/diag.h"
#include "files/json.h"

/* bitsandbytes' dequantize_4bit knows these. */
static bool is_block_size(json_int_t n) {
    return n >= 32 && n <= 4096 && (n & (n - 1)) == 0;
}

static bool take_shape(const json_t *shape, struct shore__quant_state *out) {
    out->rank = (uint32_t)json_array_size(shape);
    out->elems = 1;
    bool right = json_is_array(shape) && json_array_size(shape) >= 1 && json_array_size(shape) <= 8;
    for (uint32_t i = 0; right && i < out->rank; i++) {
        json_int_t n = json_integer_value(json_array_get(shape, i));
        out->shape[i] = (uint64_t)n;
        right = n > 0 && !__builtin_mul_overflow(out->elems, out->shape[i], &out->elems);
    }
    return right;
}

static bool take_dtype(const char *name, enum shore__st_type *out) {
    *out = !strcmp(name, "float16") ? SHORE__ST_F16 : !strcmp(name, "bfloat16") ? SHORE__ST_BF16 : SHORE__ST_F32;
    return *out != SHORE__ST_F32 || !strcmp(name, "float32");
}

/* NULL, or the key whose value is wrong. */
static const char *take(const json_t *state, const char *type, struct shore__quant_state *out) {
    const char *quant_type = json_string_value(json_object_get(state, "quant_type"));
    const char *dtype = json_string_value(json_object_get(state, "dtype"));
    const json_int_t block = json_integer_value(json_object_get(state, "blocksize"));
    const json_t *nested = json_object_get(state, "nested_blocksize"),
                 *offset = json_object_get(state, "nested_offset");
    const char *nested_dtype = json_string_value(json_object_get(state, "nested_dtype"));
    if (!quant_type || strcmp(quant_type, type) != 0) return "quant_type";
    if (!is_block_size(block)) return "blocksize";
    if (!dtype || !take_dtype(dtype, &out->dtype)) return "dtype";
    if (!take_shape(json_object_get(state, "shape"), out)) return "shape";
    out->blocksize = (uint32_t)block;
    if (!nested) return NULL;
    if (!is_block_size(json_integer_value(nested))) return "nested_blocksize";
    if (!nested_dtype || strcmp(nested_dtype, "float32") != 0) return "nested_dtype";
    out->nested_blocksize = (uint32_t)json_integer_value(nested);
    out->nested_offset = (float)json_number_value(offset);
    return json_is_number(offset) && isfinite(out->nested_offset) ? NULL : "nested_offset";
}

int shore__quant_state_parse(const char *text, size_t bytes, const char *type, const char *name,
                             struct shore__quant_state *out, struct shore_diag *diag) {
    json_t *state = NULL;
    int rc = shore__json_parse(text, bytes, name, &state, diag);
    if (rc) return rc;
    *out = (struct shore__quant_state){0};
    const char *wrong = json_is_object(state) ? take(state, type, out) : "";
    if (wrong)
        rc = shore__fail(diag, SHORE_EINPUT, "%s: is not what bitsandbytes stores for %s%s%s", name, type,
                         *wrong ? ": it has another " : "", wrong);
    json_decref(state);
    return rc;
}
