/* Mistral: Llama with a window. */
#include <limits.h>

#include "model/families/families.h"

static const struct shore__key_row keys[] = {{SHORE__KEY_READ, "sliding_window"}};

static void read(struct shore__keys *r, struct shore__arch *a) {
    shore__rotary_read(r, (struct shore__rotary_defaults){.n_kv_head = 8, .max_positions = 131072}, a);
    /* transformers' default for an absent key; null means none */
    if (!json_object_get(r->object, "sliding_window"))
        a->kinds[0].window = 4096;
    else if (shore__keys_given(r, "sliding_window"))
        a->kinds[0].window = shore__keys_count(r, "sliding_window", 4096, INT_MAX);
    shore__layers_attend_alike(r, a);
}

static void write(const struct shore__arch *a, json_t *j) {
    json_object_set_new(j, "sliding_window", a->kinds[0].window ? json_integer(a->kinds[0].window) : json_null());
}

const struct shore__family shore__mistral = {
    .model_type = "mistral",
    .class = "MistralForCausalLM",
    SHORE__LIKE_LLAMA,
    SHORE__KEYS(keys),
    .read = read,
    .write = write,
};
