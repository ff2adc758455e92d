/* Records in run.json a change, or which directory the run belongs to. */
#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "run/directory/journal.h"
#include "run/internal.h"
#include "run/lifecycle/snapshots.h"

int shore__run_write(struct shore__run *run, struct shore_diag *diag) {
    /* a moved run's home is where it is now, and so is that of a copy with drives of its own */
    int rc =
        shore__run_standing(run) == SHORE__RUN_ITSELF ? shore__origin_take(run->path, &run->private->origin, diag) : 0;
    return rc ? rc : shore__run_put(run, "run.json", diag);
}

int shore__run_record_change(struct shore__run *run, uint64_t step, const char *what, struct shore_diag *diag) {
    json_t *change = json_pack("{s:I, s:s}", "step", (json_int_t)step, "what", what);
    if (!change || json_array_append_new(run->changes, change) < 0)
        return shore__fail(diag, -ENOMEM, "%s: out of memory", run->path);
    if (run->making) return 0;
    int rc = shore__snapshots_follow(run->path, &run->private->moved, diag);
    if (rc == 0) rc = shore__run_write(run, diag);
    if (rc == 0) shore__addresses_free(&run->private->moved);
    return rc;
}

/* From now on the making there is this directory's own. */
static int claim_making(const char *run_path, struct shore_diag *diag) {
    struct shore__journal journal;
    char *original = NULL;
    int rc = shore__journal_read(run_path, SHORE__MAKING, NULL, &journal, diag);
    if (rc < 0) return rc;
    if (shore__standing_of(run_path, &journal.origin, journal.fleet_id, NULL, &original) == SHORE__RUN_COPY)
        rc = shore__making_refuse_copy(run_path, &journal, diag);
    else
        rc = shore__journal_write(run_path, SHORE__MAKING, NULL, &journal, diag);
    free(original);
    shore__journal_free(&journal);
    return rc;
}

int shore__run_claim(const char *path, struct shore_diag *diag) {
    struct shore__run *run = NULL;
    bool made = shore__is_run(path), begun = shore__path_exists(path, "making/plan.json");
    int rc = made || begun ? shore__run_alloc(path, &run, diag) : shore__not_a_run(path, diag);
    if (rc == 0) rc = shore__run_lock(run, diag);
    if (rc == 0 && made) rc = shore__run_read(run, diag);
    if (rc == 0 && made && shore__run_standing(run) == SHORE__RUN_COPY)
        rc = shore__run_refuse_copy(run, SHORE__RUN_COPY, diag);
    if (rc == 0 && made) rc = shore__origin_take(path, &run->private->origin, diag);
    if (rc == 0 && made) rc = shore__run_write(run, diag);
    if (rc == 0 && begun) rc = claim_making(path, diag);
    shore__run_free(run);
    return rc;
}
