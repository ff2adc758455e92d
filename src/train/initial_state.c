/* Writes the initial state of a run to its drives. */
#include "base/diag.h"
#include "train/train.h"

int shore__train_initial_state(struct shore__run *run, struct shore_fleet_options *options, const char *processor,
                               shore__progress_fn making, void *making_ctx, struct shore_fleet **out,
                               struct shore_diag *diag) {
    const struct shore__model *m = run->model;
    struct shore__source *source = NULL;
    struct shore__moment_sources moments = {NULL, NULL};
    struct shore_fleet_info info = {.size = sizeof info};
    shore__run_new_fleet(run, options);
    int rc = run->settings.model ? shore__source_directory(m, run->settings.model, &source, diag)
                                 : shore__source_init(m, run->settings.seed, &source);
    if (!rc && run->settings.model && run->settings.updates_before)
        rc = shore__moments_open(m, &run->settings, &moments, diag);
    if (!rc) rc = shore__run_replace(run, diag);
    if (!rc) rc = shore_fleet_create(m->layout, options, out, diag);
    if (!rc) rc = shore__import(*out, m, source, &moments, making, making_ctx, diag);
    if (!rc) rc = shore_fleet_seal(*out, 0, diag);
    shore__source_close(source);
    shore__moments_close(&moments);
    if (rc) return rc;
    shore_fleet_info(*out, &info);
    return shore__run_finish(run, info.fleet_id, processor, options->note, options->note_ctx, diag);
}
