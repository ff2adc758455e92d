/* gpt-oss: experts with biases, which files have in one tensor for all of a layer; sinks; every second layer has a
 * window. Gates and ups alternate in a row. */
#include <stdio.h>

#include "model/families/with_experts.h"

static const struct shore__tensor_row tensors[] = {
    SHORE__LLAMA_EMBEDDING,
    SHORE__GAIN_ROW(NORM1_GAIN, "input_layernorm"),
    SHORE__LLAMA_ATTENTION,
    {SHORE__LAYER, SHORE__SINKS, SHORE__WIDTH_ONE, false, 0, {{"self_attn.sinks", SHORE__WIDTH_HEADS}}},
    SHORE__GAIN_ROW(NORM2_GAIN, "post_attention_layernorm"),
    {SHORE__LAYER, SHORE__ROUTER_W, SHORE__WIDTH_D, false, 0, {{"mlp.router.weight", SHORE__WIDTH_EXPERTS}}},
    {SHORE__LAYER, SHORE__ROUTER_B, SHORE__WIDTH_ONE, false, 0, {{"mlp.router.bias", SHORE__WIDTH_EXPERTS}}},
    {SHORE__EXPERT, SHORE__EXPERT_UP_W, SHORE__WIDTH_D, true, 0, {{"gate_up_proj", SHORE__WIDTH_EXPERT_UP}}},
    {SHORE__EXPERT, SHORE__EXPERT_UP_B, SHORE__WIDTH_ONE, false, 0, {{"gate_up_proj_bias", SHORE__WIDTH_EXPERT_UP}}},
    {SHORE__EXPERT, SHORE__EXPERT_DOWN_W, SHORE__WIDTH_D, false, 0, {{"down_proj", SHORE__WIDTH_EXPERT_FF}}},
    {SHORE__EXPERT, SHORE__EXPERT_DOWN_B, SHORE__WIDTH_ONE, false, 0, {{"down_proj_bias", SHORE__WIDTH_D}}},
    SHORE__LLAMA_HEAD,
};

static const struct shore__layer_row layer[] = {
    SHORE__LLAMA_QKV_ROWS,
    SHORE__OP_ROW(ROPE, QKV, QKV, .aux = SHORE__NO_VALUE),
    SHORE__OP_ROW(ATTENTION, QKV, ATTN, .aux = SHORE__LSE, .weight = SHORE__SINKS),
    SHORE__LLAMA_MID_ROWS,
    SHORE__EXPERTS_ROWS,
    SHORE__ADD_ROW(MID, OUT),
};

static const struct shore__key_row keys[] = {
    SHORE__EXPERTS_KEYS,
    {SHORE__KEY_READ, "attention_bias sliding_window"},
    /* Read, for other numbers than these are refused. */
    {SHORE__KEY_IDLE, "swiglu_alpha swiglu_limit"},
    /* Other names of what transformers reads. */
    {SHORE__KEY_IDLE, "experts_per_token initial_context_length"},
};

/* The activation function has these numbers. */
static void check_number(struct shore__keys *r, const char *key, double number) {
    if (shore__keys_number(r, key, number, 0, 1e6) == number) return;
    char why[80];
    snprintf(why, sizeof why, "only %g is supported; from Python, any model trains", number);
    shore__keys_refuse(r, key, why);
}

static void read(struct shore__keys *r, struct shore__arch *a) {
    shore__rotary_read(r,
                       (struct shore__rotary_defaults){.sizes = {36, 2880, 64, 2880, 201088},
                                                       .n_kv_head = 8,
                                                       .max_positions = 131072,
                                                       .head_dim = 64,
                                                       .eps = 1e-5,
                                                       .theta = 150000},
                       a);
    if (!shore__keys_given(r, "rope_scaling") && !shore__keys_given(r, "rope_parameters"))
        shore__keys_refuse(r, "rope_scaling", "the angles of positions are needed");
    if (a->act != SHORE__SILU) shore__keys_refuse(r, "hidden_act", "only silu is supported");
    a->act = SHORE__SWIGLU_CLAMPED;
    check_number(r, "swiglu_alpha", 1.702);
    check_number(r, "swiglu_limit", 7);
    a->qkv_bias = a->out_bias = shore__keys_flag(r, "attention_bias", true);
    shore__experts_read(r, 128, 4, 0.001, a);
    a->expert_ff = a->d_ff;
    a->experts_renormalised = true;
    shore__layer_types_read(r, shore__window_read(r, 128), 2, a);
}

static void write(const struct shore__arch *a, json_t *j) {
    /* absent, transformers takes yarn */
    if (!json_object_get(j, "rope_scaling"))
        json_object_set_new(j, "rope_scaling", json_pack("{ss}", "rope_type", "default"));
    json_object_set_new(j, "attention_bias", json_boolean(a->qkv_bias));
    json_object_set_new(j, "num_local_experts", json_integer(a->experts));
    json_object_set_new(j, "num_experts_per_tok", json_integer(a->experts_chosen));
    shore__window_write(a->kinds[1].window, j);
    shore__layer_types_write(a, j);
}

const struct shore__family shore__gpt_oss = {
    .model_type = "gpt_oss",
    .class = "GptOssForCausalLM",
    SHORE__LLAMA_NAMES,
    .experts = "mlp.experts.",
    .stacked = true,
    SHORE__KEYS(keys),
    SHORE__TENSORS(tensors),
    SHORE__LAYER_TABLE(layer),
    .read = read,
    .write = write,
};
