#include "train/train.h"

#include <math.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/counters.h"
#include "run/emulation/tempo.h"
#include "train/trainer.h"

static int refuse(struct trainer *t, struct shore_diag *diag) {
    unsigned long long step = t->base_step + 1;
    bool loss = !isfinite(t->report.loss);
    if (t->s->skip_nonfinite) {
        train_note(t, "step %llu is skipped: its %s is not finite", step, loss ? "loss" : "gradient norm");
        t->report.skipped = true;
        /* the next step reads parameters where this one leaves them, so it waits for the commit */
        int rc = shore__commit_submit(t, true, diag);
        if (!rc) rc = shore__commit_finish(t, diag);
        if (!rc) shore__compress_end_step(t, true);
        return rc;
    }
    t->refused = true;
    return shore__fail(diag, SHORE_ENONFINITE,
                       "step %llu is refused: its %s is not finite; the state stays at step %llu (go on with a lower "
                       "--lr, or with --on-nonfinite skip)",
                       step, loss ? "loss" : "gradient norm", step - 1);
}

/* Explains a value that is not finite which UPDATE found. The next step may be under way by then: too late to skip this
 * one. */
static int explain_new_value(const struct trainer *t, uint64_t committed, struct shore_diag *diag) {
    const struct shore_diag why = *diag;
    return shore__fail(diag, SHORE_ENONFINITE,
                       "step %llu is refused: %.500s; the state stays at step %llu (go on with a lower --lr%s)",
                       (unsigned long long)committed + 1, why.text, (unsigned long long)committed,
                       t->s->weight_decay > 0 ? " or --weight-decay" : "");
}

static int one_step(struct trainer *t, struct shore_diag *diag) {
    bool finite, replay;
    uint32_t replays = 0;
    shore__tempo_take_step(t->tempo, t->base_step + 1);
    t->again = false;
    int rc = shore__step_compute(t, &finite, &replay, diag);
    if (!rc && replay) {
        replays = 1;
        t->again = true;
        rc = shore__step_compute(t, &finite, &replay, diag);
    }
    if (rc) return rc;
    shore_meter_charge(t->meter, SHORE_CHARGE_COMMIT);
    double loss = t->report.loss;
    t->report = (struct shore_step_report){
        .size = sizeof t->report,
        .step = t->base_step + 1,
        .loss = loss,
        .grad_norm = isfinite(loss) ? t->norm : NAN,
        .lr = shore__learning_rate(t->s, t->base_step + 1),
        .val_loss = NAN,
        .dropped_energy = shore__compress_dropped(t),
        .tokens = (uint64_t)t->s->batch * t->s->seq_len,
        .uncounted_tokens = (uint64_t)t->s->batch * t->s->seq_len - t->pass.counting,
        .replays = replays,
        .paced_seconds = t->paced_seconds,
        .speculated = finite && shore_step_speculated(t->step),
    };
    if (finite) shore__compress_end_step(t, false);
    shore_step_remember(t->step, finite ? t->norm : INFINITY);
    if (!finite) return refuse(t, diag);
    rc = shore__commit_submit(t, false, diag);
    if (!rc) shore_step_made(t->step);
    return rc;
}

static bool snapshot_due(const struct trainer *t, uint64_t step) {
    return t->s->snapshot_every && step % t->s->snapshot_every == 0;
}

/* A full disk costs a snapshot, not the run. */
static void snapshot_made(struct trainer *t, uint64_t step, int rc, const struct shore_diag *why) {
    if (rc) {
        t->result->missed_snapshots++;
        train_note(t, "warning: no snapshot of step %llu: %s", (unsigned long long)step, why->text);
    }
    shore__commit_begin_counting(t);
}

static void snapshot(struct trainer *t, uint64_t step) {
    struct shore_diag why = {0};
    int rc = shore__compress_save(t, &why); /* it is part of the snapshot */
    if (!rc) rc = shore__snapshot_automatic(t->run, t->fleet, t->s->keep, t->events->note, t->events->ctx, &why);
    snapshot_made(t, step, rc, &why);
}

/* Keeps the committed step if its validation loss is below that of the best which is kept. */
static void keep_best(struct trainer *t, uint64_t step) {
    const struct shore__measured *m = &t->run->measured;
    struct shore_diag why = {0};
    double least;
    if (!t->s->keep_best || m->step != step || isnan(m->loss)) return;
    int rc = shore__snapshot_best_loss(t->run, &least, &why);
    if (!rc && !(m->loss < least)) return;
    if (!rc) rc = shore__compress_save(t, &why);
    if (!rc) rc = shore__snapshot_best(t->run, t->fleet, m->loss, t->events->note, t->events->ctx, &why);
    snapshot_made(t, step, rc, &why);
}

static bool gains_nothing(const struct trainer *t) {
    return t->s->stop_after_no_gain && t->run->measured.since >= t->s->stop_after_no_gain;
}

/* Makes snapshots that a kill or a broken connection prevented after their commit. */
static void make_up_snapshots(struct trainer *t, uint64_t step) {
    if (step && snapshot_due(t, step) && !shore__snapshot_of_step(t->run, step)) snapshot(t, step);
    if (step) keep_best(t, step);
}

/* Goes back to the committed step after a connection broke, and writes the line of a step whose acknowledgement was
 * lost. */
static int go_back(struct trainer *t, struct shore_diag *diag) {
    int rc = SHORE_ELINK;
    if (!(t->report.step_seconds > 0)) shore_meter_end(t->meter, &t->report);
    while (rc == SHORE_ELINK) {
        rc = shore__train_reconnect(t, &t->base_step, diag);
        if (!rc) rc = shore__experts_open(t, diag);
        if (rc) break;
        rc = shore__train_recover_metrics(t, diag); /* it may measure a loss, and meet another broken connection */
    }
    if (!rc && t->base_step == t->report.step) shore__commit_report(t);
    if (!rc) make_up_snapshots(t, t->base_step);
    shore__commit_begin_counting(t);
    return rc;
}

int shore__train(struct shore__run *run, bool fresh, bool overwrite, const uint64_t *accept_step,
                 const struct shore__train_events *events, struct shore__train_result *out, struct shore_diag *diag) {
    struct trainer t = {.run = run, .s = &run->settings, .m = run->model, .events = events, .result = out};
    *out = (struct shore__train_result){.last_loss = NAN, .last_val_loss = NAN};
    int rc = shore__trainer_open(&t, fresh, overwrite, accept_step, diag);
    if (rc) {
        shore__trainer_close(&t);
        return rc;
    }
    out->opened = true;
    if (events->opened) events->opened(events->ctx);
    struct shore_fleet_info info = shore__fleet_info(t.fleet);
    shore__commit_begin_counting(&t);
    uint64_t last = train_last_step(t.s);
    make_up_snapshots(&t, info.step);
    bool asked = info.step < last && shore__pacing_wait(&t);
    for (t.base_step = info.step; !rc && !asked && t.base_step < last && !gains_nothing(&t);) {
        rc = one_step(&t, diag);
        shore_meter_charge(t.meter, SHORE_CHARGE_BETWEEN);
        uint64_t made = t.base_step + 1;
        asked = events->should_stop && events->should_stop(events->ctx);
        bool keep = snapshot_due(&t, made);
        bool holds = made < last && shore_endurance_holds(t.endurance);
        bool plans = !rc && made < last && !asked && shore__drift_plans_again(&t, last - made);
        bool settle = plans || made == last || asked || keep || holds || shore__batch_validation_due(&t, made) ||
                      shore__train_sample_due(&t, made);
        if (!rc && settle) rc = shore__commit_finish(&t, diag);
        if (rc == SHORE_ELINK) {
            rc = go_back(&t, diag);
            asked = false;
            continue;
        }
        if (!rc && keep) snapshot(&t, made);
        if (!rc) keep_best(&t, made);
        t.paced_seconds = 0;
        if (!rc && holds && !asked) asked = shore__pacing_wait(&t);
        t.base_step++;
        if (!rc && plans && (rc = shore__trainer_open_again(&t, diag))) {
            out->step = t.base_step;
            shore__trainer_close(&t);
            return rc;
        }
    }
    shore__commit_forget(&t); /* the failure may be in the next step */
    info = shore__fleet_info(t.fleet);
    out->step = info.step;
    out->emulated = t.tempo != NULL;
    out->no_gain = gains_nothing(&t);
    if (rc == SHORE_ENONFINITE && !t.refused) explain_new_value(&t, info.step, diag);
    while (!rc && (rc = shore_fleet_digest(t.fleet, false, out->digest, diag)) == SHORE_ELINK)
        rc = go_back(&t, diag);
    struct shore_diag why = {0};
    /* also of a run that cannot continue, for lack of space for example */
    if (shore__compress_save(&t, &why)) train_note(&t, "the residual of compression is lost: %s", why.text);
    shore__trainer_close(&t);
    return rc;
}
