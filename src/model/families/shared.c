/* What many families share. */
#include "model/families/families.h"

#include <float.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "model/config/rope.h"

/* ---- values of config.json --------------------------------------------------------------------------------------- */

enum shore__act_fn shore__act_read(struct shore__keys *r, const char *key, const char *absent) {
    const char *f = shore__keys_string(r, key, absent);
    if (!strcmp(f, "gelu_new") || !strcmp(f, "gelu_pytorch_tanh")) return SHORE__GELU_TANH;
    if (!strcmp(f, "gelu")) return SHORE__GELU_ERF;
    if (!strcmp(f, "relu")) return SHORE__RELU;
    if (!strcmp(f, "silu") || !strcmp(f, "swish")) return SHORE__SILU;
    shore__keys_refuse(r, key, "only gelu_new, gelu_pytorch_tanh, gelu, relu and silu are known");
    return SHORE__SILU;
}

const char *shore__act_name(enum shore__act_fn act) {
    static const char *const names[] = {"gelu_new", "gelu", "relu", "silu", "silu"};
    return names[act];
}

float shore__epsilon_read(struct shore__keys *r, const char *key, double absent) {
    return (float)shore__keys_number(r, key, absent, FLT_MIN, 1);
}

/* ---- rotary families --------------------------------------------------------------------------------------------- */

/* Resolves padding_idx as nn.Embedding does: a negative index counts from the end. */
static int64_t padding(struct shore__keys *r, uint32_t absent, uint32_t vocab) {
    const json_t *v = json_object_get(r->object, "pad_token_id");
    if (!v || json_is_null(v)) return v ? -1 : (int64_t)absent - 1;
    int64_t id = json_integer_value(v);
    if (!json_is_integer(v) || id >= vocab || id < -(int64_t)vocab) {
        char why[100];
        snprintf(why, sizeof why, "a token of the vocabulary is needed, below \"vocab_size\" (%u), or null", vocab);
        shore__keys_refuse(r, "pad_token_id", why);
        return -1;
    }
    return id < 0 ? id + vocab : id;
}

void shore__rotary_read(struct shore__keys *r, struct shore__rotary_defaults absent, struct shore__arch *a) {
    a->n_layer = shore__keys_count(r, "num_hidden_layers", absent.sizes[0], SHORE__LAYERS_MOST);
    a->d_model = shore__keys_count(r, "hidden_size", absent.sizes[1], 1 << 18);
    a->n_head = shore__keys_count(r, "num_attention_heads", absent.sizes[2], 4096);
    /* null means one for each head */
    bool stands = json_object_get(r->object, "num_key_value_heads") || !absent.n_kv_head;
    a->n_kv_head = shore__keys_count(r, "num_key_value_heads", stands ? a->n_head : absent.n_kv_head, 4096);
    a->d_ff = shore__keys_count(r, "intermediate_size", absent.sizes[3], 1 << 20);
    a->vocab = shore__keys_count(r, "vocab_size", absent.sizes[4], 1 << 24);
    a->padding = padding(r, absent.pad, a->vocab);
    a->max_positions = shore__keys_count(r, "max_position_embeddings", absent.max_positions, 1 << 24);
    a->norm = SHORE__RMS_NORM;
    a->norm_eps = shore__epsilon_read(r, "rms_norm_eps", absent.eps ? absent.eps : 1e-6);
    a->act = shore__act_read(r, absent.act_key ? absent.act_key : "hidden_act", absent.act ? absent.act : "silu");
    a->gated = true;
    a->tied = shore__keys_flag(r, "tie_word_embeddings", absent.tied);
    a->init_std = (float)shore__keys_number(r, "initializer_range", 0.02, 0, 10);
    a->has_dropout = shore__keys_number(r, "attention_dropout", 0, 0, 1) > 0;
    if (!r->rc && !shore__keys_given(r, "head_dim") && !absent.head_dim && a->d_model % a->n_head)
        shore__keys_refuse(r, "num_attention_heads", "hidden_size must be a multiple of it unless head_dim is given");
    uint32_t shared = a->d_model / a->n_head ? a->d_model / a->n_head : 1;
    a->head_dim = shore__keys_count(r, "head_dim", absent.head_dim ? absent.head_dim : shared, 4096);
    a->rotary_dim = a->head_dim;
    if (!r->rc && a->n_head % a->n_kv_head)
        shore__keys_refuse(r, "num_key_value_heads", "num_attention_heads must be a multiple of it");
    if (!r->rc && a->head_dim % 2) shore__keys_refuse(r, "head_dim", "rotary positions need an even one");
    const struct shore__rope_rules rules = {absent.theta ? absent.theta : 10000,
                                            a->max_positions,
                                            a->head_dim,
                                            absent.part,
                                            absent.query_scales,
                                            absent.original_positions,
                                            NULL};
    if (!absent.reads_rope) shore__rope_read(r, &rules, &a->rope[0]);
}

void shore__rotary_write(const struct shore__arch *a, json_t *j) {
    json_object_set_new(j, "pad_token_id", a->padding >= 0 ? json_integer(a->padding) : json_null());
    json_object_set_new(j, "num_hidden_layers", json_integer(a->n_layer));
    json_object_set_new(j, "hidden_size", json_integer(a->d_model));
    json_object_set_new(j, "num_attention_heads", json_integer(a->n_head));
    json_object_set_new(j, "num_key_value_heads", json_integer(a->n_kv_head));
    json_object_set_new(j, "head_dim", json_integer(a->head_dim));
    json_object_set_new(j, "intermediate_size", json_integer(a->d_ff));
    json_object_set_new(j, "max_position_embeddings", json_integer(a->max_positions));
    json_object_set_new(j, "rms_norm_eps", shore__real_of(a->norm_eps));
    json_object_set_new(j, "hidden_act", json_string(shore__act_name(a->act)));
    shore__rope_write(&a->rope[0], j);
}

void shore__layers_attend_alike(struct shore__keys *r, const struct shore__arch *a) {
    if (!shore__keys_given(r, "layer_types")) return;
    const json_t *types = json_object_get(r->object, "layer_types"), *type;
    const char *kind = a->kinds[0].window ? "sliding_attention" : "full_attention";
    bool alike = json_is_array(types);
    size_t i;
    json_array_foreach(types, i, type) alike &= json_is_string(type) && !strcmp(json_string_value(type), kind);
    if (alike) return;
    shore__keys_refuse(r, "layer_types",
                       a->kinds[0].window
                           ? "only sliding_attention in every layer is supported where sliding_window is given"
                           : "only full_attention in every layer is supported");
}

uint32_t shore__window_read(struct shore__keys *r, uint32_t absent) {
    if (!json_object_get(r->object, "sliding_window")) return absent;
    return shore__keys_given(r, "sliding_window") ? shore__keys_count(r, "sliding_window", 0, INT_MAX) : 0;
}

void shore__window_write(uint32_t window, json_t *j) {
    json_object_set_new(j, "sliding_window", window ? json_integer(window) : json_null());
}

void shore__layer_types_read(struct shore__keys *r, uint32_t window, uint32_t nth, struct shore__arch *a) {
    const json_t *types = json_object_get(r->object, "layer_types");
    bool given = types && !json_is_null(types), windowed = false;
    a->kinds[1] = a->kinds[0];
    a->kinds[1].window = window;
    if (given && (!json_is_array(types) || json_array_size(types) != a->n_layer))
        shore__keys_refuse(r, "layer_types", "a list with one entry for each layer is needed");
    for (uint32_t i = 0; !r->rc && i < a->n_layer; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        a->kind_of[i] = given ? type && !strcmp(type, "sliding_attention") : nth && (i + 1) % nth != 0;
        windowed |= a->kind_of[i] == 1;
        if (given && !a->kind_of[i] && (!type || strcmp(type, "full_attention") != 0))
            shore__keys_refuse(r, "layer_types", "only full_attention and sliding_attention are supported");
    }
    if (windowed && !window && !r->rc) shore__keys_refuse(r, "sliding_window", "layers of sliding_attention need one");
}

void shore__layer_types_write(const struct shore__arch *a, json_t *j) {
    json_t *types = json_array();
    for (uint32_t i = 0; i < a->n_layer; i++)
        json_array_append_new(types, json_string(a->kind_of[i] ? "sliding_attention" : "full_attention"));
    json_object_set_new(j, "layer_types", types);
}
