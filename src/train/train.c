#include "train/train.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/fleet/emulated.h"
#include "run/emulation/emulate.h"
#include "train/trainer.h"

/* ---- opening -------------------------------------------------------------------------------------------------------
 */

static void say_emulated(const struct trainer *t) {
    const struct shore__emulation *e = shore__throttle_emulation(t->throttle);
    char text[160];
    if (!e || !t->events->note) return;
    snprintf(text, sizeof text, "emulated: times are those of %s, rates and model divided by %g", e->name, e->scale);
    t->events->note(t->events->ctx, text);
}

int shore__train_needs(const struct shore__settings *s, const struct shore__model *m, struct shore__needs *out,
                       struct shore_diag *diag) {
    struct shore__facts facts;
    struct shore__train_plan plan;
    struct shore__region_list rows = {0};
    struct shore__throttle *throttle;
    int rc = shore__emulation_throttle(s->emulate, &s->drives, &throttle, diag);
    if (!rc) rc = shore__train_facts(s, m, throttle, &facts, diag);
    if (!rc) rc = shore__plan_training(&facts, s->memory_bytes, &plan, &rows, out, diag);
    shore__regions_close(&rows);
    shore__throttle_close(throttle);
    return rc;
}

static int make_state(struct trainer *t, struct shore_fleet_options *options, bool overwrite, const char *processor,
                      struct shore_diag *diag) {
    struct shore__source *source = NULL;
    struct shore_fleet_info info = {.size = sizeof info};
    options->overwrite = overwrite || t->run->replace_drives;
    memcpy(options->fleet_id, t->run->fleet_id, sizeof options->fleet_id);
    int rc = t->s->model ? shore__source_directory(t->m, t->s->model, &source, diag)
                         : shore__source_init(t->m, t->s->seed, &source);
    if (!rc) rc = shore__run_replace(t->run, diag);
    if (!rc) rc = shore__fleet_create_emulated(t->m->layout, options, t->throttle, &t->fleet, diag);
    if (!rc) rc = shore__import(t->fleet, t->m, source, t->events->making, t->events->ctx, diag);
    if (!rc) rc = shore_fleet_seal(t->fleet, 0, diag);
    shore__source_close(source);
    if (rc) return rc;
    shore_fleet_info(t->fleet, &info);
    return shore__run_finish(t->run, info.fleet_id, processor, t->events->note, t->events->ctx, diag);
}

/* Not before the drives have been opened: a run that names a drive of another run would have lost its own. */
static int record_change(struct trainer *t, uint64_t step, struct shore_diag *diag) {
    char text[1024];
    snprintf(text, sizeof text, "from step %llu on: %s", (unsigned long long)step, t->run->change);
    if (t->events->note) t->events->note(t->events->ctx, text);
    return shore__run_record_change(t->run, step, t->run->change, diag);
}

static int open_state(struct trainer *t, struct shore_fleet_options *options, const uint64_t *accept_step,
                      const char *processor, struct shore_diag *diag) {
    options->accept_step = accept_step;
    options->hint_step = t->run->hint_step;
    options->generation = t->run->generation;
    memcpy(options->fleet_id, t->run->fleet_id, sizeof options->fleet_id);
    int rc = shore__fleet_open_emulated(t->m->layout, options, t->throttle, &t->fleet, diag);
    if (rc) return rc;
    struct shore_fleet_info info = {.size = sizeof info};
    shore_fleet_info(t->fleet, &info);
    t->result->opened = true; /* each volume has a new epoch */
    t->result->step = info.step;
    if (t->run->change) rc = record_change(t, info.step, diag);
    if (rc || !strcmp(processor, t->run->processor)) return rc;
    char what[320];
    snprintf(what, sizeof what, "processor changed from '%s' to '%s': results may differ in the last bits from here on",
             t->run->processor, processor);
    snprintf(t->run->processor, sizeof t->run->processor, "%s", processor);
    if (t->events->note) t->events->note(t->events->ctx, what);
    return shore__run_record_change(t->run, info.step, what, diag);
}

/* A kill after a commit may have cost the line of its step: the record holds it, but for what is measured later. */
static int recover_metrics(struct trainer *t, struct shore_diag *diag) {
    struct shore_fleet_info info = {.size = sizeof info};
    char line[SHORE__METRICS_LINE_BYTES + 64];
    uint32_t bytes = SHORE__METRICS_LINE_BYTES;
    shore_fleet_info(t->fleet, &info);
    if (shore_fleet_metrics(t->fleet, line, &bytes)) bytes = 0;
    if (bytes && t->run->hint_step < info.step && shore__batch_validation_due(t, info.step)) {
        double loss;
        shore__pager_set_step(t->pass.pager, info.step);
        int rc = shore__batch_validate(t, &loss, diag);
        if (rc) return rc;
        if (t->report.step == info.step) t->report.val_loss = loss;
        if (isfinite(loss)) bytes += (uint32_t)sprintf(line + bytes - 1, ",\"val_loss\":%.9g}", loss) - 1;
    }
    line[bytes] = 0;
    int rc = shore__metrics_recover(t->run, info.step, line, diag);
    if (!rc && t->run->note && t->events->note) t->events->note(t->events->ctx, t->run->note);
    free(t->run->note); /* once: a connection that breaks comes here again */
    t->run->note = NULL;
    return rc;
}

static int open_compute(struct trainer *t, char processor[SHORE__PROCESSOR_BYTES], struct shore_diag *diag) {
    struct shore__compute_options options = shore__settings_compute(t->s);
    struct shore__compute_description description;
    int rc = shore__compute_describe(&options, NULL, &description, diag);
    if (!rc) rc = shore__compute_open(&options, &t->c, diag);
    if (rc) return rc;
    shore__compute_identity(&description, processor, SHORE__PROCESSOR_BYTES);
    struct shore__shapes shapes = shore__batch_shapes(t->m, &t->facts.batch, true);
    shore__buf workspace = shore__memory_at(&t->memory, "workspace", 0);
    return t->c->ops->make(t->c, &shapes, workspace, t->plan.workspace_bytes, diag);
}

static int open_trainer(struct trainer *t, bool fresh, bool overwrite, const uint64_t *accept_step,
                        struct shore_diag *diag) {
    const struct shore__settings *s = t->s;
    char processor[SHORE__PROCESSOR_BYTES];
    int rc = shore__emulation_throttle(s->emulate, &s->drives, &t->throttle, diag);
    if (!rc) rc = shore__train_facts(s, t->m, t->throttle, &t->facts, diag);
    if (!rc) rc = shore__plan_training(&t->facts, s->memory_bytes, &t->plan, &t->rows, NULL, diag);
    if (rc) return rc;
    if (t->plan.hole_bytes) shore__heap_keep(true);
    rc = shore__arena_open(t->plan.fleet_bytes + t->plan.buffers_bytes, &t->arena, diag);
    if (rc) return rc;
    /* before the fleet takes its part, which is what is left */
    t->memory = (struct shore__memory){&t->rows, {{(uintptr_t)shore__arena_alloc(t->arena, t->plan.buffers_bytes)}}};
    if (shore__buf_is_none(t->memory.base[0]))
        return shore__fail(diag, -ENOMEM, "the memory plan is larger than its arena");
    rc = open_compute(t, processor, diag);
    if (rc) return rc;

    struct shore_fleet_options options;
    shore__plan_fleet_options(&t->facts, &t->plan, &options);
    options.arena = t->arena;
    say_emulated(t);
    options.note = t->events->note;
    options.note_ctx = t->events->ctx;
    rc = fresh ? make_state(t, &options, overwrite, processor, diag)
               : open_state(t, &options, accept_step, processor, diag);
    if (rc) return rc;

    rc = shore__activations_open(t, diag);
    if (rc) return rc;
    rc = shore__accounting_open(t->fleet, t->throttle, &t->accounting, diag);
    if (rc) return rc;
    t->pass.m = t->m;
    t->pass.c = t->c;
    rc = shore__train_place(t, &t->memory, diag);
    if (!rc) rc = shore__gradients_open(t, diag);
    if (!rc) rc = shore__idle_open(t, shore__ahead_wants(t), diag);
    if (!rc) rc = shore__ahead_open(t, diag);
    if (!rc) rc = shore__compress_open(t, diag);
    return rc || fresh ? rc : recover_metrics(t, diag);
}

static void close_trainer(struct trainer *t) {
    shore_fleet_close(t->fleet); /* first: all completions have run */
    shore__pager_close(t->pass.pager);
    shore__idle_close(t);
    shore__ahead_close(t);
    shore__gradients_close(t->gradients);
    shore__activations_close(t->activations);
    shore__accounting_close(t->accounting);
    if (t->c) t->c->ops->close(t->c);
    shore_arena_close(t->arena);
    shore__regions_close(&t->rows);
    shore__throttle_close(t->throttle);
}

/* ---- the loop ------------------------------------------------------------------------------------------------------
 */

static bool speculates(const struct trainer *t) {
    if (t->s->host_update) return false;
    if (t->s->speculate != SHORE__AUTO) return t->s->speculate == SHORE__ON;
    return shore__speculation_pays(&t->speculation, t->s->clip);
}

static int refuse(struct trainer *t, struct shore_diag *diag) {
    unsigned long long step = t->base_step + 1;
    bool loss = !isfinite(t->report.loss);
    if (t->s->skip_nonfinite) {
        char note[160];
        snprintf(note, sizeof note, "step %llu is skipped: its %s is not finite", step,
                 loss ? "loss" : "gradient norm");
        if (t->events->note) t->events->note(t->events->ctx, note);
        t->report.skipped = true;
        /* the next step reads what this one leaves where it is: not before the commit says so */
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

/* UPDATE may say so when the step after it is under way already: too late to skip it. */
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
    t->speculation.on = speculates(t);
    int rc = shore__step_compute(t, &finite, &replay, diag);
    if (!rc && replay) {
        replays = 1;
        t->speculation.on = false;
        rc = shore__step_compute(t, &finite, &replay, diag);
    }
    if (rc) return rc;
    double loss = t->report.loss;
    t->report = (struct shore__step_report){
        .step = t->base_step + 1,
        .loss = loss,
        .grad_norm = isfinite(loss) ? t->speculation.norm : NAN,
        .lr = shore__learning_rate(t->s, t->base_step + 1),
        .val_loss = NAN,
        .dropped_energy = shore__compress_dropped(t),
        .tokens = (uint64_t)t->s->batch * t->s->seq_len,
        .replays = replays,
        .speculated = shore__speculation_goes_on(&t->speculation) && finite,
    };
    if (finite) shore__compress_end_step(t, false);
    shore__speculation_remember(&t->speculation, finite ? t->speculation.norm : INFINITY);
    return finite ? shore__commit_submit(t, false, diag) : refuse(t, diag);
}

/* The step is safe whether this works or not. */
static void save_residual(struct trainer *t) {
    struct shore_diag diag = {{0}};
    char note[sizeof diag.text + 96];
    if (!shore__compress_save(t, &diag) || !t->events->note) return;
    snprintf(note, sizeof note, "what compression has left out of the gradients so far is lost: %s", diag.text);
    t->events->note(t->events->ctx, note);
}

static bool snapshot_due(const struct trainer *t, uint64_t step) {
    return t->s->snapshot_every && step % t->s->snapshot_every == 0;
}

/* Training does not depend on it: a full disk costs the snapshot, not the run. */
static void snapshot(struct trainer *t, uint64_t step) {
    struct shore_diag why = {{0}};
    char text[sizeof why.text + 64];
    int rc = shore__compress_save(t, &why); /* a part of it */
    if (!rc) rc = shore__snapshot_automatic(t->run, t->fleet, t->s->keep, t->events->note, t->events->ctx, &why);
    snprintf(text, sizeof text, "no snapshot of step %llu: %s", (unsigned long long)step, why.text);
    if (rc && t->events->note) t->events->note(t->events->ctx, text);
    shore__commit_begin_counting(t);
}

/* A kill, or a connection that broke, may have come between a commit and its snapshot. */
static void make_up_snapshot(struct trainer *t, uint64_t step) {
    if (step && snapshot_due(t, step) && !shore__snapshot_of_step(t->run, step)) snapshot(t, step);
}

/* A connection broke: to the committed step, with the line of a step whose acknowledgement was lost. */
static int go_back(struct trainer *t, struct shore_diag *diag) {
    int rc = SHORE_ELINK;
    if (!(t->report.step_seconds > 0)) t->report.step_seconds = shore__accounting_seconds(t->accounting);
    while (rc == SHORE_ELINK) {
        rc = shore__train_reconnect(t, &t->base_step, diag);
        if (rc) break;
        rc = recover_metrics(t, diag); /* which may measure a loss, and meet the next break */
    }
    if (!rc && t->base_step == t->report.step) shore__commit_report(t);
    if (!rc) make_up_snapshot(t, t->base_step);
    shore__commit_begin_counting(t);
    return rc;
}

int shore__train(struct shore__run *run, bool fresh, bool overwrite, const uint64_t *accept_step,
                 const struct shore__train_events *events, struct shore__train_result *out, struct shore_diag *diag) {
    struct trainer t = {.run = run, .s = &run->settings, .m = run->model, .events = events, .result = out};
    struct shore_fleet_info info = {.size = sizeof info};
    *out = (struct shore__train_result){.last_loss = NAN, .last_val_loss = NAN};
    int rc = open_trainer(&t, fresh, overwrite, accept_step, diag);
    if (rc) {
        close_trainer(&t);
        return rc;
    }
    out->opened = true;
    shore_fleet_info(t.fleet, &info);
    shore__commit_begin_counting(&t);
    uint64_t last = train_last_step(t.s);
    bool asked = false;
    make_up_snapshot(&t, info.step);
    for (t.base_step = info.step; !rc && !asked && t.base_step < last;) {
        rc = one_step(&t, diag);
        uint64_t made = t.base_step + 1;
        asked = events->should_stop && events->should_stop(events->ctx);
        bool keep = snapshot_due(&t, made);
        bool settle =
            made == last || asked || keep || shore__batch_validation_due(&t, made) || shore__train_sample_due(&t, made);
        if (!rc && settle) rc = shore__commit_finish(&t, diag);
        if (rc == SHORE_ELINK) {
            rc = go_back(&t, diag);
            asked = false;
            continue;
        }
        if (!rc && keep) snapshot(&t, made);
        t.base_step++;
    }
    shore__commit_forget(&t); /* what failed may be the step after it */
    shore_fleet_info(t.fleet, &info);
    out->step = info.step;
    out->emulated = t.throttle != NULL;
    out->stopped = info.step < t.s->steps;
    if (rc == SHORE_ENONFINITE && !t.refused) explain_new_value(&t, info.step, diag);
    while (!rc && (rc = shore_fleet_digest(t.fleet, false, out->digest, diag)) == SHORE_ELINK)
        rc = go_back(&t, diag);
    save_residual(&t); /* also of a run that cannot go on, for want of room say */
    close_trainer(&t);
    return rc;
}
