/* Gemma 2 and 3: norms before and after each half of a layer, whose gains are 1 + weight; windows in some layers; Gemma
 * 2 caps scores and logits; Gemma 3 has norms of queries and keys, and angles of its own where there is a window. */
#include <math.h>

#include "model/config/rope.h"
#include "model/families/families.h"

#define TENSORS_BEFORE SHORE__LLAMA_EMBEDDING, SHORE__GAIN_ROW(NORM1_GAIN, "input_layernorm"), SHORE__LLAMA_ATTENTION
#define TENSORS_BEHIND                                                              \
    SHORE__GAIN_ROW(ATTN_OUT_GAIN, "post_attention_layernorm"),                     \
        SHORE__GAIN_ROW(NORM2_GAIN, "pre_feedforward_layernorm"), SHORE__LLAMA_MLP, \
        SHORE__GAIN_ROW(FF_OUT_GAIN, "post_feedforward_layernorm"), SHORE__LLAMA_HEAD

static const struct shore__tensor_row tensors2[] = {TENSORS_BEFORE, TENSORS_BEHIND};
static const struct shore__tensor_row tensors3[] = {TENSORS_BEFORE, SHORE__HEAD_GAIN_ROW(HEAD_DIM, HEAD_DIM),
                                                    TENSORS_BEHIND};

#define ROWS_BEHIND                                                                                        \
    SHORE__OP_ROW(LINEAR, ATTN, ATTN_OUT, .weight = SHORE__OUT_W, .bias = SHORE__OUT_B),                   \
        SHORE__OP_ROW(NORM, ATTN_OUT, MID, .aux = SHORE__ATTN_OUT_STATS, .weight = SHORE__ATTN_OUT_GAIN),  \
        SHORE__ADD_ROW(IN, MID),                                                                           \
        SHORE__OP_ROW(NORM, MID, NORM2, .aux = SHORE__STATS2, .weight = SHORE__NORM2_GAIN, .cheap = true), \
        SHORE__LLAMA_MLP_ROWS(NORM2, FF_OUT),                                                              \
        SHORE__OP_ROW(NORM, FF_OUT, OUT, .aux = SHORE__FF_OUT_STATS, .weight = SHORE__FF_OUT_GAIN),        \
        SHORE__ADD_ROW(MID, OUT)

static const struct shore__layer_row layer2[] = {
    SHORE__LLAMA_QKV_ROWS,
    SHORE__OP_ROW(ROPE, QKV, QKV, .aux = SHORE__NO_VALUE),
    SHORE__OP_ROW(ATTENTION, QKV, ATTN, .aux = SHORE__LSE),
    ROWS_BEHIND,
};
static const struct shore__layer_row layer3[] = {
    SHORE__LLAMA_QKV_ROWS,
    SHORE__NORMED_ATTENTION_ROWS,
    ROWS_BEHIND,
};

static const struct shore__key_row keys2[] = {
    {SHORE__KEY_READ, "attention_bias hidden_activation query_pre_attn_scalar sliding_window final_logit_softcapping "
                      "attn_logit_softcapping"},
    {SHORE__KEY_FALSE, "use_bidirectional_attention"},
    {SHORE__KEY_IDLE, "hidden_act cache_implementation"}, /* transformers reads them no more */
};
static const struct shore__key_row keys3[] = {
    {SHORE__KEY_READ, "attention_bias hidden_activation query_pre_attn_scalar sliding_window sliding_window_pattern "
                      "final_logit_softcapping rope_local_base_freq"},
    {SHORE__KEY_FALSE, "use_bidirectional_attention"},
    /* transformers' attention does without the cap; layers are listed, whatever the pattern was */
    {SHORE__KEY_IDLE, "hidden_act cache_implementation attn_logit_softcapping _sliding_window_pattern"},
};

static float cap(struct shore__keys *r, const char *key, double absent) {
    if (!json_object_get(r->object, key)) return (float)absent;
    return shore__keys_given(r, key) ? (float)shore__keys_number(r, key, 0, 1e-3, 1e6) : 0;
}

static void read(struct shore__keys *r, bool two, uint32_t max_positions, uint32_t nth, struct shore__arch *a) {
    const struct shore__rotary_defaults absent = {
        .sizes = {26, 2304, 8, 9216, two ? 256000 : 262208},
        .n_kv_head = 4,
        .max_positions = max_positions,
        .head_dim = 256,
        .tied = true,
        .pad = 1,
        .act_key = "hidden_activation",
        .act = "gelu_pytorch_tanh",
        .reads_rope = !two,
    };
    shore__rotary_read(r, absent, a);
    a->norm = SHORE__RMS_NORM_FROM_1;
    a->scaled_embedding = true;
    a->qkv_bias = a->out_bias = shore__keys_flag(r, "attention_bias", false);
    a->attention_scale = (float)(1 / sqrt(shore__keys_count(r, "query_pre_attn_scalar", 256, 1 << 24)));
    shore__layer_types_read(r, shore__window_read(r, 4096), nth, a);
}

static void read2(struct shore__keys *r, struct shore__arch *a) {
    read(r, true, 8192, 2, a);
    a->attention_cap = cap(r, "attn_logit_softcapping", 50);
    a->logit_cap = cap(r, "final_logit_softcapping", 30);
}

static void read3(struct shore__keys *r, struct shore__arch *a) {
    read(r, false, 131072, shore__keys_count(r, "sliding_window_pattern", 6, 4096), a);
    a->logit_cap = cap(r, "final_logit_softcapping", 0);
    const struct shore__rope_rules rules = {.theta = 1e6, .max_positions = a->max_positions, .head_dim = a->head_dim};
    shore__rope_read_both(r, &rules, "rope_local_base_freq", 1e4, a->rope);
    a->kinds[1].rope = 1;
}

static json_t *cap_of(float value) {
    return value > 0 ? shore__real_of(value) : json_null();
}

static void write2(const struct shore__arch *a, json_t *j) {
    json_object_del(j, "hidden_act");
    json_object_set_new(j, "hidden_activation",
                        json_string(a->act == SHORE__GELU_TANH ? "gelu_pytorch_tanh" : shore__act_name(a->act)));
    json_object_set_new(j, "attention_bias", json_boolean(a->qkv_bias));
    json_object_set_new(j, "query_pre_attn_scalar",
                        json_integer(lrintf(1 / (a->attention_scale * a->attention_scale))));
    shore__window_write(a->kinds[1].window, j);
    json_object_set_new(j, "final_logit_softcapping", cap_of(a->logit_cap));
    json_object_set_new(j, "attn_logit_softcapping", cap_of(a->attention_cap));
    shore__layer_types_write(a, j);
}

static void write3(const struct shore__arch *a, json_t *j) {
    write2(a, j);
    shore__rope_write_both(a->rope, "rope_local_base_freq", 0, j);
}

#define GEMMA(number, type, class_)                                                               \
    {                                                                                             \
        .model_type = type, .class = class_, SHORE__LLAMA_NAMES, SHORE__KEYS(keys##number),       \
        SHORE__TENSORS(tensors##number), SHORE__LAYER_TABLE(layer##number), .read = read##number, \
        .write = write##number                                                                    \
    }
const struct shore__family shore__gemma2 = GEMMA(2, "gemma2", "Gemma2ForCausalLM");
const struct shore__family shore__gemma3 = GEMMA(3, "gemma3_text", "Gemma3ForCausalLM");
