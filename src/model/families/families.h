/* Families of models: one description each. docs/adding.md says how another one is added. */
#ifndef SHORE_MODEL_FAMILIES_FAMILIES_H
#define SHORE_MODEL_FAMILIES_FAMILIES_H

#include "model/config_keys.h"
#include "model/config/keys.h"
#include "model/layer_table.h"
#include "model/model.h"

enum shore__where { SHORE__EMBEDDING, SHORE__LAYER, SHORE__HEAD };
enum shore__width {
    SHORE__WIDTH_ONE,
    SHORE__WIDTH_D,
    SHORE__WIDTH_FF,
    SHORE__WIDTH_Q,
    SHORE__WIDTH_KV,
    SHORE__WIDTH_QKV,
    SHORE__WIDTH_VOCAB,
    SHORE__WIDTH_POSITIONS
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
extern const struct shore__family shore__gpt2, shore__llama, shore__mistral, shore__qwen2;
/* The family of config.json's model_type; NULL: there is none. */
const struct shore__family *shore__family_of(const char *model_type);

/* ---- values of config.json ---- (the diagnostic keeps the first refusal) */

enum shore__act_fn shore__act_read(struct shore__keys *keys, const char *key, const char *absent);
const char *shore__act_name(enum shore__act_fn act);
/* Of a norm. The norm of a row of zeros divides by its root; values below FLT_MIN are flushed to zero. */
float shore__epsilon_read(struct shore__keys *keys, const char *key, double absent);
/* The shortest decimal number that is equal in fp32: the one that somebody wrote. */
json_t *shore__real_of(float value);

/* ---- what many families share ------------------------------------------------------------------------------------ */

/* Transformers' defaults that differ from family to family, for keys that are absent. */
struct shore__rotary_defaults {
    uint32_t n_kv_head; /* 0: as many as heads */
    uint32_t max_positions;
};
/* Reads the keys that families with rotary positions share, and the table of angles. Sets norm and gated. */
void shore__rotary_read(struct shore__keys *keys, struct shore__rotary_defaults absent, struct shore__arch *out);
void shore__rotary_write(const struct shore__arch *arch, json_t *config);
/* Refuses layers that differ: layer_types must say of each what the first kind of layer is. transformers takes a
 * Mistral with these keys for a Ministral, whose layers differ as the keys say. */
void shore__layers_attend_alike(struct shore__keys *keys, const struct shore__arch *arch);
/* Llama's tensors, and its layer: norm, attention, norm, gated product. */
#define SHORE__LLAMA_TENSORS 13u
#define SHORE__LLAMA_ROWS 11u
extern const struct shore__tensor_row shore__llama_tensors[SHORE__LLAMA_TENSORS];
extern const struct shore__layer_row shore__llama_layer[SHORE__LLAMA_ROWS];
#define SHORE__LIKE_LLAMA                                                                          \
    .prefix = "model.", .layers = "layers.", .rotary = true, SHORE__TENSORS(shore__llama_tensors), \
    SHORE__LAYER_TABLE(shore__llama_layer)
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

#endif
