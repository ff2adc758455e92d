#include "model/config/quantization.h"

#include <stdio.h>
#include <string.h>

static enum shore__quant_method method(struct shore__keys *k) {
    const char *name = shore__keys_string(k, "quant_method", "");
    if (!strcmp(name, "fp8") || !strcmp(name, "mxfp8")) return SHORE__QUANT_FP8;
    if (!strcmp(name, "compressed-tensors")) return SHORE__QUANT_COMPRESSED;
    if (!strcmp(name, "mxfp4")) return SHORE__QUANT_MXFP4;
    if (!strcmp(name, "bitsandbytes")) return SHORE__QUANT_BITSANDBYTES;
    shore__keys_refuse(k, "quant_method",
                       "only fp8, mxfp4, bitsandbytes and compressed-tensors are read; take the model that was "
                       "quantised, in bf16 or fp32");
    return SHORE__QUANT_NONE;
}

static void blocks(struct shore__keys *k, const char *key, uint32_t *out) {
    if (!shore__keys_given(k, key)) return;
    const json_t *size = json_object_get(k->object, key);
    for (size_t i = 0; i < 2; i++) {
        json_int_t n = json_integer_value(json_array_get(size, i));
        if (json_array_size(size) != 2 || n < 1 || n > UINT32_MAX)
            shore__keys_refuse(k, key, "a list of two positive numbers is needed, or null");
        out[i] = (uint32_t)n;
    }
}

/* compressed-tensors: the formats that pack nothing, and do nothing else to weights. */
static void groups(struct shore__keys *k, uint32_t *block) {
    static const char *const formats[] = {"float-quantized", "int-quantized", "naive-quantized"};
    static const char *const others[] = {"sparsity_config", "transform_config"};
    const char *name, *format = shore__keys_string(k, "format", "");
    bool known = false;
    json_t *group;
    for (int i = 0; i < 3; i++)
        known |= !strcmp(format, formats[i]);
    if (!known) shore__keys_refuse(k, "format", "only float-quantized, int-quantized and naive-quantized are read");
    for (int i = 0; i < 2; i++) {
        const json_t *other = json_object_get(k->object, others[i]);
        const char *kind = json_string_value(json_object_get(other, "format"));
        if (json_object_size(other) > 0 && (!kind || strcmp(kind, "dense") != 0))
            shore__keys_refuse(k, others[i], "weights that are sparse or transformed besides are not read");
    }
    json_object_foreach(json_object_get(k->object, "config_groups"), name, group) {
        struct shore__keys weights = {json_object_get(group, "weights"), k->name, k->diag, k->rc};
        const char *own = json_string_value(json_object_get(group, "format"));
        if (own && strcmp(own, format) != 0)
            shore__keys_refuse(k, "config_groups", "groups of two formats are not read");
        if (!shore__keys_flag(&weights, "symmetric", true))
            shore__keys_refuse(&weights, "symmetric", "only weights without a zero point are read");
        blocks(&weights, "block_structure", block);
        k->rc = weights.rc ? weights.rc : k->rc;
    }
}

/* Which modules have codes is seen from the tensors, as transformers sees it when it dequantises. */
static void names(struct shore__keys *k, const char *key) {
    json_t *list = json_object_get(k->object, key), *name;
    bool right = !shore__keys_given(k, key) || json_is_array(list);
    size_t i;
    json_array_foreach(list, i, name) right &= json_is_string(name);
    if (!right) shore__keys_refuse(k, key, "a list of names of modules is needed, or null");
}

/* The type that transformers gives a model. */
static enum shore__st_type dtype(struct shore__keys *k) {
    const char *key = shore__keys_given(k, "dtype") ? "dtype" : "torch_dtype";
    const char *name = shore__keys_string(k, key, "bfloat16");
    if (!strcmp(name, "bfloat16")) return SHORE__ST_BF16;
    if (!strcmp(name, "float16")) return SHORE__ST_F16;
    if (strcmp(name, "float32") != 0)
        shore__keys_refuse(k, key, "quantised weights are widened to bfloat16, float16 or float32");
    return SHORE__ST_F32;
}

void shore__quantization_read(struct shore__keys *config, struct shore__quantization *out) {
    char name[600];
    *out = (struct shore__quantization){.method = SHORE__QUANT_NONE};
    if (!shore__keys_given(config, "quantization_config")) return;
    snprintf(name, sizeof name, "%.500s: \"quantization_config\"", config->name);
    struct shore__keys k = {json_object_get(config->object, "quantization_config"), name, config->diag, config->rc};
    if (!json_is_object(k.object)) shore__keys_refuse(config, "quantization_config", "an object is needed, or null");
    if (config->rc) return;
    out->method = method(&k);
    if (out->method == SHORE__QUANT_FP8) blocks(&k, "weight_block_size", out->block);
    if (out->method == SHORE__QUANT_COMPRESSED) groups(&k, out->block);
    names(&k, "modules_to_not_convert");
    if (out->method == SHORE__QUANT_BITSANDBYTES && !strcmp(shore__keys_string(config, "model_type", ""), "gpt2"))
        shore__keys_refuse(&k, "quant_method", "gpt2's matrices, which it stores transposed, are not read");
    config->rc = k.rc;
    out->dtype = dtype(config);
}
