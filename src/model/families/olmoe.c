/* OLMoE: experts in every layer; queries and keys are normed over all heads together. */
#include "model/families/with_experts.h"

static const struct shore__tensor_row tensors[] = {
    SHORE__LLAMA_EMBEDDING,      SHORE__GAIN_ROW(NORM1_GAIN, "input_layernorm"),          SHORE__LLAMA_ATTENTION,
    SHORE__HEAD_GAIN_ROW(Q, KV), SHORE__GAIN_ROW(NORM2_GAIN, "post_attention_layernorm"), SHORE__EXPERTS_TENSORS,
    SHORE__LLAMA_HEAD,
};

static const struct shore__key_row keys[] = {
    SHORE__EXPERTS_KEYS,
    {SHORE__KEY_READ, "attention_bias norm_topk_prob"},
    {SHORE__KEY_FALSE, "clip_qkv"},
};

static void read(struct shore__keys *r, struct shore__arch *a) {
    /* token 1 pads where pad_token_id is absent */
    shore__rotary_read(r,
                       (struct shore__rotary_defaults){
                           .sizes = {16, 2048, 16, 2048, 50304}, .max_positions = 4096, .eps = 1e-5, .pad = 1 + 1},
                       a);
    a->qkv_bias = a->out_bias = shore__keys_flag(r, "attention_bias", false);
    a->heads_normed_together = true;
    shore__experts_read(r, 64, 8, 0.01, a);
    a->expert_ff = a->d_ff;
    a->experts_renormalised = shore__keys_flag(r, "norm_topk_prob", false);
    shore__layers_attend_alike(r, a);
}

static void write(const struct shore__arch *a, json_t *j) {
    json_object_set_new(j, "attention_bias", json_boolean(a->qkv_bias));
    json_object_set_new(j, "num_experts", json_integer(a->experts));
    json_object_set_new(j, "num_experts_per_tok", json_integer(a->experts_chosen));
    json_object_set_new(j, "norm_topk_prob", json_boolean(a->experts_renormalised));
}

const struct shore__family shore__olmoe = {
    .model_type = "olmoe",
    .class = "OlmoeForCausalLM",
    SHORE__LLAMA_NAMES,
    .experts = "mlp.experts.",
    SHORE__KEYS(keys),
    SHORE__TENSORS(tensors),
    SHORE__LAYER_TABLE(shore__experts_layer),
    .read = read,
    .write = write,
};
