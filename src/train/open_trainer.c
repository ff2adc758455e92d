/* Opens and closes a trainer: plan, memory, compute, drives, then its parts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drive/counters.h"
#include "longshore/trace.h"
#include "pass/operations.h"
#include "run/emulation/tempo.h"
#include "storage/volume.h"
#include "train/trainer.h"

int shore__train_needs(const struct shore__settings *s, const struct shore__model *m, struct shore__needs *out,
                       struct shore_diag *diag) {
    struct shore__facts facts;
    struct shore__train_plan plan = {0};
    struct shore__tempo *tempo;
    int rc = shore__tempo_open(s->emulate, &s->drives, &tempo, diag);
    if (!rc) rc = shore__train_facts(s, m, tempo, &facts, diag);
    if (!rc) rc = shore__plan_training(&facts, s->memory_bytes, &plan, out, diag);
    shore__train_plan_close(&plan);
    shore__tempo_close(tempo);
    return rc;
}

/* Records changed drives, after they have been opened: otherwise a run that names another run's drive would lose its
 * own. */
static int record_change(struct trainer *t, uint64_t step, struct shore_diag *diag) {
    train_note(t, "from step %llu on: %s", (unsigned long long)step, t->run->change);
    int rc = shore__run_record_change(t->run, step, t->run->change, diag);
    free(t->run->change); /* only once */
    t->run->change = NULL;
    return rc;
}

static int open_state(struct trainer *t, struct shore_fleet_options *options, const uint64_t *accept_step,
                      const char *processor, struct shore_diag *diag) {
    options->accept_step = accept_step;
    options->hint_step = t->run->hint_step;
    options->generation = t->run->generation;
    memcpy(options->fleet_id, t->run->fleet_id, sizeof options->fleet_id);
    int rc = shore_fleet_open(t->m->layout, options, &t->fleet, diag);
    if (rc) return rc;
    const struct shore_fleet_info info = shore__fleet_info(t->fleet);
    t->result->opened = true; /* each volume has a new epoch */
    t->result->step = info.step;
    bool anew = t->run->data_from > info.step; /* also of a run that went back behind where its data began */
    if (anew) t->run->data_from = info.step;
    if (t->run->val_from > info.step) t->run->val_from = info.step;
    if (anew && !t->run->change && !(t->run->change = strdup("the data from their beginning")))
        return shore__out_of_memory(diag);
    if (t->run->change) rc = record_change(t, info.step, diag);
    if (rc == 0 && anew) shore__run_remove_old_data(t->run);
    if (rc || !strcmp(processor, t->run->processor)) return rc;
    char what[320];
    snprintf(what, sizeof what, "processor changed from '%s' to '%s': results may differ in the last bits from here on",
             t->run->processor, processor);
    snprintf(t->run->processor, sizeof t->run->processor, "%s", processor);
    train_note(t, "%s", what);
    return shore__run_record_change(t->run, info.step, what, diag);
}

/* The commit's record holds the line, except for figures that are measured later. */
int shore__train_recover_metrics(struct trainer *t, struct shore_diag *diag) {
    char line[SHORE__METRICS_BYTES + 64];
    uint32_t bytes = SHORE__METRICS_BYTES;
    const struct shore_fleet_info info = shore__fleet_info(t->fleet);
    if (shore_fleet_metrics(t->fleet, line, &bytes)) bytes = 0;
    if (bytes && t->run->hint_step < info.step && shore__batch_validation_due(t, info.step)) {
        double loss;
        shore_pages_set_step(t->pass.pages, info.step);
        int rc = shore__batch_validate(t, &loss, diag);
        if (rc) return rc;
        if (t->report.step == info.step) t->report.val_loss = loss;
        bytes +=
            (uint32_t)sprintf(line + bytes - 1, isfinite(loss) ? ",\"val_loss\":%.9g}" : ",\"val_loss\":null}", loss) -
            1;
    }
    line[bytes] = 0;
    int rc = shore__metrics_recover(t->run, info.step, line, diag);
    if (!rc && t->run->note) train_note(t, "%s", t->run->note);
    free(t->run->note); /* only once: a broken connection comes here again */
    t->run->note = NULL;
    return rc;
}

static int open_compute(struct trainer *t, char processor[SHORE__PROCESSOR_BYTES], struct shore_diag *diag) {
    struct shore__compute_options options = shore__settings_compute(t->s);
    struct shore__compute_description description;
    int rc = shore__compute_describe(&options, NULL, &description, diag);
    if (!rc) rc = shore__compute_open(&options, &t->c, diag);
    if (!rc) rc = shore__memory_open(&t->memory, &t->plan.plan->rows, t->c, diag);
    if (!rc) rc = t->c->ops->stream_open(t->c, &t->pass.stream, diag);
    if (rc) return rc;
    shore__compute_identity(&description, processor, SHORE__PROCESSOR_BYTES);
    struct shore__shapes shapes = shore__batch_shapes(t->m, &t->facts.batch, true);
    shore__buf workspace = shore__memory_at(&t->memory, SHORE__ROW_WORKSPACE, 0);
    return t->c->ops->make(t->c, &shapes, workspace, t->plan.workspace_bytes, diag);
}

/* Tells an emulation how long this plan computes. */
static void pace_computing(struct trainer *t) {
    double forward = shore__operations_forward_seconds(&t->facts, t->plan.program);
    double all = t->plan.plan->times.lane_seconds[SHORE_LANE_COMPUTE];
    shore__tempo_take_computing(t->tempo, forward, all - forward);
}

int shore__trainer_open(struct trainer *t, bool fresh, bool overwrite, const uint64_t *accept_step,
                        struct shore_diag *diag) {
    const struct shore__settings *s = t->s;
    char processor[SHORE__PROCESSOR_BYTES];
    t->opened_ns = shore__now_ns();
    int rc = shore__tempo_open(s->emulate, &s->drives, &t->tempo, diag);
    shore__tempo_take_step(t->tempo, t->run->hint_step + 1);
    if (!rc) rc = shore__train_facts(s, t->m, t->tempo, &t->facts, diag);
    if (!rc && t->machine) t->facts.machine = t->machine;
    if (!rc) rc = shore__plan_training(&t->facts, s->memory_bytes, &t->plan, NULL, diag);
    if (rc) return rc;
    t->facts.gathers = t->plan.gathers;
    if (s->gather == SHORE__ON && !t->plan.gathers) train_note(t, SHORE__GATHER_TIED);
    pace_computing(t);
    double peak = shore__machine_peak(s->machine, t->facts.products);
    if (peak > 0) t->best_seconds = shore__operations_of_model(t->plan.program) / peak;
    if (t->events->planned) t->events->planned(t->events->ctx, &t->facts, &t->plan);
    if (t->plan.hole_bytes) shore__heap_keep(true);
    rc = shore_arena_open(t->plan.fleet_bytes, 0, &t->arena, diag);
    if (!rc) rc = open_compute(t, processor, diag);
    if (rc) return rc;

    struct shore_fleet_options options;
    shore__plan_fleet_options(&t->facts, &t->plan, &options);
    options.arena = t->arena;
    const struct shore_machine *e = shore__tempo_machine(t->tempo);
    if (e && !t->machine)
        train_note(t, "emulated: times are those of %s, rates and model divided by %g", e->name, e->scale);
    options.note = t->events->note;
    options.note_ctx = t->events->ctx;
    options.overwrite = overwrite;
    rc = fresh ? shore__train_initial_state(t->run, &options, processor, t->events->making, t->events->ctx, &t->fleet,
                                            diag)
               : open_state(t, &options, accept_step, processor, diag);
    if (rc) return rc;

    shore__fleet_set_gate(t->fleet, shore__tempo_gate(t->tempo));
    shore_trace_follow(t->trace, t->fleet);
    if (s->trace && !t->trace) rc = shore_trace_open(t->run->path, (uint32_t)s->trace, t->fleet, &t->trace, diag);
    if (rc) return rc;
    t->pass.m = t->m;
    t->pass.c = t->c;
    rc = shore__activations_open(t, diag);
    if (!rc) rc = shore_meter_open(t->fleet, &t->meter, diag);
    if (!rc) rc = shore__pacing_open(t, diag);
    if (!rc) rc = shore__train_lay_out(t, &t->memory, diag);
    if (!rc) rc = shore__gradients_open(t, diag);
    if (!rc) rc = shore__experts_open(t, diag);
    if (!rc) rc = shore__compress_open(t, diag);
    if (!rc) rc = shore__drift_open(t, diag);
    return rc || fresh ? rc : shore__train_recover_metrics(t, diag);
}

void shore__trainer_close(struct trainer *t) {
    struct shore_diag diag;
    shore_fleet_close(t->fleet); /* first, so that all completions have run */
    if (shore_trace_close(t->trace, &diag)) train_note(t, "%s", diag.text);
    shore__parameters_close(t->pass.parameters);
    free(t->compression);
    shore_step_close(t->step);
    shore__gradients_close(t->gradients);
    shore__experts_close(t->experts);
    shore__lookups_close(&t->lookups);
    shore__activations_close(t->activations);
    shore_endurance_close(t->endurance);
    shore__drift_close(t);
    shore_meter_close(t->meter);
    if (t->pass.stream) t->c->ops->stream_close(t->c, t->pass.stream);
    if (t->c) shore__memory_close(&t->memory, t->c);
    if (t->c) t->c->ops->close(t->c);
    shore_arena_close(t->arena);
    shore__train_plan_close(&t->plan);
    shore_machine_free(t->machine);
    shore__tempo_close(t->tempo);
}

int shore__trainer_open_again(struct trainer *t, struct shore_diag *diag) {
    struct trainer new = {
        .run = t->run,
        .s = t->s,
        .m = t->m,
        .events = t->events,
        .result = t->result,
        .machine = shore__drift_take(t),
        .trace = t->trace,
        .base_step = t->base_step,
        .report = t->report,
        .reported = t->reported,
    };
    new.report.slow_drive = NULL; /* the fleet's */
    int rc = shore__compress_save(t, diag);
    t->trace = NULL;
    shore__trainer_close(t);
    *t = new;
    if (!rc) rc = shore__trainer_open(t, false, false, NULL, diag);
    if (!rc) shore__commit_begin_counting(t);
    return rc;
}
