/* Families of models: one description each. docs/adding.md says how another one is added. */
#ifndef SHORE_MODEL_FAMILIES_FAMILIES_H
#define SHORE_MODEL_FAMILIES_FAMILIES_H

#include "model/config/keys.h"
#include "model/config_keys.h"
#include "model/layer_table.h"
#include "model/model.h"

enum shore__where { SHORE__EMBEDDING, SHORE__LAYER, SHORE__EXPERT /* each of a layer's */, SHORE__HEAD };
enum shore__width {
    SHORE__WIDTH_ONE,
    SHORE__WIDTH_D,
    SHORE__WIDTH_FF,
    SHORE__WIDTH_Q,
    SHORE__WIDTH_KV,
    SHORE__WIDTH_QKV,
    SHORE__WIDTH_UP,
    SHORE__WIDTH_HEADS,
    SHORE__WIDTH_HEAD_DIM,
    SHORE__WIDTH_VOCAB,
    SHORE__WIDTH_POSITIONS,
    SHORE__WIDTH_EXPERTS,
    SHORE__WIDTH_EXPERT_FF,
    SHORE__WIDTH_EXPERT_UP
};

/* A tensor of a block. Its rows are those of its parts, in turn. */
struct shore__tensor_row {
    enum shore__where where;
    enum shore__role role;
    enum shore__width cols; /* ONE: a vector */
    bool transposed;        /* in the files */
    size_t flag;            /* offset of what the architecture must have; 0: nothing */
    struct {
        const char *name; /* behind the prefix; the head's table has none */
        enum shore__width rows;
    } parts[3];
};
#define SHORE__IF(flag) offsetof(struct shore__arch, flag)

struct shore__family {
    const char *model_type, *class;    /* of config.json; class: as an export has it */
    const char *prefix, *layers;       /* of tensors' names in files */
    const char *experts;               /* of those of experts, behind the layer's; NULL: there are none */
    bool stacked;                      /* files have one tensor of all experts of a layer */
    bool inputs_first;                 /* matrices of its layers are [in, out] in files: transformers' Conv1D */
    const struct shore__key_row *keys; /* of config.json, beside those that many families have */
    uint32_t nkeys;
    const struct shore__tensor_row *tensors;
    uint32_t ntensors;
    const struct shore__layer_row *layer;
    uint32_t nlayer;
    void (*read)(struct shore__keys *keys, struct shore__arch *out);
    void (*write)(const struct shore__arch *arch, json_t *config); /* what shore__arch_to_json() does not */
    bool rotary; /* positions are rotary, and config.json has the keys of Llama's that most families have */
};
#define SHORE__COUNT(array) (sizeof(array) / sizeof *(array))
#define SHORE__KEYS(rows) .keys = (rows), .nkeys = SHORE__COUNT(rows)
#define SHORE__TENSORS(rows) .tensors = (rows), .ntensors = SHORE__COUNT(rows)
#define SHORE__LAYER_TABLE(rows) .layer = (rows), .nlayer = SHORE__COUNT(rows)

/* All families; NULL ends the list. */
extern const struct shore__family *const shore__families[];
extern const struct shore__family shore__gpt2, shore__llama, shore__mistral, shore__ministral, shore__ministral3,
    shore__qwen2, shore__qwen3, shore__gemma2, shore__gemma3, shore__smollm3, shore__olmo2, shore__olmo3, shore__phi3;
extern const struct shore__family shore__olmoe, shore__qwen3_moe, shore__gpt_oss;
/* The family of config.json's model_type; NULL: there is none. */
const struct shore__family *shore__family_of(const char *model_type);

/* ---- values of config.json ---- (the diagnostic keeps the first refusal) */

enum shore__act_fn shore__act_read(struct shore__keys *keys, const char *key, const char *absent);
const char *shore__act_name(enum shore__act_fn act);
/* Of a norm. The norm of a row of zeros divides by its root; values below FLT_MIN are flushed to zero. */
float shore__epsilon_read(struct shore__keys *keys, const char *key, double absent);

/* ---- what many families share ------------------------------------------------------------------------------------ */

/* Transformers' defaults that differ from family to family, for keys that are absent. */
struct shore__rotary_defaults {
    uint32_t sizes[5];  /* layers, width, heads, width of the gated product, vocabulary */
    uint32_t n_kv_head; /* 0: as many as heads */
    uint32_t max_positions;
    uint32_t head_dim; /* 0: hidden_size over the heads */
    double eps, theta; /* 0: 1e-6; 10,000 */
    bool tied;
    uint32_t pad;        /* 1 + a token; 0: none */
    const char *act_key; /* NULL: hidden_act, and silu */
    const char *act;
    double *part;                /* see struct shore__rope_rules */
    uint32_t original_positions; /* 0: max_position_embeddings */
    bool query_scales;
    bool reads_rope; /* the family reads the angles itself */
};
/* Reads the keys that families with rotary positions share, and the table of angles. Sets norm and gated. */
void shore__rotary_read(struct shore__keys *keys, struct shore__rotary_defaults absent, struct shore__arch *out);
void shore__rotary_write(const struct shore__arch *arch, json_t *config);
/* Refuses layers that differ: layer_types must say of each what the first kind of layer is. transformers takes a
 * Mistral with these keys for a Ministral, whose layers differ as the keys say. */
void shore__layers_attend_alike(struct shore__keys *keys, const struct shore__arch *arch);
/* Reads sliding_window; null means none. absent: transformers' default for an absent key; 0: none. */
uint32_t shore__window_read(struct shore__keys *keys, uint32_t absent);
void shore__window_write(uint32_t window, json_t *config);
/* Reads layer_types: layers whose queries see all keys are of kinds[0], the others of kinds[1], which is the same with
 * a window. Where it is absent, each nth layer sees all keys; nth 0: all of them. window 0: there is none. */
void shore__layer_types_read(struct shore__keys *keys, uint32_t window, uint32_t nth, struct shore__arch *out);
void shore__layer_types_write(const struct shore__arch *arch, json_t *config);
/* Llama's tensors, and its layer: norm, attention, norm, gated product. */
#define SHORE__LLAMA_TENSORS 13u
#define SHORE__LLAMA_ROWS 11u
extern const struct shore__tensor_row shore__llama_tensors[SHORE__LLAMA_TENSORS];
extern const struct shore__layer_row shore__llama_layer[SHORE__LLAMA_ROWS];
#define SHORE__LLAMA_NAMES .prefix = "model.", .layers = "layers.", .rotary = true
#define SHORE__LIKE_LLAMA \
    SHORE__LLAMA_NAMES, SHORE__TENSORS(shore__llama_tensors), SHORE__LAYER_TABLE(shore__llama_layer)
#define SHORE__QKV_PARTS(what)                                                                   \
    {                                                                                            \
        {"self_attn.q_proj." what, SHORE__WIDTH_Q}, {"self_attn.k_proj." what, SHORE__WIDTH_KV}, \
            {"self_attn.v_proj." what, SHORE__WIDTH_KV},                                         \
    }
#define SHORE__UP_PARTS(what)                       \
    {                                               \
        {"mlp.gate_proj." what, SHORE__WIDTH_FF}, { \
            "mlp.up_proj." what, SHORE__WIDTH_FF    \
        }                                           \
    }
/* Parts of such lists: tensors of one part. */
#define SHORE__MATRIX_ROW(role, cols, transposed, name, rows)              \
    {                                                                      \
        SHORE__LAYER, SHORE__##role, SHORE__WIDTH_##cols, transposed, 0, { \
            { name, SHORE__WIDTH_##rows }                                  \
        }                                                                  \
    }
#define SHORE__BIAS_ROW(role, flag, name)                                        \
    {                                                                            \
        SHORE__LAYER, SHORE__##role, SHORE__WIDTH_ONE, false, SHORE__IF(flag), { \
            { name, SHORE__WIDTH_D }                                             \
        }                                                                        \
    }
#define SHORE__GAIN_ROW(role, name)                                \
    {                                                              \
        SHORE__LAYER, SHORE__##role, SHORE__WIDTH_ONE, false, 0, { \
            { name ".weight", SHORE__WIDTH_D }                     \
        }                                                          \
    }
/* Gains of queries and of keys; of each head, or of all (Q, KV). */
#define SHORE__HEAD_GAIN_ROW(queries, keys)                           \
    {                                                                 \
        SHORE__LAYER, SHORE__HEAD_GAIN, SHORE__WIDTH_ONE, false, 0, { \
            {"self_attn.q_norm.weight", SHORE__WIDTH_##queries}, {    \
                "self_attn.k_norm.weight", SHORE__WIDTH_##keys        \
            }                                                         \
        }                                                             \
    }
#define SHORE__LLAMA_EMBEDDING                                            \
    {                                                                     \
        SHORE__EMBEDDING, SHORE__TOKEN_TABLE, SHORE__WIDTH_D, false, 0, { \
            { "embed_tokens.weight", SHORE__WIDTH_VOCAB }                 \
        }                                                                 \
    }
#define SHORE__LLAMA_ATTENTION                                                                                \
    {SHORE__LAYER, SHORE__QKV_W, SHORE__WIDTH_D, false, 0, SHORE__QKV_PARTS("weight")},                       \
        {SHORE__LAYER, SHORE__QKV_B, SHORE__WIDTH_ONE, false, SHORE__IF(qkv_bias), SHORE__QKV_PARTS("bias")}, \
        SHORE__MATRIX_ROW(OUT_W, Q, false, "self_attn.o_proj.weight", D),                                     \
        SHORE__BIAS_ROW(OUT_B, out_bias, "self_attn.o_proj.bias")
#define SHORE__LLAMA_MLP                                                                                    \
    {SHORE__LAYER, SHORE__UP_W, SHORE__WIDTH_D, false, 0, SHORE__UP_PARTS("weight")},                       \
        {SHORE__LAYER, SHORE__UP_B, SHORE__WIDTH_ONE, false, SHORE__IF(mlp_bias), SHORE__UP_PARTS("bias")}, \
        SHORE__MATRIX_ROW(DOWN_W, D, true, "mlp.down_proj.weight", FF),                                     \
        SHORE__BIAS_ROW(DOWN_B, mlp_bias, "mlp.down_proj.bias")
#define SHORE__LLAMA_HEAD                                                                                   \
    {SHORE__HEAD, SHORE__HEAD_TABLE, SHORE__WIDTH_D, false, 0, {{"lm_head.weight", SHORE__WIDTH_VOCAB}}}, { \
        SHORE__HEAD, SHORE__NORMF_GAIN, SHORE__WIDTH_ONE, false, 0, {                                       \
            { "norm.weight", SHORE__WIDTH_D }                                                               \
        }                                                                                                   \
    }
/* Rows before attention, and behind it up to the norm of the layer's second half. */
#define SHORE__LLAMA_QKV_ROWS                                                                         \
    SHORE__OP_ROW(NORM, IN, NORM1, .aux = SHORE__STATS1, .weight = SHORE__NORM1_GAIN, .cheap = true), \
        SHORE__OP_ROW(LINEAR, NORM1, QKV, .weight = SHORE__QKV_W, .bias = SHORE__QKV_B)
#define SHORE__LLAMA_MID_ROWS                                                                                \
    SHORE__OP_ROW(LINEAR, ATTN, MID, .weight = SHORE__OUT_W, .bias = SHORE__OUT_B), SHORE__ADD_ROW(IN, MID), \
        SHORE__OP_ROW(NORM, MID, NORM2, .aux = SHORE__STATS2, .weight = SHORE__NORM2_GAIN, .cheap = true)
/* Rows of attention over queries and keys that are normed. */
#define SHORE__NORMED_ATTENTION_ROWS                                                                           \
    SHORE__OP_ROW(HEAD_NORM, QKV, HEADS, .aux = SHORE__HEAD_STATS, .weight = SHORE__HEAD_GAIN, .cheap = true), \
        SHORE__OP_ROW(ROPE, HEADS, HEADS, .cheap = true), SHORE__OP_ROW(ATTENTION, HEADS, ATTN, .aux = SHORE__LSE)
/* Rows of a gated product. */
#define SHORE__LLAMA_MLP_ROWS(in, out)                                         \
    SHORE__OP_ROW(LINEAR, in, UP, .weight = SHORE__UP_W, .bias = SHORE__UP_B), \
        SHORE__OP_ROW(ACT, UP, ACT, .cheap = true),                            \
        SHORE__OP_ROW(LINEAR, ACT, out, .weight = SHORE__DOWN_W, .bias = SHORE__DOWN_B, .input_major = true)

#endif
