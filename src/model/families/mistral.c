/* Mistral: Llama with a window. Ministral: with a window in some layers. Ministral 3: as Mistral, with yarn. */
#include "model/families/families.h"

static const struct shore__key_row keys[] = {{SHORE__KEY_READ, "sliding_window"}};

/* transformers' own. */
static const struct shore__rotary_defaults defaults = {
    .sizes = {32, 4096, 32, 14336, 32000}, .n_kv_head = 8, .max_positions = 131072};

static void read(struct shore__keys *r, struct shore__arch *a) {
    shore__rotary_read(r, defaults, a);
    a->kinds[0].window = shore__window_read(r, 4096);
    shore__layers_attend_alike(r, a);
}

static void write(const struct shore__arch *a, json_t *j) {
    shore__window_write(a->kinds[0].window, j);
}

const struct shore__family shore__mistral = {
    .model_type = "mistral",
    .class = "MistralForCausalLM",
    SHORE__LIKE_LLAMA,
    SHORE__KEYS(keys),
    .read = read,
    .write = write,
};

static void read_ministral(struct shore__keys *r, struct shore__arch *a) {
    shore__rotary_read(r, defaults, a);
    uint32_t of_some = shore__window_read(r, 4096);
    shore__layer_types_read(r, of_some, of_some ? UINT32_MAX : 0, a);
}

static void write_ministral(const struct shore__arch *a, json_t *j) {
    shore__window_write(a->kinds[1].window, j);
    shore__layer_types_write(a, j);
}

const struct shore__family shore__ministral = {
    .model_type = "ministral",
    .class = "MinistralForCausalLM",
    SHORE__LIKE_LLAMA,
    SHORE__KEYS(keys),
    .read = read_ministral,
    .write = write_ministral,
};

static void read_ministral3(struct shore__keys *r, struct shore__arch *a) {
    const struct shore__rotary_defaults absent = {.sizes = {34, 4096, 32, 14336, 131072},
                                                  .n_kv_head = 8,
                                                  .max_positions = 262144,
                                                  .head_dim = 128,
                                                  .eps = 1e-5,
                                                  .pad = 1 + 11,
                                                  .query_scales = true};
    shore__rotary_read(r, absent, a);
    if (!r->rc && !a->rope[0].query_beta && a->rope[0].kind != SHORE__ROPE_YARN)
        shore__keys_refuse(r, "rope_parameters", "yarn is needed, with llama_4_scaling_beta");
    a->kinds[0].window = shore__window_read(r, 0);
    shore__layers_attend_alike(r, a);
}

/* transformers 4 has no such models. */
static void write_ministral3(const struct shore__arch *a, json_t *j) {
    json_t *rope = json_object_get(j, "rope_scaling");
    json_object_set(rope, "rope_theta", json_object_get(j, "rope_theta"));
    json_object_set(j, "rope_parameters", rope);
    json_object_del(j, "rope_scaling");
    json_object_del(j, "rope_theta");
    write(a, j);
}

const struct shore__family shore__ministral3 = {
    .model_type = "ministral3",
    .class = "Ministral3ForCausalLM",
    SHORE__LIKE_LLAMA,
    SHORE__KEYS(keys),
    .read = read_ministral3,
    .write = write_ministral3,
};
