/* The commit of a step, and what is reported once it is done: metrics, validation, samples. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/units.h"
#include "infer/generate.h"
#include "train/trainer.h"

#define SAMPLE_TOKENS 120u

struct sampled {
    uint32_t ids[SAMPLE_TOKENS], count, vocab;
};

static int emit(void *ctx, uint32_t token) {
    struct sampled *s = ctx;
    /* a model may have more entries than its tokenizer has text for */
    if (token < s->vocab) s->ids[s->count++] = token;
    return 0;
}

static int sample(struct trainer *t, uint64_t step, struct shore_diag *diag) {
    uint32_t start = 0;
    struct shore__text text = {0};
    int rc = shore__run_tokenizer(t->run, diag);
    if (rc) return rc;
    int64_t end = shore__tokenizer_end_of_text(t->run->tokenizer);
    if (end >= 0 && end < t->m->arch.vocab) start = (uint32_t)end;
    struct sampled made = {.vocab = shore__tokenizer_vocab(t->run->tokenizer)};
    struct shore__sampling how = {
        .temperature = 0.8, .top_k = 50, .top_p = 1, .seed = t->s->seed + step, .max_tokens = SAMPLE_TOKENS};
    const struct shore__region *row = shore__regions_find(&t->rows, "sample", 0);
    rc = shore__generate_in(t->pass.pager, t->m, t->c, shore__memory_at(&t->memory, "sample", 0), row->bytes, &start, 1,
                            &how, emit, &made, diag);
    if (rc == SHORE_ENONFINITE) { /* a step that is not finite is refused by itself, or skipped as was asked */
        char note[sizeof diag->text + 64];
        snprintf(note, sizeof note, "no sample after step %llu: %s", (unsigned long long)step, diag->text);
        if (t->events->note) t->events->note(t->events->ctx, note);
        return 0;
    }
    if (!rc) rc = shore__tokenizer_decode(t->run->tokenizer, made.ids, made.count, &text);
    if (!rc) t->events->sample(t->events->ctx, step, text.bytes ? text.bytes : "", text.count);
    free(text.bytes);
    return rc;
}

static void find_slow_drive(struct trainer *t) {
    struct shore__step_report *r = &t->report;
    for (uint32_t d = 0; d < t->slowness.ndrives; d++)
        t->busy_ns[d] = shore_fleet_drive_busy_ns(t->fleet, d);
    int slow = shore__slowness_step(&t->slowness, t->busy_ns, r->step_seconds, &r->slow_factor);
    r->slow_drive = slow < 0 ? NULL : shore_fleet_drive_path(t->fleet, (uint32_t)slow);
}

static void report_emulation(struct trainer *t, struct shore__step_report *r) {
    struct shore__busy now, *was = &t->busy;
    if (!t->throttle) return;
    shore__throttle_busy(t->throttle, &now);
    r->emulated = true;
    r->busy = (struct shore__busy){
        .gpu = now.gpu - was->gpu,
        .link = now.link - was->link,
        .drive_read = now.drive_read - was->drive_read,
        .drive_write = now.drive_write - was->drive_write,
        .drive_mixed = now.drive_mixed - was->drive_mixed,
        .drive_compute = now.drive_compute - was->drive_compute,
        .host_update = now.host_update - was->host_update,
    };
    t->busy = now;
}

static void fill_report(struct trainer *t) {
    struct shore__step_report *r = &t->report;
    struct shore_ledger now = {.size = sizeof now}, *was = &t->ledger;
    uint64_t resident, peak, end = shore__now_ns();
    shore_fleet_ledger(t->fleet, &now);
    shore__resident_bytes(&resident, &peak);
#define SINCE(field) (now.field - was->field)
    r->link = (struct shore__link_bytes){
        .gradients = SINCE(link_in_gradients) + SINCE(link_out_gradients),
        .compressed = SINCE(link_in_compressed),
        .parameters = SINCE(link_out_params),
        .activations = SINCE(link_activations),
        .state = SINCE(link_in_state) + SINCE(link_out_state),
        .control = SINCE(link_control),
    };
    r->drive_read_bytes =
        SINCE(drive_read_state) + SINCE(drive_read_fetch) + SINCE(drive_read_spill) + SINCE(drive_read_scratch);
    r->drive_write_bytes =
        SINCE(drive_write_state) + SINCE(drive_write_spill) + SINCE(drive_write_scratch) + SINCE(drive_write_commit);
#undef SINCE
    r->resident_bytes = resident;
    t->wait_ns += shore__pager_waited_ns(t->pass.pager);
    r->step_seconds = (double)(end - t->step_start_ns) * 1e-9;
    r->wait_seconds = (double)t->wait_ns * 1e-9;
    r->commit_seconds = (double)t->commit_ns * 1e-9;
    r->compute_seconds = r->step_seconds - r->wait_seconds - r->commit_seconds;
    shore__offload_weigh(&t->offload, (double)t->offload_wait_ns * 1e-9 / r->step_seconds,
                         (r->wait_seconds + r->commit_seconds) / r->step_seconds);
    if (t->slowness.ndrives) find_slow_drive(t);
    report_emulation(t, r);
    t->ledger = now;
    t->step_start_ns = end;
    t->wait_ns = t->commit_ns = t->offload_wait_ns = 0;
}

void shore__commit_begin_counting(struct trainer *t) {
    t->ledger.size = sizeof t->ledger;
    shore_fleet_ledger(t->fleet, &t->ledger);
    if (t->throttle) shore__throttle_busy(t->throttle, &t->busy);
    shore__pager_waited_ns(t->pass.pager);
    t->wait_ns = t->commit_ns = t->offload_wait_ns = 0;
    t->step_start_ns = shore__now_ns();
}

bool shore__commit_sample_due(const struct trainer *t, uint64_t step) {
    uint64_t every = t->s->sample_every;
    return t->events->sample && every && (step % every == 0 || step == train_last_step(t->s));
}

void shore__commit_report(struct trainer *t) {
    t->reported = t->report.step;
    t->result->last_loss = t->report.loss;
    if (isfinite(t->report.val_loss)) t->result->last_val_loss = t->report.val_loss;
    if (t->events->step) t->events->step(t->events->ctx, &t->report);
}

int shore__commit_finish(struct trainer *t, struct shore_diag *diag) {
    if (!t->commit_pending) return 0;
    uint64_t start = shore__now_ns();
    int rc = shore_wait(&t->commit, diag);
    t->commit_ns += shore__now_ns() - start;
    t->commit_pending = false;
    if (!rc) rc = shore__ahead_settle(t, diag); /* it is: what is stored has been committed */
    if (rc) return rc;
    fill_report(t);
    if (shore__batch_validation_due(t, t->report.step)) {
        shore__pager_set_step(t->pass.pager, t->report.step);
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
    if (shore__commit_sample_due(t, t->report.step)) {
        shore__pager_set_step(t->pass.pager, t->report.step);
        rc = sample(t, t->report.step, diag);
        shore__commit_begin_counting(t);
    }
    return rc;
}

int shore__commit_submit(struct trainer *t, bool skip, struct shore_diag *diag) {
    char line[SHORE__METRICS_LINE_BYTES];
    int n = shore__metrics_line(&t->report, line, sizeof line);
    if (n < 0) n = 0;
    shore_wait_init(&t->commit);
    int rc = shore_fleet_commit(t->fleet, t->base_step, skip, line, (uint32_t)n, shore_wait_completion(&t->commit));
    t->commit_pending = !rc;
    return rc ? shore__fail(diag, rc, "step %llu cannot be committed: %s", (unsigned long long)t->base_step + 1,
                            shore_error_text(rc))
              : 0;
}
