/* Commits a step, and reports it once it is committed: metrics, validation, samples. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "run/emulation/tempo.h"
#include "storage/volume.h"
#include "train/trainer.h"

#define LATE_STEPS 2 /* of an emulated machine, until it is said: the first step warms up */

void shore__commit_begin_counting(struct trainer *t) {
    if (t->tempo) shore__tempo_busy(t->tempo, t->busy_seconds);
    shore__drift_begin_step(t);
    shore_meter_begin(t->meter);
}

static void account(struct trainer *t) {
    struct shore_step_report *r = &t->report;
    shore_meter_end(t->meter, r);
    r->emulated = t->tempo;
    r->mfu = t->best_seconds / r->step_seconds;
    if (t->tempo) {
        double was[SHORE_LANES];
        memcpy(was, t->busy_seconds, sizeof was);
        shore__tempo_busy(t->tempo, t->busy_seconds);
        for (int lane = 0; lane < SHORE_LANES; lane++)
            r->busy_seconds[lane] = t->busy_seconds[lane] - was[lane];
    }
    if (shore__tempo_is_late(t->tempo) && ++t->late_steps == LATE_STEPS)
        train_note(t, "emulated: this machine computes more slowly than %s, so that a step takes its own time",
                   shore__tempo_machine(t->tempo)->name);
    shore__drift_end_step(t);
}

void shore__commit_report(struct trainer *t) {
    if (t->reported >= t->report.step) return;
    t->reported = t->report.step;
    t->result->last_loss = t->report.loss;
    if (!isnan(t->report.val_loss)) t->result->last_val_loss = t->report.val_loss;
    if (t->events->step) t->events->step(t->events->ctx, &t->report);
}

static int append_line(struct trainer *t, struct shore_diag *diag) {
    size_t bytes = (size_t)shore_metrics_line(&t->report, NULL, 0) + 1;
    char *line = malloc(bytes);
    if (!line) return shore__fail(diag, -ENOMEM, "out of memory for metrics");
    shore_metrics_line(&t->report, line, bytes);
    int rc = shore__metrics_append(t->run, t->report.step, line, diag);
    free(line);
    if (rc) return rc;
    line = shore__drives_line(t->run, t->meter);
    rc = line ? shore__drives_append(t->run, line, diag) : shore__fail(diag, -ENOMEM, "out of memory for metrics");
    free(line);
    return rc;
}

/* Measures what is due of the committed step, and reports it. */
static int report(struct trainer *t, struct shore_diag *diag) {
    int rc = 0;
    if (shore__batch_validation_due(t, t->report.step)) {
        shore_pages_set_step(t->pass.pages, t->report.step);
        rc = shore__batch_validate(t, &t->report.val_loss, diag);
        shore__commit_begin_counting(t);
        if (rc) return rc;
        if (isnan(t->report.val_loss)) t->report.val_loss = INFINITY; /* it was measured */
    }
    rc = append_line(t, diag);
    if (rc) return rc;
    shore__commit_report(t);
    if (shore__train_sample_due(t, t->report.step)) {
        rc = shore__train_sample(t, t->report.step, diag);
        shore__commit_begin_counting(t);
    }
    return rc;
}

int shore__commit_finish(struct trainer *t, struct shore_diag *diag) {
    if (!t->commit_pending) return 0;
    int rc = shore__fleet_wait(t->fleet, SHORE_LANE_COMMIT, &t->commit, diag);
    t->commit_pending = false;
    if (rc) return rc;
    account(t);
    enum shore_charge charge = shore_meter_charge(t->meter, SHORE_CHARGE_COMMIT);
    rc = report(t, diag);
    shore_meter_charge(t->meter, charge);
    return rc;
}

void shore__commit_forget(struct trainer *t) {
    if (t->commit_pending) shore_wait(&t->commit, NULL);
    t->commit_pending = false;
}

int shore__commit_submit(struct trainer *t, bool skip, struct shore_diag *diag) {
    char line[SHORE__METRICS_BYTES + 1]; /* without times and bytes, which are not known yet */
    int n = shore_metrics_line(&t->report, line, sizeof line);
    assert((size_t)n < sizeof line);
    assert(!t->commit_pending);
    shore_wait_init(&t->commit);
    struct shore_commit commit = {.size = sizeof commit,
                                  .step = t->base_step + 1,
                                  .how = skip ? SHORE_COMMIT_SKIPPED : SHORE_COMMIT_UPDATED,
                                  .metrics = line,
                                  .metrics_bytes = (uint32_t)n};
    shore__experts_commit(t, skip, &commit);
    int rc = shore_fleet_commit_with(t->fleet, &commit, shore_wait_completion(&t->commit));
    t->commit_pending = !rc;
    return rc ? shore__fail(diag, rc, "step %llu cannot be committed: %s", (unsigned long long)t->base_step + 1,
                            shore_error_text(rc))
              : 0;
}
