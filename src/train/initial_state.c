/* Writes the initial state of a run to its drives. */
#include "drive/counters.h"
#include "train/train.h"

struct values {
    const struct shore__model *model;
    struct shore__source *source;
    struct shore__moment_sources moments;
    shore__progress_fn making;
    void *making_ctx;
};

static int check_values(void *ctx, struct shore_diag *diag) {
    const struct values *v = ctx;
    return shore__import(NULL, v->model, v->source, &v->moments, v->making, v->making_ctx, diag);
}

int shore__train_initial_state(struct shore__run *run, struct shore_fleet_options *options, const char *processor,
                               shore__progress_fn making, void *making_ctx, struct shore_fleet **out,
                               struct shore_diag *diag) {
    const struct shore__model *m = run->model;
    struct values v = {.model = m, .making = making, .making_ctx = making_ctx};
    int rc = run->settings.model ? shore__source_directory(m, run->settings.model, &v.source, diag)
                                 : shore__source_init(m, run->settings.seed, &v.source);
    if (!rc) shore__source_set_seed(v.source, run->settings.seed);
    if (!rc && run->settings.adapter) rc = shore__source_merge(v.source, run->settings.adapter, diag);
    if (!rc && run->settings.model && run->settings.updates_before)
        rc = shore__moments_open(m, &run->settings, &v.moments, diag);
    if (!rc) rc = shore__making_create(run, options, run->settings.model ? check_values : NULL, &v, out, diag);
    if (!rc) rc = shore__import(*out, m, v.source, &v.moments, making, making_ctx, diag);
    if (!rc) rc = shore_fleet_seal(*out, 0, diag);
    shore__source_close(v.source);
    shore__source_close(v.moments.m);
    shore__source_close(v.moments.v);
    if (rc) return rc;
    return shore__run_finish(run, shore__fleet_info(*out).fleet_id, processor, options->note, options->note_ctx, diag);
}
