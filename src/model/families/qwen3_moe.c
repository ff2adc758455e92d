/* Qwen3-MoE: Qwen3 with experts in every layer. */
#include "model/families/with_experts.h"

static const struct shore__tensor_row tensors[] = {
    SHORE__LLAMA_EMBEDDING,
    SHORE__GAIN_ROW(NORM1_GAIN, "input_layernorm"),
    SHORE__LLAMA_ATTENTION,
    SHORE__HEAD_GAIN_ROW(HEAD_DIM, HEAD_DIM),
    SHORE__GAIN_ROW(NORM2_GAIN, "post_attention_layernorm"),
    SHORE__EXPERTS_TENSORS,
    SHORE__LLAMA_HEAD,
};

static const struct shore__key_row keys[] = {
    SHORE__EXPERTS_KEYS,
    {SHORE__KEY_READ, "attention_bias moe_intermediate_size norm_topk_prob decoder_sparse_step"},
    {SHORE__KEY_FALSE, "use_sliding_window mlp_only_layers"},
    /* Of layers that use_sliding_window, which is refused, would give a window. */
    {SHORE__KEY_IDLE, "sliding_window max_window_layers"},
};

static void read(struct shore__keys *r, struct shore__arch *a) {
    shore__rotary_read(
        r,
        (struct shore__rotary_defaults){.sizes = {24, 2048, 32, 6144, 151936}, .n_kv_head = 4, .max_positions = 32768},
        a);
    a->qkv_bias = a->out_bias = shore__keys_flag(r, "attention_bias", false);
    shore__experts_read(r, 128, 8, 0.001, a);
    a->expert_ff = shore__keys_count(r, "moe_intermediate_size", 768, 1 << 20);
    a->experts_renormalised = shore__keys_flag(r, "norm_topk_prob", false);
    if (shore__keys_count(r, "decoder_sparse_step", 1, 4096) != 1)
        shore__keys_refuse(r, "decoder_sparse_step",
                           "only layers that all have experts are supported; from Python, any model trains");
    shore__layers_attend_alike(r, a);
}

static void write(const struct shore__arch *a, json_t *j) {
    json_object_set_new(j, "attention_bias", json_boolean(a->qkv_bias));
    json_object_set_new(j, "num_experts", json_integer(a->experts));
    json_object_set_new(j, "num_local_experts", json_integer(a->experts));
    json_object_set_new(j, "num_experts_per_tok", json_integer(a->experts_chosen));
    json_object_set_new(j, "moe_intermediate_size", json_integer(a->expert_ff));
    json_object_set_new(j, "norm_topk_prob", json_boolean(a->experts_renormalised));
    json_object_set_new(j, "decoder_sparse_step", json_integer(1));
    json_object_set_new(j, "use_sliding_window", json_false());
}

const struct shore__family shore__qwen3_moe = {
    .model_type = "qwen3_moe",
    .class = "Qwen3MoeForCausalLM",
    SHORE__LLAMA_NAMES,
    .experts = "mlp.experts.",
    SHORE__KEYS(keys),
    SHORE__TENSORS(tensors),
    SHORE__LAYER_TABLE(shore__experts_layer),
    .read = read,
    .write = write,
};
