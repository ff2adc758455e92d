/* Exports a run of one of our models as a Hugging Face directory. */
#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/json.h"
#include "run/run.h"

static int write_json(const char *directory, const char *name, json_t *value, struct shore_diag *diag) {
    char *path = shore__path_join(directory, name);
    int rc = path && value ? shore__json_write(path, value, 2, diag) : shore__fail(diag, -ENOMEM, "out of memory");
    free(path);
    json_decref(value);
    return rc;
}

/* The directory's description of a model, beside the tensors. */
struct description {
    const struct shore__model *model;
    const struct shore__tokenizer *tokenizer; /* may be NULL */
    enum shore__st_type type;
};

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
    int rc = write_json(directory, "config.json", config, diag);
    if (rc == 0)
        rc = write_json(directory, "generation_config.json", generation, diag);
    else
        json_decref(generation);
    if (rc == 0 && tokenizer) rc = shore__tokenizer_save(tokenizer, directory, diag);
    return rc;
}

int shore__export(const struct shore__exporting *how, const struct shore__model *m,
                  const struct shore__tokenizer *tokenizer, const char *directory, struct shore_diag *diag) {
    struct shore__contents *contents = NULL;
    struct description d = {m, tokenizer, *how->type};
    struct shore__exporting e = *how;
    int rc = shore__contents_of_model(m, false, &contents, diag);
    if (rc < 0) return rc;
    e.contents = contents;
    e.describe = write_description;
    e.describe_ctx = &d;
    rc = shore__export_contents(&e, directory, diag);
    shore__contents_free(contents);
    return rc;
}
