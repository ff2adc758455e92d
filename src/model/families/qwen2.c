/* Qwen2 and Qwen2.5: Llama with biases of queries, keys and values. */
#include "model/families/families.h"

static const struct shore__key_row keys[] = {
    {SHORE__KEY_FALSE, "use_sliding_window"},
    /* Of layers that use_sliding_window, which is refused, would give a window. */
    {SHORE__KEY_IDLE, "sliding_window max_window_layers"},
};

static void read(struct shore__keys *r, struct shore__arch *a) {
    shore__rotary_read(r,
                       (struct shore__rotary_defaults){
                           .sizes = {32, 4096, 32, 22016, 151936}, .n_kv_head = 32, .max_positions = 32768},
                       a);
    a->qkv_bias = true;
    shore__layers_attend_alike(r, a);
}

static void write(const struct shore__arch *a, json_t *j) {
    (void)a;
    json_object_set_new(j, "use_sliding_window", json_false());
}

const struct shore__family shore__qwen2 = {
    .model_type = "qwen2",
    .class = "Qwen2ForCausalLM",
    SHORE__LIKE_LLAMA,
    SHORE__KEYS(keys),
    .read = read,
    .write = write,
};
