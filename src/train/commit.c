/* Commits a step, and reports it once it is committed: metrics, validation, samples. */
#include <assert.h>
#include <math.h>

#include "base/diag.h"
#include "base/units.h"
#include "storage/volume.h"
#include "train/trainer.h"

_Static_assert(SHORE__METRICS_LINE_BYTES <= SHORE__METRICS_BYTES, "a record holds a step's line");

void shore__commit_begin_counting(struct trainer *t) {
    shore_pages_waited_ns(t->pass.pages);
    shore__accounting_begin(t->accounting, &t->waits);
}

/* Adapts the use of scratch by the next steps to how long scratch held this one up. */
static void account(struct trainer *t) {
    struct shore__step_report *r = &t->report;
    uint64_t scratch_ns = t->waits.scratch_ns;
    t->waits.drives_ns += shore_pages_waited_ns(t->pass.pages);
    shore__accounting_end(t->accounting, &t->waits, r);
    double elsewhere = (r->wait_seconds + r->commit_seconds) * 1e9 - (double)scratch_ns;
    shore__activations_weigh(t, elsewhere > 0 ? (uint64_t)elsewhere : 0);
}

void shore__commit_report(struct trainer *t) {
    if (t->reported >= t->report.step) return;
    t->reported = t->report.step;
    t->result->last_loss = t->report.loss;
    if (isfinite(t->report.val_loss)) t->result->last_val_loss = t->report.val_loss;
    if (t->events->step) t->events->step(t->events->ctx, &t->report);
}

int shore__commit_finish(struct trainer *t, struct shore_diag *diag) {
    if (!t->commit_pending) return 0;
    uint64_t start = shore__now_ns();
    int rc = shore_wait(&t->commit, diag);
    t->waits.commit_ns += shore__now_ns() - start;
    t->commit_pending = false;
    if (rc) return rc;
    account(t);
    if (shore__batch_validation_due(t, t->report.step)) {
        shore_pages_set_step(t->pass.pages, t->report.step);
        rc = shore__batch_validate(t, &t->report.val_loss, diag);
        shore__commit_begin_counting(t);
        if (rc) return rc;
    }
    char line[SHORE__METRICS_LINE_BYTES];
    rc = shore__metrics_line(&t->report, line, sizeof line);
    if (rc < 0)
        return shore__fail(diag, rc, "the metrics of step %llu are too long", (unsigned long long)t->report.step);
    rc = shore__metrics_append(t->run, t->report.step, line, diag);
    if (rc) return rc;
    shore__commit_report(t);
    if (shore__train_sample_due(t, t->report.step)) {
        rc = shore__train_sample(t, t->report.step, diag);
        shore__commit_begin_counting(t);
    }
    return rc;
}

void shore__commit_forget(struct trainer *t) {
    if (t->commit_pending) shore_wait(&t->commit, NULL);
    t->commit_pending = false;
}

int shore__commit_submit(struct trainer *t, bool skip, struct shore_diag *diag) {
    char line[SHORE__METRICS_LINE_BYTES];
    int n = shore__metrics_line(&t->report, line, sizeof line);
    if (n < 0) n = 0;
    assert(!t->commit_pending);
    shore_wait_init(&t->commit);
    int rc = shore_fleet_commit(t->fleet, t->base_step, skip, line, (uint32_t)n, shore_wait_completion(&t->commit));
    t->commit_pending = !rc;
    return rc ? shore__fail(diag, rc, "step %llu cannot be committed: %s", (unsigned long long)t->base_step + 1,
                            shore_error_text(rc))
              : 0;
}
