/* SmolLM 3: Llama with layers whose positions are not rotated. */
#include "model/families/families.h"

static const struct shore__key_row keys[] = {
    {SHORE__KEY_READ, "attention_bias mlp_bias no_rope_layers no_rope_layer_interval"},
    {SHORE__KEY_FALSE, "use_sliding_window"},
    /* Of layers that use_sliding_window, which is refused, would give a window. */
    {SHORE__KEY_IDLE, "sliding_window max_window_layers"},
};

static void read(struct shore__keys *r, struct shore__arch *a) {
    const struct shore__rotary_defaults absent = {.sizes = {36, 2048, 16, 11008, 128256},
                                                  .n_kv_head = 4,
                                                  .max_positions = 32768,
                                                  .theta = 2e6,
                                                  .tied = true,
                                                  .pad = 1 + 128004};
    shore__rotary_read(r, absent, a);
    a->qkv_bias = a->out_bias = shore__keys_flag(r, "attention_bias", false);
    a->mlp_bias = shore__keys_flag(r, "mlp_bias", false);
    shore__layers_attend_alike(r, a);
    a->kinds[1] = a->kinds[0];
    a->kinds[1].unrotated = true;
    uint32_t interval = shore__keys_count(r, "no_rope_layer_interval", 4, SHORE__LAYERS_MOST);
    const json_t *list = json_object_get(r->object, "no_rope_layers");
    bool given = shore__keys_given(r, "no_rope_layers");
    for (uint32_t i = 0; !r->rc && i < a->n_layer; i++) {
        const json_t *rotated = json_array_get(list, i);
        a->kind_of[i] = given ? json_integer_value(rotated) == 0 : (i + 1) % interval == 0;
        if (given && !json_is_integer(rotated)) /* also one that a short list lacks */
            shore__keys_refuse(r, "no_rope_layers", "a list with 1 or 0 for each layer is needed");
    }
}

static void write(const struct shore__arch *a, json_t *j) {
    json_t *rotated = json_array();
    for (uint32_t i = 0; i < a->n_layer; i++)
        json_array_append_new(rotated, json_integer(!a->kind_of[i]));
    json_object_set_new(j, "no_rope_layers", rotated);
    json_object_set_new(j, "attention_bias", json_boolean(a->qkv_bias));
    json_object_set_new(j, "mlp_bias", json_boolean(a->mlp_bias));
    json_object_set_new(j, "use_sliding_window", json_false());
}

const struct shore__family shore__smollm3 = {
    .model_type = "smollm3",
    .class = "SmolLM3ForCausalLM",
    SHORE__LIKE_LLAMA,
    SHORE__KEYS(keys),
    .read = read,
    .write = write,
};
