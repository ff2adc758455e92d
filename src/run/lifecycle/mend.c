/* Undoes or finishes what a kill interrupted, before anybody works with the run. */
#include "run/lifecycle/mend.h"

#include "run/directory/journal.h"
#include "run/lifecycle/snapshots.h"

unsigned shore__run_interrupted(const char *run_path) {
    return (shore__path_exists(run_path, "making") ? 1u << SHORE__MAKING : 0) |
           (shore__journal_is_there(run_path, SHORE__MOVING, NULL) ? 1u << SHORE__MOVING : 0) |
           (shore__journal_is_there(run_path, SHORE__ROLLING_BACK, NULL) ? 1u << SHORE__ROLLING_BACK : 0) |
           (shore__snapshot_is_interrupted(run_path) ? 1u << SHORE__SNAPSHOT : 0);
}

bool shore__run_blocks_readers(const char *run_path) {
    struct shore__journal moving;
    int rc = shore__journal_read(run_path, SHORE__MOVING, NULL, &moving, NULL);
    bool blocks = rc != SHORE_EMISSING && (rc || moving.new.count || moving.old.count);
    shore__journal_free(&moving);
    return blocks || shore__journal_is_there(run_path, SHORE__ROLLING_BACK, NULL);
}

int shore__run_mend(struct shore__run *run, bool roll_back, struct shore_diag *diag) {
    int rc = shore__move_mend(run, shore__run_remember, run, diag);
    if (rc == 0) rc = shore__snapshots_mend(run->path, &run->settings.drives, shore__run_remember, run, diag);
    if (rc == 0 && roll_back) rc = shore__rollback_mend(run, shore__run_remember, run, diag);
    return rc;
}

void shore__changes_forget(const char *run_path, shore__note_fn note, void *ctx) {
    if (shore__run_interrupted(run_path) & (1u << SHORE__MOVING | 1u << SHORE__SNAPSHOT))
        shore__note(note, ctx, "what is said to stay is yours to remove: the run that knows of it goes");
    shore__snapshots_forget(run_path);
    shore__journal_clear(run_path, SHORE__MOVING, NULL, NULL);
    shore__journal_clear(run_path, SHORE__ROLLING_BACK, NULL, NULL);
}

void shore__run_forget(const char *run_path, const struct shore__addresses *drives, shore__note_fn note, void *ctx) {
    shore__snapshots_remove(run_path, drives, true, note, ctx, NULL);
    shore__changes_forget(run_path, note, ctx);
}
