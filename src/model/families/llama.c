/* Llama, and what is alike in families that follow it. */
#include "model/families/families.h"

const struct shore__tensor_row shore__llama_tensors[SHORE__LLAMA_TENSORS] = {
    SHORE__LLAMA_EMBEDDING, SHORE__GAIN_ROW(NORM1_GAIN, "input_layernorm"),
    SHORE__LLAMA_ATTENTION, SHORE__GAIN_ROW(NORM2_GAIN, "post_attention_layernorm"),
    SHORE__LLAMA_MLP,       SHORE__LLAMA_HEAD,
};

const struct shore__layer_row shore__llama_layer[SHORE__LLAMA_ROWS] = {
    SHORE__LLAMA_QKV_ROWS,
    SHORE__OP_ROW(ROPE, QKV, QKV, .aux = SHORE__NO_VALUE),
    SHORE__OP_ROW(ATTENTION, QKV, ATTN, .aux = SHORE__LSE),
    SHORE__LLAMA_MID_ROWS,
    SHORE__LLAMA_MLP_ROWS(NORM2, OUT),
    SHORE__ADD_ROW(MID, OUT),
};

static const struct shore__key_row keys[] = {{SHORE__KEY_READ, "attention_bias mlp_bias"}};

static void read(struct shore__keys *r, struct shore__arch *a) {
    shore__rotary_read(r, (struct shore__rotary_defaults){.sizes = {32, 4096, 32, 11008, 32000}, .max_positions = 2048},
                       a);
    a->qkv_bias = a->out_bias = shore__keys_flag(r, "attention_bias", false);
    a->mlp_bias = shore__keys_flag(r, "mlp_bias", false);
    shore__layers_attend_alike(r, a);
}

static void write(const struct shore__arch *a, json_t *j) {
    json_object_set_new(j, "attention_bias", json_boolean(a->qkv_bias));
    json_object_set_new(j, "mlp_bias", json_boolean(a->mlp_bias));
}

const struct shore__family shore__llama = {
    .model_type = "llama",
    .class = "LlamaForCausalLM",
    SHORE__LIKE_LLAMA,
    SHORE__KEYS(keys),
    .read = read,
    .write = write,
};
