/* GPT-2. */
#include "model/families/families.h"

static const struct shore__tensor_row tensors[] = {
    {SHORE__EMBEDDING, SHORE__TOKEN_TABLE, SHORE__WIDTH_D, false, 0, {{"wte.weight", SHORE__WIDTH_VOCAB}}},
    {SHORE__EMBEDDING, SHORE__POSITION_TABLE, SHORE__WIDTH_D, false, 0, {{"wpe.weight", SHORE__WIDTH_POSITIONS}}},
    {SHORE__LAYER, SHORE__NORM1_GAIN, SHORE__WIDTH_ONE, false, 0, {{"ln_1.weight", SHORE__WIDTH_D}}},
    {SHORE__LAYER, SHORE__NORM1_BIAS, SHORE__WIDTH_ONE, false, 0, {{"ln_1.bias", SHORE__WIDTH_D}}},
    {SHORE__LAYER, SHORE__QKV_W, SHORE__WIDTH_D, true, 0, {{"attn.c_attn.weight", SHORE__WIDTH_QKV}}},
    {SHORE__LAYER, SHORE__QKV_B, SHORE__WIDTH_ONE, false, 0, {{"attn.c_attn.bias", SHORE__WIDTH_QKV}}},
    {SHORE__LAYER, SHORE__OUT_W, SHORE__WIDTH_D, true, 0, {{"attn.c_proj.weight", SHORE__WIDTH_D}}},
    {SHORE__LAYER, SHORE__OUT_B, SHORE__WIDTH_ONE, false, 0, {{"attn.c_proj.bias", SHORE__WIDTH_D}}},
    {SHORE__LAYER, SHORE__NORM2_GAIN, SHORE__WIDTH_ONE, false, 0, {{"ln_2.weight", SHORE__WIDTH_D}}},
    {SHORE__LAYER, SHORE__NORM2_BIAS, SHORE__WIDTH_ONE, false, 0, {{"ln_2.bias", SHORE__WIDTH_D}}},
    {SHORE__LAYER, SHORE__UP_W, SHORE__WIDTH_D, true, 0, {{"mlp.c_fc.weight", SHORE__WIDTH_FF}}},
    {SHORE__LAYER, SHORE__UP_B, SHORE__WIDTH_ONE, false, 0, {{"mlp.c_fc.bias", SHORE__WIDTH_FF}}},
    {SHORE__LAYER, SHORE__DOWN_W, SHORE__WIDTH_D, false, 0, {{"mlp.c_proj.weight", SHORE__WIDTH_FF}}},
    {SHORE__LAYER, SHORE__DOWN_B, SHORE__WIDTH_ONE, false, 0, {{"mlp.c_proj.bias", SHORE__WIDTH_D}}},
    {SHORE__HEAD, SHORE__HEAD_TABLE, SHORE__WIDTH_D, false, 0, {{"lm_head.weight", SHORE__WIDTH_VOCAB}}},
    {SHORE__HEAD, SHORE__NORMF_GAIN, SHORE__WIDTH_ONE, false, 0, {{"ln_f.weight", SHORE__WIDTH_D}}},
    {SHORE__HEAD, SHORE__NORMF_BIAS, SHORE__WIDTH_ONE, false, 0, {{"ln_f.bias", SHORE__WIDTH_D}}},
};

static const struct shore__layer_row layer[] = {
    SHORE__OP_ROW(NORM, IN, NORM1, .aux = SHORE__STATS1, .weight = SHORE__NORM1_GAIN, .bias = SHORE__NORM1_BIAS,
                  .cheap = true),
    SHORE__OP_ROW(LINEAR, NORM1, QKV, .weight = SHORE__QKV_W, .bias = SHORE__QKV_B),
    SHORE__OP_ROW(ATTENTION, QKV, ATTN, .aux = SHORE__LSE),
    SHORE__OP_ROW(LINEAR, ATTN, MID, .weight = SHORE__OUT_W, .bias = SHORE__OUT_B),
    SHORE__ADD_ROW(IN, MID),
    SHORE__OP_ROW(NORM, MID, NORM2, .aux = SHORE__STATS2, .weight = SHORE__NORM2_GAIN, .bias = SHORE__NORM2_BIAS,
                  .cheap = true),
    SHORE__OP_ROW(LINEAR, NORM2, UP, .weight = SHORE__UP_W, .bias = SHORE__UP_B),
    SHORE__OP_ROW(ACT, UP, ACT, .cheap = true),
    SHORE__OP_ROW(LINEAR, ACT, OUT, .weight = SHORE__DOWN_W, .bias = SHORE__DOWN_B, .input_major = true),
    SHORE__ADD_ROW(MID, OUT),
};

static const struct shore__key_row keys[] = {
    {SHORE__KEY_READ,
     "n_layer n_embd n_head n_inner n_positions n_ctx num_hidden_layers hidden_size num_attention_heads "
     "max_position_embeddings activation_function layer_norm_epsilon"},
    {SHORE__KEY_TRUE, "scale_attn_weights"},
    {SHORE__KEY_FALSE, "scale_attn_by_inverse_layer_idx"},
    /* Dropout: no run applies it. It is read to say so. */
    {SHORE__KEY_IDLE, "resid_pdrop embd_pdrop attn_pdrop"},
    {SHORE__KEY_IDLE,
     "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout hidden_dropout"},
    /* The table has no row for padding. The order of the products that attention computes is the same in fp32. */
    {SHORE__KEY_IDLE, "pad_token_id reorder_and_upcast_attn"},
};

/* transformers also accepts the other families' names for GPT-2's sizes, and prefers those. */
static const char *named(const struct shore__keys *r, const char *general, const char *own) {
    return shore__keys_given(r, general) ? general : own;
}

static void read(struct shore__keys *r, struct shore__arch *a) {
    const char *heads = named(r, "num_attention_heads", "n_head");
    const char *positions = named(r, "max_position_embeddings", "n_positions");
    a->n_layer = shore__keys_count(r, named(r, "num_hidden_layers", "n_layer"), 12, SHORE__LAYERS_MOST);
    a->d_model = shore__keys_count(r, named(r, "hidden_size", "n_embd"), 768, 1 << 18);
    a->n_head = shore__keys_count(r, heads, 12, 4096);
    a->n_kv_head = a->n_head;
    a->vocab = shore__keys_count(r, "vocab_size", 50257, 1 << 24);
    a->max_positions = shore__keys_count(r, positions, shore__keys_count(r, "n_ctx", 1024, 1 << 24), 1 << 24);
    a->d_ff = shore__keys_count(r, "n_inner", 4 * (int64_t)a->d_model, 1 << 20);
    a->norm_eps = shore__epsilon_read(r, "layer_norm_epsilon", 1e-5);
    a->act = shore__act_read(r, "activation_function", "gelu_new");
    a->qkv_bias = a->out_bias = a->mlp_bias = true;
    a->learned_positions = true;
    a->tied = shore__keys_flag(r, "tie_word_embeddings", true);
    a->init_std = (float)shore__keys_number(r, "initializer_range", 0.02, 0, 10);
    a->has_dropout = shore__keys_number(r, "resid_pdrop", 0.1, 0, 1) > 0 ||
                     shore__keys_number(r, "embd_pdrop", 0.1, 0, 1) > 0 ||
                     shore__keys_number(r, "attn_pdrop", 0.1, 0, 1) > 0;
    if (!r->rc && a->d_model % a->n_head) shore__keys_refuse(r, heads, "n_embd must be a multiple of it");
    a->head_dim = a->d_model / a->n_head;
}

static void write(const struct shore__arch *a, json_t *j) {
    json_object_set_new(j, "n_layer", json_integer(a->n_layer));
    json_object_set_new(j, "n_embd", json_integer(a->d_model));
    json_object_set_new(j, "n_head", json_integer(a->n_head));
    json_object_set_new(j, "n_inner", json_integer(a->d_ff));
    json_object_set_new(j, "n_positions", json_integer(a->max_positions));
    json_object_set_new(j, "n_ctx", json_integer(a->max_positions));
    json_object_set_new(j, "layer_norm_epsilon", shore__real_of(a->norm_eps));
    json_object_set_new(j, "activation_function", json_string(shore__act_name(a->act)));
    if (a->has_dropout) return; /* the configuration says it, or leaves it to transformers */
    json_object_set_new(j, "resid_pdrop", json_real(0));
    json_object_set_new(j, "embd_pdrop", json_real(0));
    json_object_set_new(j, "attn_pdrop", json_real(0));
}

const struct shore__family shore__gpt2 = {
    .model_type = "gpt2",
    .class = "GPT2LMHeadModel",
    .prefix = "transformer.",
    .layers = "h.",
    .inputs_first = true,
    SHORE__KEYS(keys),
    SHORE__TENSORS(tensors),
    SHORE__LAYER_TABLE(layer),
    .read = read,
    .write = write,
};
