/* Exports a run as a Hugging Face directory: one of our models, or one that the Python package has recorded. */
#include <stdlib.h>
#include <string.h>

#include "files/json.h"
#include "run/exchange/adapter_config.h"
#include "run/exchange/towers.h"
#include "run/lora.h"
#include "run/run.h"

/* The directory's description of a model, beside the tensors. */
struct description {
    const struct shore__model *model;
    const struct shore__tokenizer *tokenizer; /* may be NULL */
    enum shore__st_type type;
    const struct shore__settings *settings;
};

/* Describes adapters as PEFT does: adapter_config.json beside the base model's name, and the tokenizer. */
static int write_adapters(void *ctx, const char *directory, struct shore_diag *diag) {
    const struct description *d = ctx;
    struct shore__lora_text lora;
    json_t *config = NULL;
    char *base = d->settings->model ? realpath(d->settings->model, NULL) : NULL;
    int rc = shore__lora_read(d->settings->lora, &lora, diag);
    if (rc == 0) config = shore__adapter_config_make(d->model, &lora.lora, base ? base : d->settings->model);
    shore__lora_free(&lora);
    free(base);
    if (rc == 0) rc = shore__json_write_in(directory, SHORE__ADAPTER_CONFIG, config, diag);
    if (rc == 0 && d->tokenizer) rc = shore__tokenizer_save(d->tokenizer, directory, diag);
    return rc;
}

static int write_description(void *ctx, const char *directory, struct shore_diag *diag) {
    const struct description *d = ctx;
    const struct shore__tokenizer *tokenizer = d->tokenizer;
    struct shore__arch arch = d->model->arch;
    int64_t end_of_text = tokenizer ? shore__tokenizer_end_of_text(tokenizer) : -1;
    if (!arch.neos && end_of_text >= 0) arch.eos[arch.neos++] = end_of_text;
    json_t *config = shore__model_to_json(d->model, &arch);
    json_t *generation =
        json_pack("{s:b, s:o}", "_from_model_config", 1, "eos_token_id", shore__arch_eos_to_json(&arch));
    if (config)
        json_object_set_new(config, "torch_dtype",
                            json_string(d->type == SHORE__ST_BF16  ? "bfloat16"
                                        : d->type == SHORE__ST_F16 ? "float16"
                                                                   : "float32"));
    if (arch.bos >= 0) json_object_set_new(generation, "bos_token_id", json_integer(arch.bos));
    int rc = shore__json_write_in(directory, "config.json", config, diag);
    if (rc == 0)
        rc = shore__json_write_in(directory, "generation_config.json", generation, diag);
    else
        json_decref(generation);
    if (rc == 0 && tokenizer) rc = shore__tokenizer_save(tokenizer, directory, diag);
    return rc;
}

int shore__export(const struct shore__exporting *how, const struct shore__model *m,
                  const struct shore__tokenizer *tokenizer, const char *directory, struct shore_diag *diag) {
    struct shore__contents *contents = NULL;
    struct description d = {m, tokenizer, *how->type, how->settings};
    struct shore__exporting e = *how;
    bool adapters = m->adapters.count > 0;
    struct shore__towers *towers = NULL;
    int rc = m->arch.wrapper && !adapters ? shore__towers_open(how->settings->model, m, &towers, diag) : 0;
    if (rc == 0)
        rc = shore__contents_of_model(m, adapters ? SHORE__ADAPTERS_ALONE : SHORE__WHOLE_MODEL, false, &contents, diag);
    if (towers) e.extras = shore__towers_extras(towers, &e.nextras);
    e.contents = contents;
    e.describe = adapters ? write_adapters : write_description;
    if (adapters) {
        e.shard_bytes = UINT64_MAX;
        e.file = SHORE__ADAPTER_WEIGHTS;
    }
    e.describe_ctx = &d;
    if (rc == 0) rc = shore__export_contents(&e, directory, diag);
    shore__contents_free(contents);
    shore__towers_close(towers);
    return rc;
}

/* ---- runs of another program */

/* The configuration that a program has recorded of its model; NULL: none, or its weights have other names. */
static const json_t *recorded_config(const json_t *program) {
    const json_t *config = json_object_get(program, "config");
    return json_is_object(config) && !json_is_object(json_object_get(program, "adapters")) ? config : NULL;
}

static const char *class_of(const json_t *program) {
    const char *name = json_string_value(json_object_get(program, "class"));
    const char *last = name ? strrchr(name, '.') : NULL;
    return last ? last + 1 : name;
}

static const char *dtype_of(const json_t *program, const enum shore__st_type *type) {
    const char *recorded = json_string_value(json_object_get(json_object_get(program, "engine"), "compute"));
    bool bf16 = type ? *type == SHORE__ST_BF16 : recorded && strcmp(recorded, "bf16") == 0;
    return bf16 ? "bfloat16" : type && *type == SHORE__ST_F16 ? "float16" : "float32";
}

static int write_recorded(void *ctx, const char *directory, struct shore_diag *diag) {
    const struct shore__exporting *e = ctx;
    const json_t *program = e->contents->program, *generation = json_object_get(program, "generation_config");
    if (!recorded_config(program)) return 0;
    json_t *config = json_deep_copy(recorded_config(program));
    if (config && class_of(program)) {
        json_object_set_new(config, "architectures", json_pack("[s]", class_of(program)));
        json_object_del(config, "torch_dtype"); /* the older name of dtype */
        json_object_set_new(config, "dtype", json_string(dtype_of(program, e->type)));
    }
    int rc = shore__json_write_in(directory, "config.json", config, diag);
    if (rc == 0 && json_is_object(generation))
        rc = shore__json_write_in(directory, "generation_config.json", json_deep_copy(generation), diag);
    return rc;
}

int shore__export_recorded(const struct shore__exporting *how, const char *directory, struct shore_diag *diag) {
    struct shore__exporting e = *how;
    e.describe = write_recorded;
    e.describe_ctx = &e;
    return shore__export_contents(&e, directory, diag);
}

char *shore__export_lacks(const struct shore__contents *c, const char *run, const char *directory) {
    const json_t *program = c->program;
    const char *source = json_string_value(json_object_get(program, "source")), *class = class_of(program);
    char *text = NULL;
    int n;
    if (json_is_object(json_object_get(program, "adapters")))
        n = asprintf(&text,
                     "no config.json is written, because the run has adapters: the weights have the names that peft "
                     "gives them; longshore.resume(\"%s\").save_pretrained(DIR) in Python writes the adapters",
                     run);
    else if (!recorded_config(program))
        n = asprintf(&text,
                     "no config.json is written, because the run has recorded none%s%s: these are the weights alone",
                     class ? " for its " : "", class ? class : "");
    else if (source && *source)
        n = asprintf(&text,
                     "no tokenizer is written, because the run has none: in Python, "
                     "AutoTokenizer.from_pretrained(\"%s\").save_pretrained(\"%s\") adds it",
                     source, directory);
    else
        n = asprintf(&text, "no tokenizer is written, because the run has none: save it to %s", directory);
    return n < 0 ? NULL : text;
}
