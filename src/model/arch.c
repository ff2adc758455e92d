#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "model/config/quantization.h"
#include "model/families/families.h"

struct shore__newer_name shore__newer_name(const char *name) {
    struct shore__newer_name newer;
    size_t within = strncmp(name, SHORE__TEXT_OLD, strlen(SHORE__TEXT_OLD)) ? 0 : strlen(SHORE__TEXT_OLD);
    size_t text = strncmp(name, SHORE__TEXT_PREFIX, strlen(SHORE__TEXT_PREFIX)) ? 0 : strlen(SHORE__TEXT_PREFIX);
    snprintf(newer.text, sizeof newer.text, "%s%s", within ? SHORE__TEXT_NEW : "", name + (within ? within : text));
    return newer;
}

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

/* The families' names, in a sentence that refuses another one. */
static void refuse_family(struct shore__keys *r) {
    char why[400] = "only ";
    for (const struct shore__family *const *f = shore__families; *f; f++)
        shore__append(why, sizeof why, "%s%s", f == shore__families ? "" : f[1] ? ", " : " and ", (*f)->model_type);
    shore__append(why, sizeof why, " are supported; from Python, any model trains");
    shore__keys_refuse(r, "model_type", why);
}

static const struct shore__family *family_of(struct shore__keys *r) {
    const char *type = shore__keys_string(r, "model_type", NULL);
    const json_t *class = json_array_get(json_object_get(r->object, "architectures"), 0);
    if (json_is_string(class)) {
        const char *c = json_string_value(class);
        if (!strstr(c, "LMHeadModel") && !strstr(c, "ForCausalLM"))
            shore__keys_refuse(
                r, "architectures",
                "only language models (...LMHeadModel, ...ForCausalLM) are supported; from Python, any model "
                "trains");
        if (!type && !strncmp(c, "GPT2", 4)) type = "gpt2";
        if (!type && !strncmp(c, "Llama", 5)) type = "llama";
    }
    const struct shore__family *family = !r->rc && type ? shore__family_of(type) : NULL;
    if (!family) refuse_family(r);
    return family;
}

/* Of multimodal models, the text is trained; what reads images stays as it is. */
static const char *const wrappers[] = {"gemma3", "mistral3", NULL};

/* Reads what stands beside text_config. */
static void read_wrapper(struct shore__keys *outer, struct shore__keys *text, struct shore__arch *a) {
    const char *type = shore__keys_string(outer, "model_type", "");
    const char *const *w = wrappers;
    while (*w && strcmp(*w, type) != 0)
        w++;
    if (!*w)
        shore__keys_refuse(outer, "model_type",
                           "of models with a text_config, only the text of gemma3 and mistral3 is supported; from "
                           "Python, any model trains");
    a->wrapper = *w;
    /* transformers 5 reads it here, and writes true where only the files say otherwise */
    bool tied = shore__keys_flag(outer, "tie_word_embeddings", a->tied);
    if (a->tied && !tied) shore__keys_refuse(outer, "tie_word_embeddings", "text_config says something else");
    a->tied = tied;
    if (a->logit_cap > 0) shore__keys_refuse(text, "final_logit_softcapping", "only null is supported in text_config");
    if (!a->neos) end_tokens(outer, a);
    if (a->bos < 0) a->bos = token_id(outer, "bos_token_id", json_object_get(outer->object, "bos_token_id"));
}

int shore__arch_from_json(const json_t *config, const char *name, struct shore__arch *out, struct shore_diag *diag) {
    const json_t *inner = json_object_get(config, "text_config");
    struct shore__keys outer = {config, name, diag, 0}, r = {json_is_object(inner) ? inner : config, name, diag, 0};
    *out = (struct shore__arch){.padding = -1};
    out->bos = token_id(&r, "bos_token_id", json_object_get(r.object, "bos_token_id"));
    end_tokens(&r, out);
    shore__quantization_read(&outer, &out->quantization);
    if (outer.rc) return outer.rc;
    const struct shore__family *family = family_of(&r);
    if (!family) return r.rc;
    out->model_type = family->model_type;
    family->read(&r, out);
    if (!r.rc) shore__config_keys_check(&r, family);
    if (!r.rc && inner) read_wrapper(&outer, &r, out);
    return r.rc ? r.rc : outer.rc;
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

json_t *shore__arch_to_json(const struct shore__arch *a) {
    const struct shore__family *family = shore__family_of(a->model_type);
    json_t *j = json_object();
    if (!j) return NULL;
    json_object_set_new(j, "architectures", json_pack("[s]", family->class));
    json_object_set_new(j, "model_type", json_string(a->model_type));
    json_object_set_new(j, "vocab_size", json_integer(a->vocab));
    json_object_set_new(j, "tie_word_embeddings", json_boolean(a->tied));
    json_object_set_new(j, "initializer_range", shore__real_of(a->init_std));
    /* null, because transformers replaces an absent key by ids of its own */
    json_object_set_new(j, "bos_token_id", a->bos >= 0 ? json_integer(a->bos) : json_null());
    json_object_set_new(j, "eos_token_id", shore__arch_eos_to_json(a));
    if (family->rotary) shore__rotary_write(a, j);
    family->write(a, j);
    return j;
}

static const char *const preset_names[] = {"gpt2-124m",  "gpt2-350m",  "gpt2-774m", "gpt2-1.5b",  "gpt2-tiny",
                                           "gpt2-small", "llama-tiny", "llama3-8b", "llama3-70b", "llama3-405b",
                                           "qwen3-0.6b", "qwen3-8b",   "gemma3-1b", "smollm3-3b", NULL};

/* The published sizes of families whose configurations say most of it. */
static const struct {
    const char *name, *config;
} described[] = {
    {"qwen3-0.6b",
     "{\"model_type\": \"qwen3\", \"vocab_size\": 151936, \"hidden_size\": 1024, \"intermediate_size\": 3072, "
     "\"num_hidden_layers\": 28, \"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"rope_theta\": 1e6, "
     "\"max_position_embeddings\": 40960, \"tie_word_embeddings\": true}"},
    {"qwen3-8b",
     "{\"model_type\": \"qwen3\", \"vocab_size\": 151936, \"hidden_size\": 4096, \"intermediate_size\": 12288, "
     "\"num_hidden_layers\": 36, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"rope_theta\": 1e6, "
     "\"max_position_embeddings\": 40960}"},
    {"gemma3-1b",
     "{\"model_type\": \"gemma3_text\", \"vocab_size\": 262144, \"hidden_size\": 1152, \"intermediate_size\": 6912, "
     "\"num_hidden_layers\": 26, \"num_attention_heads\": 4, \"num_key_value_heads\": 1, \"sliding_window\": 512, "
     "\"max_position_embeddings\": 32768, \"pad_token_id\": null}"},
    {"smollm3-3b",
     "{\"model_type\": \"smollm3\", \"vocab_size\": 128256, \"hidden_size\": 2048, \"intermediate_size\": 11008, "
     "\"num_hidden_layers\": 36, \"num_attention_heads\": 16, \"num_key_value_heads\": 4, \"rope_theta\": 5e6, "
     "\"max_position_embeddings\": 65536, \"pad_token_id\": null}"},
};

static int described_preset(const char *config, uint32_t vocab, struct shore__arch *out, struct shore_diag *diag) {
    json_t *object = json_loads(config, 0, NULL);
    int rc = object ? shore__arch_from_json(object, "preset", out, diag) : shore__out_of_memory(diag);
    json_decref(object);
    if (rc == 0 && vocab > out->vocab) out->vocab = vocab;
    return rc;
}

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
    for (size_t d = 0; d < sizeof described / sizeof *described; d++)
        if (strcmp(described[d].name, name) == 0) return described_preset(described[d].config, vocab, out, diag);
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
        .norm = llama ? SHORE__RMS_NORM : SHORE__LAYER_NORM,
        .norm_eps = 1e-5f,
        .act = llama ? SHORE__SILU : SHORE__GELU_TANH,
        .gated = llama,
        .qkv_bias = !llama,
        .out_bias = !llama,
        .mlp_bias = !llama,
        .learned_positions = !llama,
        .rope = {{.theta = llama && published ? 500000 : 10000, .factor = 1}},
        .tied = !llama || !published,
        .init_std = 0.02f,
        .padding = -1,
        .bos = -1,
    };
    if (shape[i].positions > 8192) /* Llama 3.1 */
        out->rope[0] = (struct shore__rope){.kind = SHORE__ROPE_LLAMA3,
                                            .theta = 500000,
                                            .factor = 8,
                                            .original_positions = 8192,
                                            .low_freq = 1,
                                            .high_freq = 4};
    return 0;
}
