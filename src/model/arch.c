#include <float.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "model/config_keys.h"
#include "model/model.h"
#include "model/quantization.h"
#include "model/rope.h"

/* The norm of a row of zeros divides by the root of epsilon; smaller values are flushed to zero. */
#define EPSILON_LEAST FLT_MIN

/* -1: none. It may lie beyond the vocabulary, as transformers' own default does for a small vocabulary. */
static int64_t token_id(struct shore__keys *r, const char *key, const json_t *v) {
    bool number = json_is_integer(v) && json_integer_value(v) <= INT32_MAX;
    if (v && !json_is_null(v) && !number) shore__keys_refuse(r, key, "a token is needed, by its number, or null");
    return json_is_integer(v) && json_integer_value(v) >= 0 ? json_integer_value(v) : -1;
}

static bool ends_text(const struct shore__arch *a, int64_t id) {
    for (uint32_t i = 0; i < a->neos; i++)
        if (a->eos[i] == id) return true;
    return false;
}

static void end_tokens(struct shore__keys *r, struct shore__arch *a) {
    const json_t *v = json_object_get(r->object, "eos_token_id");
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; !r->rc && i < n; i++) {
        int64_t id = token_id(r, "eos_token_id", json_is_array(v) ? json_array_get(v, i) : v);
        if (id < 0 || ends_text(a, id)) continue;
        if (a->neos == SHORE__EOS_MOST)
            shore__keys_refuse(r, "eos_token_id", "at most 16 tokens that end a text are supported");
        else
            a->eos[a->neos++] = id;
    }
}

static enum shore__act_fn activation(struct shore__keys *r, const char *key, const char *fallback) {
    const char *f = shore__keys_string(r, key, fallback);
    if (!strcmp(f, "gelu_new") || !strcmp(f, "gelu_pytorch_tanh")) return SHORE__GELU_TANH;
    if (!strcmp(f, "gelu")) return SHORE__GELU_ERF;
    if (!strcmp(f, "relu")) return SHORE__RELU;
    if (!strcmp(f, "silu") || !strcmp(f, "swish")) return SHORE__SILU;
    shore__keys_refuse(r, key, "only gelu_new, gelu_pytorch_tanh, gelu, relu and silu are known");
    return SHORE__SILU;
}

/* transformers also accepts the other families' names for GPT-2's sizes, and prefers those. */
static const char *named(const struct shore__keys *r, const char *general, const char *own) {
    return shore__keys_given(r, general) ? general : own;
}

static void gpt2(struct shore__keys *r, struct shore__arch *a) {
    const char *heads = named(r, "num_attention_heads", "n_head");
    const char *positions = named(r, "max_position_embeddings", "n_positions");
    a->model_type = "gpt2";
    a->n_layer = shore__keys_count(r, named(r, "num_hidden_layers", "n_layer"), 12, 4096);
    a->d_model = shore__keys_count(r, named(r, "hidden_size", "n_embd"), 768, 1 << 18);
    a->n_head = shore__keys_count(r, heads, 12, 4096);
    a->n_kv_head = a->n_head;
    a->vocab = shore__keys_count(r, "vocab_size", 50257, 1 << 24);
    a->max_positions = shore__keys_count(r, positions, shore__keys_count(r, "n_ctx", 1024, 1 << 24), 1 << 24);
    a->d_ff = shore__keys_count(r, "n_inner", 4 * (int64_t)a->d_model, 1 << 20);
    a->norm_eps = (float)shore__keys_number(r, "layer_norm_epsilon", 1e-5, EPSILON_LEAST, 1);
    a->act = activation(r, "activation_function", "gelu_new");
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

/* Resolves padding_idx as nn.Embedding does: a negative index counts from the end. */
static int64_t padding(struct shore__keys *r, uint32_t vocab) {
    if (!shore__keys_given(r, "pad_token_id")) return -1;
    const json_t *v = json_object_get(r->object, "pad_token_id");
    int64_t id = json_integer_value(v);
    if (!json_is_integer(v) || id >= vocab || id < -(int64_t)vocab) {
        char why[100];
        snprintf(why, sizeof why, "a token of the vocabulary is needed, below \"vocab_size\" (%u), or null", vocab);
        shore__keys_refuse(r, "pad_token_id", why);
        return -1;
    }
    return id < 0 ? id + vocab : id;
}

/* Refuses layers that differ. transformers takes a Mistral with these keys for a Ministral, whose layers differ as the
 * keys say. */
static void layers_attend_alike(struct shore__keys *r, const struct shore__arch *a) {
    if (!shore__keys_given(r, "layer_types")) return;
    const json_t *types = json_object_get(r->object, "layer_types"), *type;
    const char *kind = a->window ? "sliding_attention" : "full_attention";
    bool alike = json_is_array(types);
    size_t i;
    json_array_foreach(types, i, type) alike &= json_is_string(type) && !strcmp(json_string_value(type), kind);
    if (alike) return;
    shore__keys_refuse(r, "layer_types",
                       a->window ? "only sliding_attention in every layer is supported where sliding_window is given"
                                 : "only full_attention in every layer is supported");
}

static void llama_family(struct shore__keys *r, const char *type, struct shore__arch *a) {
    bool mistral = !strcmp(type, "mistral"), qwen2 = !strcmp(type, "qwen2");
    a->model_type = mistral ? "mistral" : qwen2 ? "qwen2" : "llama";
    a->n_layer = shore__keys_count(r, "num_hidden_layers", 32, 4096);
    a->d_model = shore__keys_count(r, "hidden_size", 4096, 1 << 18);
    a->n_head = shore__keys_count(r, "num_attention_heads", 32, 4096);
    /* transformers' default for an absent key; null means one for each head */
    uint32_t absent = mistral ? 8 : qwen2 ? 32 : a->n_head;
    bool stands = json_object_get(r->object, "num_key_value_heads");
    a->n_kv_head = shore__keys_count(r, "num_key_value_heads", stands ? a->n_head : absent, 4096);
    a->d_ff = shore__keys_count(r, "intermediate_size", -1, 1 << 20);
    a->vocab = shore__keys_count(r, "vocab_size", -1, 1 << 24);
    a->padding = padding(r, a->vocab);
    uint32_t positions = mistral ? 131072 : qwen2 ? 32768 : 2048;
    a->max_positions = shore__keys_count(r, "max_position_embeddings", positions, 1 << 24);
    a->rms_norm = true;
    a->norm_eps = (float)shore__keys_number(r, "rms_norm_eps", 1e-6, EPSILON_LEAST, 1);
    a->act = activation(r, "hidden_act", "silu");
    a->gated = true;
    a->tied = shore__keys_flag(r, "tie_word_embeddings", false);
    a->init_std = (float)shore__keys_number(r, "initializer_range", 0.02, 0, 10);
    a->has_dropout = shore__keys_number(r, "attention_dropout", 0, 0, 1) > 0;
    a->qkv_bias = qwen2;
    if (!qwen2 && !mistral) {
        a->qkv_bias = a->out_bias = shore__keys_flag(r, "attention_bias", false);
        a->mlp_bias = shore__keys_flag(r, "mlp_bias", false);
    }
    /* transformers' default for an absent key; null means none */
    if (mistral && !json_object_get(r->object, "sliding_window"))
        a->window = 4096;
    else if (mistral && shore__keys_given(r, "sliding_window"))
        a->window = shore__keys_count(r, "sliding_window", 4096, INT_MAX);
    layers_attend_alike(r, a);
    if (!r->rc && !shore__keys_given(r, "head_dim") && a->d_model % a->n_head)
        shore__keys_refuse(r, "num_attention_heads", "hidden_size must be a multiple of it unless head_dim is given");
    a->head_dim = shore__keys_count(r, "head_dim", a->d_model / a->n_head ? a->d_model / a->n_head : 1, 4096);
    if (!r->rc && a->n_head % a->n_kv_head)
        shore__keys_refuse(r, "num_key_value_heads", "num_attention_heads must be a multiple of it");
    if (!r->rc && a->head_dim % 2) shore__keys_refuse(r, "head_dim", "rotary positions need an even one");
    shore__rope_read(r, a->max_positions, &a->rope);
}

int shore__arch_from_json(const json_t *config, const char *name, struct shore__arch *out, struct shore_diag *diag) {
    struct shore__keys r = {config, name, diag, 0};
    *out = (struct shore__arch){.padding = -1};
    out->bos = token_id(&r, "bos_token_id", json_object_get(config, "bos_token_id"));
    end_tokens(&r, out);
    const char *type = shore__keys_string(&r, "model_type", NULL);
    const json_t *class = json_array_get(json_object_get(config, "architectures"), 0);
    if (json_is_string(class)) {
        const char *c = json_string_value(class);
        if (!strstr(c, "LMHeadModel") && !strstr(c, "ForCausalLM"))
            shore__keys_refuse(&r, "architectures",
                               "only language models (...LMHeadModel, ...ForCausalLM) are supported");
        if (!type && !strncmp(c, "GPT2", 4)) type = "gpt2";
        if (!type && !strncmp(c, "Llama", 5)) type = "llama";
    }
    shore__quantization_read(&r, &out->quantization);
    if (!r.rc && type && !strcmp(type, "gpt2"))
        gpt2(&r, out);
    else if (!r.rc && type && (!strcmp(type, "llama") || !strcmp(type, "mistral") || !strcmp(type, "qwen2")))
        llama_family(&r, type, out);
    else
        shore__keys_refuse(&r, "model_type",
                           "only gpt2, llama, mistral and qwen2 are supported; from Python, any model trains");
    if (!r.rc) shore__config_keys_check(&r, out->model_type);
    return r.rc;
}

int shore__arch_add_ends(const json_t *generation, const char *name, struct shore__arch *a, struct shore_diag *diag) {
    struct shore__keys r = {generation, name, diag, 0};
    if (!shore__keys_flag(&r, "_from_model_config", false)) end_tokens(&r, a);
    return r.rc;
}

json_t *shore__arch_eos_to_json(const struct shore__arch *a) {
    if (a->neos == 0) return json_null();
    if (a->neos == 1) return json_integer(a->eos[0]);
    json_t *list = json_array();
    for (uint32_t i = 0; i < a->neos; i++)
        json_array_append_new(list, json_integer(a->eos[i]));
    return list;
}

/* The shortest decimal number that is equal in fp32: the one that somebody wrote. */
static json_t *real_of(float value) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if ((float)strtod(text, NULL) == value) break;
    }
    return json_real(strtod(text, NULL));
}

json_t *shore__arch_to_json(const struct shore__arch *a) {
    json_t *j = json_object();
    if (!j) return NULL;
    bool gpt = !strcmp(a->model_type, "gpt2");
    static const char *const acts[] = {"gelu_new", "gelu", "relu", "silu"};
    const char *class = gpt                                 ? "GPT2LMHeadModel"
                        : !strcmp(a->model_type, "mistral") ? "MistralForCausalLM"
                        : !strcmp(a->model_type, "qwen2")   ? "Qwen2ForCausalLM"
                                                            : "LlamaForCausalLM";
#define PUT(key, value) json_object_set_new(j, key, value)
    PUT("architectures", json_pack("[s]", class));
    PUT("model_type", json_string(a->model_type));
    PUT("vocab_size", json_integer(a->vocab));
    PUT("tie_word_embeddings", json_boolean(a->tied));
    PUT("initializer_range", real_of(a->init_std));
    /* null, because transformers replaces an absent key by ids of its own */
    PUT("bos_token_id", a->bos >= 0 ? json_integer(a->bos) : json_null());
    PUT("eos_token_id", shore__arch_eos_to_json(a));
    if (gpt) {
        PUT("n_layer", json_integer(a->n_layer));
        PUT("n_embd", json_integer(a->d_model));
        PUT("n_head", json_integer(a->n_head));
        PUT("n_inner", json_integer(a->d_ff));
        PUT("n_positions", json_integer(a->max_positions));
        PUT("n_ctx", json_integer(a->max_positions));
        PUT("layer_norm_epsilon", real_of(a->norm_eps));
        PUT("activation_function", json_string(acts[a->act]));
        if (a->has_dropout) return j; /* the configuration says it, or leaves it to transformers */
        PUT("resid_pdrop", json_real(0));
        PUT("embd_pdrop", json_real(0));
        PUT("attn_pdrop", json_real(0));
        return j;
    }
    PUT("pad_token_id", a->padding >= 0 ? json_integer(a->padding) : json_null());
    PUT("num_hidden_layers", json_integer(a->n_layer));
    PUT("hidden_size", json_integer(a->d_model));
    PUT("num_attention_heads", json_integer(a->n_head));
    PUT("num_key_value_heads", json_integer(a->n_kv_head));
    PUT("head_dim", json_integer(a->head_dim));
    PUT("intermediate_size", json_integer(a->d_ff));
    PUT("max_position_embeddings", json_integer(a->max_positions));
    PUT("rms_norm_eps", real_of(a->norm_eps));
    PUT("hidden_act", json_string(acts[a->act]));
    shore__rope_write(&a->rope, j);
    if (!strcmp(a->model_type, "llama")) {
        PUT("attention_bias", json_boolean(a->qkv_bias));
        PUT("mlp_bias", json_boolean(a->mlp_bias));
    } else if (!strcmp(a->model_type, "mistral")) {
        PUT("sliding_window", a->window ? json_integer(a->window) : json_null());
    } else {
        PUT("use_sliding_window", json_false());
    }
#undef PUT
    return j;
}

static const char *const preset_names[] = {"gpt2-124m",  "gpt2-350m",   "gpt2-774m",  "gpt2-1.5b",
                                           "gpt2-tiny",  "gpt2-small",  "llama-tiny", "llama3-8b",
                                           "llama3-70b", "llama3-405b", NULL};

const char *const *shore__arch_presets(void) {
    return preset_names;
}

int shore__arch_preset(const char *name, uint32_t vocab, struct shore__arch *out, struct shore_diag *diag) {
    static const struct {
        uint32_t n_layer, d_model, n_head, n_kv_head, d_ff, positions, vocab;
    } shape[] = {{12, 768, 12, 12, 3072, 1024, 50257},   {24, 1024, 16, 16, 4096, 1024, 50257},
                 {36, 1280, 20, 20, 5120, 1024, 50257},  {48, 1600, 25, 25, 6400, 1024, 50257},
                 {6, 256, 8, 8, 1024, 512, 257},         {8, 512, 8, 8, 2048, 512, 257},
                 {6, 256, 8, 4, 640, 1024, 257},         {32, 4096, 32, 8, 14336, 8192, 128256},
                 {80, 8192, 64, 8, 28672, 8192, 128256}, {126, 16384, 128, 8, 53248, 131072, 128256}};
    enum { BYTES = 257 };
    uint32_t i = 0;
    while (preset_names[i] && strcmp(preset_names[i], name))
        i++;
    if (!preset_names[i]) return shore__fail(diag, SHORE_EINPUT, "no model is named '%s'", name);
    bool llama = !strncmp(name, "llama", 5), published = shape[i].vocab > BYTES;
    /* published models keep their size; those for first tries take the tokenizer's */
    if (vocab < shape[i].vocab && published) vocab = shape[i].vocab;
    *out = (struct shore__arch){
        .model_type = llama ? "llama" : "gpt2",
        .n_layer = shape[i].n_layer,
        .d_model = shape[i].d_model,
        .n_head = shape[i].n_head,
        .n_kv_head = shape[i].n_kv_head,
        .head_dim = shape[i].d_model / shape[i].n_head,
        .d_ff = shape[i].d_ff,
        .vocab = vocab ? vocab : shape[i].vocab,
        .max_positions = shape[i].positions,
        .rms_norm = llama,
        .norm_eps = 1e-5f,
        .act = llama ? SHORE__SILU : SHORE__GELU_TANH,
        .gated = llama,
        .qkv_bias = !llama,
        .out_bias = !llama,
        .mlp_bias = !llama,
        .learned_positions = !llama,
        .rope = {.theta = llama && published ? 500000 : 10000, .factor = 1},
        .tied = !llama || !published,
        .init_std = 0.02f,
        .padding = -1,
        .bos = -1,
    };
    if (shape[i].positions > 8192) /* Llama 3.1 */
        out->rope = (struct shore__rope){.kind = SHORE__ROPE_LLAMA3,
                                         .theta = 500000,
                                         .factor = 8,
                                         .original_positions = 8192,
                                         .low_freq = 1,
                                         .high_freq = 4};
    return 0;
}
