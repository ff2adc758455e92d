/* Fills a run that is made of a model and texts. */
#include <stdio.h>
#include <string.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/json.h"
#include "run/emulation/emulate.h"
#include "run/lifecycle/making.h"

static int fill(struct shore__run *run, shore__progress_fn progress, void *ctx, struct shore_diag *diag) {
    const struct shore__path path = shore__path_in(run->path, "making");
    const char *making = path.text;
    json_t *config = shore__model_to_json(run->model, &run->model->arch);
    int rc = shore__json_write_in(making, "config.json", config, diag);
    if (rc == 0) rc = shore__tokenizer_save(run->tokenizer, making, diag);
    if (rc == 0) rc = shore__run_tokenize(run, making, progress, ctx, diag);
    if (rc == 0) rc = shore__run_open_data(run, making, diag);
    if (rc == 0) shore__settings_fit(&run->settings, run->model, run->private->train_tokens);
    return rc;
}

int shore__run_prepare(const char *path, const struct shore__settings *s, struct shore__model *model,
                       struct shore__tokenizer *tokenizer, bool overwrite, shore__progress_fn progress,
                       void *progress_ctx, struct shore__run **out, struct shore_diag *diag) {
    struct shore__run *run = NULL;
    int rc = shore__settings_check(s, diag);
    if (rc == 0) rc = shore__settings_spare_inputs(s, path, diag);
    if (rc == 0) rc = shore__run_alloc(path, &run, diag);
    if (rc < 0) return rc;
    shore__settings_free(&run->settings);
    rc = shore__settings_copy(s, &run->settings);
    if (rc == 0 && !(run->private->tokenizer_name = strdup(shore__tokenizer_name(tokenizer)))) rc = -ENOMEM;
    if (rc == 0) rc = shore__run_settle_tokenizer(&run->settings, run->private->tokenizer_name);
    if (rc < 0) shore__fail(diag, rc, "out of memory");
    run->private->end_of_text = shore__tokenizer_end_of_text(tokenizer);
    if (rc == 0) rc = shore__emulation_absolute(&run->settings.emulate, diag);
    run->model = model;
    run->layout = model->layout;
    run->tokenizer = tokenizer;
    if (rc == 0) rc = shore__making_begin(run, overwrite, diag);
    if (rc == 0) rc = fill(run, progress, progress_ctx, diag);
    if (rc < 0) {
        run->model = NULL; /* still the caller's */
        run->tokenizer = NULL;
        shore__run_undo(run);
        shore__run_free(run);
        return rc;
    }
    *out = run;
    return 0;
}

int shore__run_finish(struct shore__run *run, const uint64_t fleet_id[2], const char *processor, shore__note_fn note,
                      void *ctx, struct shore_diag *diag) {
    snprintf(run->processor, sizeof run->processor, "%s", processor);
    int rc = shore__making_finish(run, fleet_id, note, ctx, diag);
    return rc ? rc : shore__run_open_data(run, run->path, diag);
}
