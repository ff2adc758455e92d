/* Undoes or finishes what a kill interrupted, before anybody works with the run. */
#include "run/lifecycle/mend.h"

#include "run/internal.h"
#include "run/lifecycle/snapshots.h"

bool shore__run_is_interrupted(const char *run_path) {
    return shore__move_is_interrupted(run_path, false) || shore__rollback_is_interrupted(run_path);
}

int shore__run_mend(struct shore__run *run, bool roll_back, struct shore_diag *diag) {
    int rc = shore__move_mend(run, shore__run_remember, run, diag);
    if (rc == 0) rc = shore__snapshots_mend(run->path, &run->settings.drives, shore__run_remember, run, diag);
    if (rc == 0 && roll_back) rc = shore__rollback_mend(run, shore__run_remember, run, diag);
    return rc;
}

void shore__run_forget(const char *run_path, const struct shore__addresses *drives, shore__note_fn note, void *ctx) {
    struct shore__strings names = {0};
    shore__snapshots_mend(run_path, drives, note, ctx, NULL);
    shore__snapshot_names(run_path, &names, NULL);
    for (size_t i = 0; i < names.count; i++)
        shore__snapshot_remove(run_path, names.item[i], drives, note, ctx, NULL);
    shore__strings_free(&names);
    if (shore__move_is_interrupted(run_path, true) || shore__snapshot_is_interrupted(run_path))
        shore__note(note, ctx, "what is said to stay is yours to remove: the run that knows of it goes");
    shore__snapshots_forget(run_path);
    shore__move_forget(run_path);
    shore__rollback_forget(run_path);
}
