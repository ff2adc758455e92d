/* Qwen3: Llama with norms of queries and keys, over each head. */
#include "model/families/families.h"

static const struct shore__tensor_row tensors[] = {
    SHORE__LLAMA_EMBEDDING,
    SHORE__GAIN_ROW(NORM1_GAIN, "input_layernorm"),
    SHORE__LLAMA_ATTENTION,
    SHORE__HEAD_GAIN_ROW(HEAD_DIM, HEAD_DIM),
    SHORE__GAIN_ROW(NORM2_GAIN, "post_attention_layernorm"),
    SHORE__LLAMA_MLP,
    SHORE__LLAMA_HEAD,
};

static const struct shore__layer_row layer[] = {
    SHORE__LLAMA_QKV_ROWS,    SHORE__NORMED_ATTENTION_ROWS, SHORE__LLAMA_MID_ROWS, SHORE__LLAMA_MLP_ROWS(NORM2, OUT),
    SHORE__ADD_ROW(MID, OUT),
};

static const struct shore__key_row keys[] = {
    {SHORE__KEY_READ, "attention_bias"},
    {SHORE__KEY_FALSE, "use_sliding_window"},
    /* Of layers that use_sliding_window, which is refused, would give a window. */
    {SHORE__KEY_IDLE, "sliding_window max_window_layers"},
};

static void read(struct shore__keys *r, struct shore__arch *a) {
    shore__rotary_read(
        r,
        (struct shore__rotary_defaults){
            .sizes = {32, 4096, 32, 22016, 151936}, .n_kv_head = 32, .max_positions = 32768, .head_dim = 128},
        a);
    a->qkv_bias = a->out_bias = shore__keys_flag(r, "attention_bias", false);
    shore__layers_attend_alike(r, a);
}

static void write(const struct shore__arch *a, json_t *j) {
    json_object_set_new(j, "attention_bias", json_boolean(a->qkv_bias));
    json_object_set_new(j, "use_sliding_window", json_false());
}

const struct shore__family shore__qwen3 = {
    .model_type = "qwen3",
    .class = "Qwen3ForCausalLM",
    SHORE__LLAMA_NAMES,
    SHORE__KEYS(keys),
    SHORE__TENSORS(tensors),
    SHORE__LAYER_TABLE(layer),
    .read = read,
    .write = write,
};
