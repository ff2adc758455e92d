/* What a model's directory holds is used, or provably does nothing, or is refused. */
#include <math.h>

#include "base/units.h"
#include "number/bf16.h"
#include "unit/run/support.h"

#define LLAMA                                                                                       \
    "\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 8, \"vocab_size\": 16, " \
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"intermediate_size\": 8"
#define GPT2                                                                                                        \
    "\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 8, \"n_head\": 2, \"vocab_size\": 16, \"n_positions\": " \
    "8, \"n_inner\": 8"
static const char *const tied_models[] = {"{" LLAMA ", \"tie_word_embeddings\": true}", "{" GPT2 "}"};

struct tensor {
    char name[96];
    const char *type; /* F32, BF16 or BOOL */
    uint64_t rank, shape[4];
    float values[16 * 16];
};
struct directory {
    const char *config;
    struct tensor tensors[40];
    size_t count;
};

static uint64_t elems(const struct tensor *t) {
    uint64_t n = 1;
    for (uint64_t i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

static struct tensor *add(struct directory *d, const char *name, uint64_t rank, uint64_t rows, uint64_t cols) {
    struct tensor *t = &d->tensors[d->count++];
    *t = (struct tensor){.type = "F32", .rank = rank, .shape = {rows, cols}};
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

/* All parameters of a model, with values that every type holds exactly. */
static struct directory *directory_of(const char *config) {
    static struct directory d;
    struct shore__model *m = model_of(config);
    d.config = config;
    d.count = 0;
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; t < m->blocks[b].ntensors; t++)
            for (uint32_t i = 0; i < m->blocks[b].tensors[t].nparts; i++) {
                const struct shore__model_tensor *ours = &m->blocks[b].tensors[t];
                const struct shore__part *p = &ours->parts[i];
                struct tensor *theirs = add(&d, p->name, ours->matrix ? 2 : 1, p->transposed ? ours->cols : p->rows,
                                            p->transposed ? p->rows : ours->cols);
                for (uint64_t k = 0; k < elems(theirs); k++)
                    theirs->values[k] = (float)((d.count * 31 + k * 7) % 64) / 64;
            }
    shore__model_free(m);
    return &d;
}

static struct tensor *named(struct directory *d, const char *end) {
    for (size_t i = 0; i < d->count; i++) {
        size_t n = strlen(d->tensors[i].name), m = strlen(end);
        if (n >= m && strcmp(d->tensors[i].name + n - m, end) == 0) return &d->tensors[i];
    }
    fail_msg("no tensor %s", end);
    return NULL;
}

static struct tensor *add_head(struct directory *d) {
    struct tensor *head = add(d, "lm_head.weight", 2, 16, 8);
    memcpy(head->values, d->tensors[0].values, sizeof head->values);
    return head;
}

static size_t bytes_of(const struct tensor *t) {
    return t->type[1] == '3' ? 4 : t->type[0] == 'B' && t->type[1] == 'F' ? 2 : 1;
}

static void write_weights(const char *path, const struct directory *d) {
    unsigned char length[8];
    uint64_t at = 0;
    json_t *header = json_object();
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (size_t i = 0; i < d->count; i++) {
        const struct tensor *t = &d->tensors[i];
        json_t *shape = json_array();
        for (uint64_t k = 0; k < t->rank; k++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[k]));
        uint64_t end = at + elems(t) * bytes_of(t);
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->type, "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)end));
        at = end;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    shore__put_u64(length, strlen(text));
    assert_int_equal(fwrite(length, 1, 8, f), 8);
    assert_true(fputs(text, f) >= 0);
    for (size_t i = 0; i < d->count; i++)
        for (uint64_t k = 0; k < elems(&d->tensors[i]); k++) {
            uint32_t bits;
            memcpy(&bits, &d->tensors[i].values[k], 4);
            size_t bytes = bytes_of(&d->tensors[i]);
            if (bytes == 2) bits = shore__f32_to_bf16(d->tensors[i].values[k]);
            if (bytes == 1) bits = d->tensors[i].values[k] != 0;
            assert_int_equal(fwrite(&bits, 1, bytes, f), bytes);
        }
    assert_int_equal(fclose(f), 0);
    free(text);
    json_decref(header);
}

static void write_directory(const struct directory *d) {
    remove_tree("model");
    assert_int_equal(mkdir("model", 0755), 0);
    write_text("model/config.json", d->config);
    write_weights("model/model.safetensors", d);
}

static int open_directory(struct shore__model **m, struct shore__source **source, struct shore_diag *diag) {
    *m = NULL;
    *source = NULL;
    int rc = shore__model_from_directory("model", m, diag);
    return rc ? rc : shore__source_directory(*m, "model", source, diag);
}

static void refused(const struct directory *d, const char *says) {
    struct shore_diag diag = {0};
    struct shore__model *m;
    struct shore__source *source;
    write_directory(d);
    assert_int_equal(open_directory(&m, &source, &diag), SHORE_EINPUT);
    assert_says(diag, says);
    bool of_a_file = strncmp(diag.text, "model/model.safetensors: ", 25) == 0;
    assert_true(of_a_file || strncmp(diag.text, "model: ", 7) == 0);
    shore__model_free(m);
}

/* The first values of the embedding and of the output table, and whether they are one. */
static void taken(const struct directory *d, bool tied, float first, float head) {
    static float values[SHORE_SEGMENT_ELEMS];
    struct shore_diag diag = {0};
    struct shore__model *m;
    struct shore__source *source;
    write_directory(d);
    assert_ok(open_directory(&m, &source, &diag));
    assert_int_equal(m->arch.tied, tied);
    assert_ok(shore__source_read(source, 0, 0, 1, values, &diag));
    assert_true(values[1] == first);
    assert_ok(shore__source_read(source, shore__model_table_block(m), 0, 1, values, &diag));
    assert_true(values[1] == head);
    json_t *config = shore__arch_to_json(&m->arch);
    assert_int_equal(json_is_true(json_object_get(config, "tie_word_embeddings")), tied);
    json_decref(config);
    shore__source_close(source);
    shore__model_free(m);
}

static void a_head_that_differs_is_used(void **state) {
    for (size_t i = 0; i < 2; i++) {
        struct directory *d = directory_of(tied_models[i]);
        struct tensor *head = add_head(d);
        float first = d->tensors[0].values[1];
        taken(d, true, first, first);
        head->type = "BF16"; /* of another type, and equal */
        taken(d, true, first, first);
        head->values[16 * 8 - 1] += 1; /* the last one alone */
        taken(d, false, first, first);
        head->values[1] = 2;
        taken(d, false, first, 2);
        head->type = "F32";
        taken(d, false, first, 2);
        head->shape[0] = 15;
        refused(d, "the tensor lm_head.weight has the shape [15, 8], but config.json asks for [16, 8]");
        head->shape[0] = 16;
        head->type = "BOOL";
        refused(d, "the tensor lm_head.weight has a type that Longshore does not read");
    }
}

static void the_parted_head_is_told_and_only_where_weights_are_read(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__model *m = NULL;
    struct directory *d = directory_of(tied_models[0]);
    write_directory(d);
    assert_ok(shore__model_from_directory("model", &m, &diag));
    assert_false(m->arch.head_parted);
    shore__model_free(m);
    add_head(d)->values[3] = 5;
    write_directory(d);
    assert_ok(shore__model_from_directory("model", &m, &diag));
    assert_true(m->arch.head_parted);
    shore__model_free(m);
    shore__settings_defaults(&s);
    s.init = strdup("model"); /* its sizes alone */
    assert_ok(shore__run_model(&s, NULL, &m, &diag));
    assert_true(m->arch.tied && !m->arch.head_parted);
    shore__model_free(m);
    shore__settings_free(&s);
}

static void a_tied_model_may_be_stored_as_its_head(void **state) {
    for (size_t i = 0; i < 2; i++) {
        struct directory *d = directory_of(tied_models[i]);
        strcpy(d->tensors[0].name, "lm_head.weight");
        taken(d, true, d->tensors[0].values[1], d->tensors[0].values[1]);
        d->tensors[0].shape[0] = 15;
        refused(d, "the tensor lm_head.weight has the shape [15, 8]");
    }
    struct directory *d = directory_of("{" LLAMA "}");
    *named(d, "embed_tokens.weight") = d->tensors[--d->count];
    refused(d, "the tensor model.embed_tokens.weight is missing");
}

static void frequencies_are_those_of_the_configuration(void **state) {
    struct directory *d = directory_of(tied_models[0]);
    struct tensor *f = add(d, "model.layers.0.self_attn.rotary_emb.inv_freq", 1, 2, 1);
    float first = d->tensors[0].values[1];
    f->values[0] = 1, f->values[1] = 0.01f;
    taken(d, true, first, first);
    f->type = "BF16"; /* rounded */
    taken(d, true, first, first);
    f->values[1] = 0.005f;
    refused(d, "inv_freq holds the rotary frequency 0.00500488 at [1], but rope_theta");
    f->type = "F32";
    d->config = "{" LLAMA ", \"tie_word_embeddings\": true, \"rope_theta\": 40000}";
    taken(d, true, first, first);
    d->config = "{" LLAMA ", \"tie_word_embeddings\": true, \"rope_theta\": 40000, \"rope_scaling\": {\"type\": "
                "\"linear\", \"factor\": 2}}";
    taken(d, true, first, first); /* as they were stored when they were scaled later */
    f->values[0] = 0.5f, f->values[1] = 0.0025f;
    taken(d, true, first, first);
    f->values[1] = NAN;
    refused(d, "the rotary frequency nan at [1]");
    f->shape[0] = 1;
    refused(d, "holds 1 rotary frequencies, but config.json asks for 2");
    d = directory_of(tied_models[1]);
    add(d, "transformer.rotary_emb.inv_freq", 1, 2, 1);
    refused(d, "inv_freq is not part of a gpt2 model");
}

static void masks_are_those_of_positions_to_come(void **state) {
    struct directory *d = directory_of(tied_models[1]);
    struct tensor *mask = add(d, "transformer.h.0.attn.bias", 4, 1, 1);
    float first = d->tensors[0].values[1];
    mask->shape[2] = mask->shape[3] = 8;
    for (size_t r = 0; r < 8; r++)
        for (size_t c = 0; c <= r; c++)
            mask->values[r * 8 + c] = 1;
    struct tensor *score = add(d, "transformer.h.0.attn.masked_bias", 0, 0, 0);
    score->values[0] = -1e4f;
    taken(d, true, first, first);
    mask->type = "BOOL";
    score->type = "BF16";
    score->values[0] = -INFINITY;
    taken(d, true, first, first);
    score->values[0] = -10;
    refused(d, "masked_bias is above -10000");
    score->values[0] = -1e9f;
    mask->values[7 * 8] = 0; /* a window */
    refused(d, "attn.bias is a mask that hides other positions than those that follow (0 at [7, 0])");
    mask->values[7 * 8] = 1;
    mask->values[1] = 1;
    refused(d, "mask that hides other positions than those that follow (1 at [0, 1])");
    mask->shape[2] = 4;
    refused(d, "attn.bias is not a mask of attention");
}

static void biases_that_are_not_there_are_refused(void **state) {
    struct directory *d = directory_of(tied_models[0]);
    struct tensor *bias = add(d, "model.layers.0.self_attn.q_proj.bias", 1, 8, 1);
    refused(d, "q_proj.bias is not part of a llama model as config.json has it, whose \"attention_bias\" is false");
    strcpy(bias->name, "model.layers.0.mlp.up_proj.bias");
    refused(d, "up_proj.bias is not part of a llama model as config.json has it, whose \"mlp_bias\" is false");
    strcpy(bias->name, "lm_head.bias");
    refused(d, "lm_head.bias is not part of a llama model");
    bias->type = "BOOL"; /* what bytes hold is no weight */
    strcpy(bias->name, "model.norm.weight");
    d->tensors[d->count - 2] = *bias;
    d->count--;
    refused(d, "model.norm.weight has a type that Longshore does not read");
}

static void rename_all(struct directory *d, const char *prefix) {
    for (size_t i = 0; i < d->count; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s%.60s", prefix, d->tensors[i].name);
        strcpy(d->tensors[i].name, name);
    }
}

static void marks_of_wrappers_are_named(void **state) {
    static const struct {
        const char *prefix, *says;
    } cases[] = {
        {"_orig_mod.", "has \"_orig_mod.\" in its name, which torch.compile adds: save the model inside it"},
        {"module.", "k.replace(\"module.\", \"\")"},
        {"module._orig_mod.", "_orig_mod."},
        {"base_model.model.", "the weights of a PEFT model whose adapter is not merged; in Python, "
                              "model.merge_and_unload().save_pretrained(DIR)"},
        {"language_model.", "is missing, but language_model."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t k = 0; k < 2; k++) {
            struct directory *d = directory_of(tied_models[k]);
            rename_all(d, cases[i].prefix);
            refused(d, cases[i].says);
        }
    struct directory *d = directory_of(tied_models[0]);
    strcpy(named(d, "layers.0.self_attn.q_proj.weight")->name, "model.layers.0._orig_mod.self_attn.q_proj.weight");
    refused(d, "torch.compile");
    d = directory_of(tied_models[0]);
    add(d, "model.layers.0.self_attn.q_proj.lora_A.default.weight", 2, 2, 8);
    refused(d, "whose adapter is not merged");
}

static void an_adapter_is_no_model(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__model *m = NULL;
    struct shore__tokenizer *tokenizer = NULL;
    struct directory *d = directory_of(tied_models[0]);
    rename_all(d, "base_model.model.");
    remove_tree("model");
    assert_int_equal(mkdir("model", 0755), 0);
    write_weights("model/adapter_model.safetensors", d);
    write_text("model/adapter_config.json", "{\"base_model_name_or_path\": \"some/base\", \"peft_type\": \"LORA\"}");
    assert_int_equal(shore__model_from_directory("model", &m, &diag), SHORE_EINPUT);
    assert_says(diag,
                "model: holds an adapter of PEFT (adapter_config.json) for some/base, not a model: name the model's "
                "directory, and this one with --adapter");
    shore__settings_defaults(&s);
    s.model = strdup("model");
    assert_int_equal(shore__run_tokenizer_of(&s, &tokenizer, &diag), SHORE_EINPUT);
    assert_says(diag, "holds an adapter of PEFT");
    shore__settings_free(&s);
    write_directory(directory_of(tied_models[0]));
    write_text("model/adapter_config.json", "[");
    assert_int_equal(shore__model_from_directory("model", &m, &diag), SHORE_EINPUT);
    assert_says(diag, "remove adapter_config.json");
}

static void weights_that_stand_twice_are_refused(void **state) {
    struct shore_diag diag = {0};
    struct shore__model *m;
    struct shore__source *source;
    struct directory *d = directory_of("{" LLAMA "}");
    write_directory(d);
    write_text("model/model.safetensors.index.json", "{\"weight_map\": {\"lm_head.weight\": \"model.safetensors\"}}");
    assert_ok(open_directory(&m, &source, &diag));
    shore__source_close(source);
    shore__model_free(m);
    write_weights("model/model-00001-of-00001.safetensors", d);
    write_text("model/model.safetensors.index.json",
               "{\"weight_map\": {\"lm_head.weight\": \"model-00001-of-00001.safetensors\"}}");
    assert_int_equal(open_directory(&m, &source, &diag), SHORE_EINPUT);
    assert_says(diag, "model: has weights twice, in model.safetensors and in the files");
    shore__model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_that_differs_is_used),
        cmocka_unit_test(the_parted_head_is_told_and_only_where_weights_are_read),
        cmocka_unit_test(a_tied_model_may_be_stored_as_its_head),
        cmocka_unit_test(frequencies_are_those_of_the_configuration),
        cmocka_unit_test(masks_are_those_of_positions_to_come),
        cmocka_unit_test(biases_that_are_not_there_are_refused),
        cmocka_unit_test(marks_of_wrappers_are_named),
        cmocka_unit_test(an_adapter_is_no_model),
        cmocka_unit_test(weights_that_stand_twice_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
