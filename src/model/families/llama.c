/* Llama, and what is alike in families that follow it. */
#include "model/families/families.h"

const struct shore__tensor_row shore__llama_tensors[SHORE__LLAMA_TENSORS] = {
    {SHORE__EMBEDDING, SHORE__TOKEN_TABLE, SHORE__WIDTH_D, false, 0, {{"embed_tokens.weight", SHORE__WIDTH_VOCAB}}},
    {SHORE__LAYER, SHORE__NORM1_GAIN, SHORE__WIDTH_ONE, false, 0, {{"input_layernorm.weight", SHORE__WIDTH_D}}},
    {SHORE__LAYER, SHORE__QKV_W, SHORE__WIDTH_D, false, 0, SHORE__QKV_PARTS("weight")},
    {SHORE__LAYER, SHORE__QKV_B, SHORE__WIDTH_ONE, false, SHORE__IF(qkv_bias), SHORE__QKV_PARTS("bias")},
    {SHORE__LAYER, SHORE__OUT_W, SHORE__WIDTH_Q, false, 0, {{"self_attn.o_proj.weight", SHORE__WIDTH_D}}},
    {SHORE__LAYER,
     SHORE__OUT_B,
     SHORE__WIDTH_ONE,
     false,
     SHORE__IF(out_bias),
     {{"self_attn.o_proj.bias", SHORE__WIDTH_D}}},
    {SHORE__LAYER,
     SHORE__NORM2_GAIN,
     SHORE__WIDTH_ONE,
     false,
     0,
     {{"post_attention_layernorm.weight", SHORE__WIDTH_D}}},
    {SHORE__LAYER, SHORE__UP_W, SHORE__WIDTH_D, false, 0, SHORE__UP_PARTS("weight")},
    {SHORE__LAYER, SHORE__UP_B, SHORE__WIDTH_ONE, false, SHORE__IF(mlp_bias), SHORE__UP_PARTS("bias")},
    {SHORE__LAYER, SHORE__DOWN_W, SHORE__WIDTH_D, true, 0, {{"mlp.down_proj.weight", SHORE__WIDTH_FF}}},
    {SHORE__LAYER,
     SHORE__DOWN_B,
     SHORE__WIDTH_ONE,
     false,
     SHORE__IF(mlp_bias),
     {{"mlp.down_proj.bias", SHORE__WIDTH_D}}},
    {SHORE__HEAD, SHORE__HEAD_TABLE, SHORE__WIDTH_D, false, 0, {{"lm_head.weight", SHORE__WIDTH_VOCAB}}},
    {SHORE__HEAD, SHORE__NORMF_GAIN, SHORE__WIDTH_ONE, false, 0, {{"norm.weight", SHORE__WIDTH_D}}},
};

const struct shore__layer_row shore__llama_layer[SHORE__LLAMA_ROWS] = {
    SHORE__OP_ROW(NORM, IN, NORM1, .aux = SHORE__STATS1, .weight = SHORE__NORM1_GAIN, .cheap = true),
    SHORE__OP_ROW(LINEAR, NORM1, QKV, .weight = SHORE__QKV_W, .bias = SHORE__QKV_B),
    SHORE__OP_ROW(ROPE, QKV, QKV, .aux = SHORE__NO_VALUE),
    SHORE__OP_ROW(ATTENTION, QKV, ATTN, .aux = SHORE__LSE),
    SHORE__OP_ROW(LINEAR, ATTN, MID, .weight = SHORE__OUT_W, .bias = SHORE__OUT_B),
    SHORE__ADD_ROW(IN, MID),
    SHORE__OP_ROW(NORM, MID, NORM2, .aux = SHORE__STATS2, .weight = SHORE__NORM2_GAIN, .cheap = true),
    SHORE__OP_ROW(LINEAR, NORM2, UP, .weight = SHORE__UP_W, .bias = SHORE__UP_B),
    SHORE__OP_ROW(ACT, UP, ACT, .cheap = true),
    SHORE__OP_ROW(LINEAR, ACT, OUT, .weight = SHORE__DOWN_W, .bias = SHORE__DOWN_B, .input_major = true),
    SHORE__ADD_ROW(MID, OUT),
};

static const struct shore__key_row keys[] = {
    {SHORE__KEY_READ, "attention_bias mlp_bias"},
    {SHORE__KEY_IDLE, "pretraining_tp"}, /* transformers reads it no more */
};

static void read(struct shore__keys *r, struct shore__arch *a) {
    shore__rotary_read(r, (struct shore__rotary_defaults){.max_positions = 2048}, a);
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
