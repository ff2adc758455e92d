/* OLMo 2 and 3: norms behind each half of a layer and none before it; norms of queries and keys, over all heads. OLMo 3
 * has windows in some layers. */
#include "model/config/rope.h"
#include "model/families/families.h"

static const struct shore__tensor_row tensors[] = {
    SHORE__LLAMA_EMBEDDING,
    SHORE__LLAMA_ATTENTION,
    SHORE__HEAD_GAIN_ROW(Q, KV),
    SHORE__GAIN_ROW(ATTN_OUT_GAIN, "post_attention_layernorm"),
    SHORE__LLAMA_MLP,
    SHORE__GAIN_ROW(FF_OUT_GAIN, "post_feedforward_layernorm"),
    SHORE__LLAMA_HEAD,
};

static const struct shore__layer_row layer[] = {
    SHORE__OP_ROW(LINEAR, IN, QKV, .weight = SHORE__QKV_W, .bias = SHORE__QKV_B),
    SHORE__NORMED_ATTENTION_ROWS,
    SHORE__OP_ROW(LINEAR, ATTN, ATTN_OUT, .weight = SHORE__OUT_W, .bias = SHORE__OUT_B),
    SHORE__OP_ROW(NORM, ATTN_OUT, MID, .aux = SHORE__ATTN_OUT_STATS, .weight = SHORE__ATTN_OUT_GAIN),
    SHORE__ADD_ROW(IN, MID),
    SHORE__LLAMA_MLP_ROWS(MID, FF_OUT),
    SHORE__OP_ROW(NORM, FF_OUT, OUT, .aux = SHORE__FF_OUT_STATS, .weight = SHORE__FF_OUT_GAIN),
    SHORE__ADD_ROW(MID, OUT),
};

static const struct shore__key_row keys2[] = {{SHORE__KEY_READ, "attention_bias"}};
static const struct shore__key_row keys3[] = {{SHORE__KEY_READ, "attention_bias sliding_window"}};

#define DEFAULTS .sizes = {32, 4096, 32, 11008, 50304}, .max_positions = 2048, .eps = 1e-5, .pad = 1 + 1

static void read(struct shore__keys *r, struct shore__rotary_defaults absent, struct shore__arch *a) {
    shore__rotary_read(r, absent, a);
    a->heads_normed_together = true;
    a->qkv_bias = a->out_bias = shore__keys_flag(r, "attention_bias", false);
}

static void read2(struct shore__keys *r, struct shore__arch *a) {
    read(r, (struct shore__rotary_defaults){DEFAULTS}, a);
    shore__layers_attend_alike(r, a);
}

/* Of all layers. transformers 4 and 5 differ in what a theta outside of rope_parameters means, unless it is this one.
 */
#define THETA 5e5

static void read3(struct shore__keys *r, struct shore__arch *a) {
    read(r, (struct shore__rotary_defaults){DEFAULTS, .reads_rope = true}, a);
    const struct shore__rope_rules rules = {.theta = THETA, .max_positions = a->max_positions, .head_dim = a->head_dim};
    shore__rope_read_both(r, &rules, NULL, THETA, a->rope);
    if (shore__keys_number(r, "rope_theta", THETA, 1, 1e12) != THETA)
        shore__keys_refuse(r, "rope_theta",
                           "only 500000 is read alike by transformers 4 and 5; rope_parameters has one of each kind "
                           "of layer");
    shore__layer_types_read(r, shore__window_read(r, 4096), 4, a);
    a->kinds[1].rope = 1;
}

static void write2(const struct shore__arch *a, json_t *j) {
    json_object_set_new(j, "attention_bias", json_boolean(a->qkv_bias));
    json_t *scaling = json_object_get(j, "rope_scaling");
    if (!scaling) return;
    /* transformers 4 has no other name here */
    json_object_set(scaling, "type", json_object_get(scaling, "rope_type"));
    json_object_del(scaling, "rope_type");
}

static void write3(const struct shore__arch *a, json_t *j) {
    json_object_set_new(j, "attention_bias", json_boolean(a->qkv_bias));
    shore__window_write(a->kinds[1].window, j);
    shore__layer_types_write(a, j);
    shore__rope_write_both(a->rope, NULL, THETA, j);
}

#define OLMO(number)                                                                                         \
    {                                                                                                        \
        .model_type = "olmo" #number, .class = "Olmo" #number "ForCausalLM", SHORE__LLAMA_NAMES,             \
        SHORE__KEYS(keys##number), SHORE__TENSORS(tensors), SHORE__LAYER_TABLE(layer), .read = read##number, \
        .write = write##number                                                                               \
    }
const struct shore__family shore__olmo2 = OLMO(2);
const struct shore__family shore__olmo3 = OLMO(3);
