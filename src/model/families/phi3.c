/* Phi-3, Phi-3.5 and Phi-4-mini: Llama with fused projections, a part of each head rotated, longrope. */
#include "model/families/families.h"

static const struct shore__tensor_row tensors[] = {
    SHORE__LLAMA_EMBEDDING,
    SHORE__GAIN_ROW(NORM1_GAIN, "input_layernorm"),
    SHORE__MATRIX_ROW(QKV_W, D, false, "self_attn.qkv_proj.weight", QKV),
    SHORE__MATRIX_ROW(OUT_W, Q, false, "self_attn.o_proj.weight", D),
    SHORE__GAIN_ROW(NORM2_GAIN, "post_attention_layernorm"),
    SHORE__MATRIX_ROW(UP_W, D, false, "mlp.gate_up_proj.weight", UP),
    SHORE__MATRIX_ROW(DOWN_W, D, true, "mlp.down_proj.weight", FF),
    SHORE__LLAMA_HEAD,
};

static const struct shore__key_row keys[] = {
    {SHORE__KEY_READ, "sliding_window"},
    /* Dropout: no run applies it. It is read to say so. */
    {SHORE__KEY_IDLE, "resid_pdrop embd_pdrop"},
    /* Of the model's own program, which transformers' has replaced. */
    {SHORE__KEY_FALSE, "attention_bias mlp_bias lm_head_bias"},
    {SHORE__KEY_IDLE, "interpolate_factor full_attn_mod"},
};

static void read(struct shore__keys *r, struct shore__arch *a) {
    double part = 1;
    const struct shore__rotary_defaults absent = {.sizes = {32, 3072, 32, 8192, 32064},
                                                  .max_positions = 4096,
                                                  .eps = 1e-5,
                                                  .pad = 1 + 32000,
                                                  .original_positions = 4096,
                                                  .part = &part};
    shore__rotary_read(r, absent, a);
    if (!r->rc && a->rope[0].kind != SHORE__ROPE_DEFAULT && a->rope[0].kind != SHORE__ROPE_LONGROPE)
        shore__keys_refuse(r, shore__keys_given(r, "rope_scaling") ? "rope_scaling" : "rope_parameters",
                           "only longrope is supported");
    a->rotary_dim = (uint32_t)(a->head_dim * part);
    if (!r->rc && (a->rotary_dim < 2 || a->rotary_dim % 2))
        shore__keys_refuse(r, "partial_rotary_factor", "an even number of a head's elements is needed");
    a->has_dropout |= shore__keys_number(r, "resid_pdrop", 0, 0, 1) > 0;
    a->kinds[0].window = shore__window_read(r, 0);
    shore__layers_attend_alike(r, a);
}

static void write(const struct shore__arch *a, json_t *j) {
    json_object_set_new(j, "partial_rotary_factor", json_real((double)a->rotary_dim / a->head_dim));
    shore__window_write(a->kinds[0].window, j);
}

const struct shore__family shore__phi3 = {
    .model_type = "phi3",
    .class = "Phi3ForCausalLM",
    SHORE__LLAMA_NAMES,
    SHORE__KEYS(keys),
    SHORE__TENSORS(tensors),
    SHORE__LAYER_TABLE(shore__llama_layer),
    .read = read,
    .write = write,
};
