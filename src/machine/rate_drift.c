/* A machine that gets slower or faster in mid-run. What each drive and the processor take of a step, over its first
 * steps, is what a plan's rates stand for. If that changes by more than a fifth for several steps, the rates change
 * with it. If the first steps themselves take far from what the plan says, as with rates that were assumed or are old,
 * its own seconds take the place of theirs, once. */
#include <stdlib.h>

#include "base/diag.h"
#include "base/sized.h"
#include "base/units.h"
#include "longshore/state.h"
#include "machine/machine.h"

#define WARM_STEPS 2   /* after opening: they touch memory for the first time, and fill caches */
#define SAMPLE_STEPS 4 /* that a figure is of */
#define REST_STEPS 8   /* until it is looked at again, where no plan was better */
#define DRIFT 1.2
#define MATTERS 0.1    /* of a step's time: who takes less does not hold it up */
#define FAR 1.5        /* from what the plan says: less is its own error */
#define FULL 0.9       /* of a step: a drive that is busy for so much of it, and */
#define HELD (1.0 / 3) /* waited for so much, takes as long as it is busy; another may be quicker than that */

/* Seconds of a step for which a drive was busy, or the last one: in which the processor computed. */
struct figure {
    uint64_t last_ns; /* of a drive: its counter when the step began */
    double before;    /* in the quickest of the first steps: what holds up one alone does not count */
    double now;       /* in the quickest of the last `off` ones */
};

struct shore_drift {
    const struct shore_fleet *fleet;
    double step_before, step_now; /* of the whole step, as in struct figure */
    uint32_t steps, off, rest;    /* seen; the last ones in a row that drifted; steps until it is looked at again */
    double planned_step, planned_compute, planned_drive; /* of the plan; 0: it is not compared with the first steps */
    bool far; /* the first steps took far from that, which is looked at now */
    uint32_t n;
    struct figure of[];
};

int shore_drift_open(const struct shore_fleet *fleet, struct shore_drift **out, struct shore_diag *diag) {
    struct shore_fleet_info info = {.size = sizeof info};
    shore_fleet_info(fleet, &info);
    uint32_t drives = info.ndrives < SHORE__MACHINE_DRIVES_MAX ? info.ndrives : SHORE__MACHINE_DRIVES_MAX;
    struct shore_drift *d = *out = calloc(1, sizeof *d + (drives + 1) * sizeof d->of[0]);
    if (!d) return shore__out_of_memory(diag);
    d->fleet = fleet;
    d->n = drives + 1;
    shore_drift_begin(d);
    return 0;
}

void shore_drift_close(struct shore_drift *drift) {
    free(drift);
}

void shore_drift_begin(struct shore_drift *d) {
    for (uint32_t i = 0; i + 1 < d->n; i++)
        d->of[i].last_ns = shore_fleet_drive_busy_ns(d->fleet, i);
}

static double busy_seconds(struct shore_drift *d, uint32_t i) {
    uint64_t was = d->of[i].last_ns;
    d->of[i].last_ns = shore_fleet_drive_busy_ns(d->fleet, i);
    return (double)(d->of[i].last_ns - was) * 1e-9;
}

static double least(double so_far, double seconds, bool first) {
    return first || seconds < so_far ? seconds : so_far;
}

void shore__drift_planned(struct shore_drift *d, double step_seconds, double compute_seconds, double drive_seconds) {
    d->planned_step = step_seconds;
    d->planned_compute = compute_seconds;
    d->planned_drive = drive_seconds;
}

/* Compares the first steps with the plan. */
static bool compare_with_plan(struct shore_drift *d) {
    const double x = d->planned_step > 0 ? d->step_before / d->planned_step : 1;
    const bool held = d->step_before - d->of[d->n - 1].before > HELD * d->step_before;
    if (x < FAR && x > 1 / FAR) return false;
    for (uint32_t i = 0; i < d->n; i++) {
        struct figure *f = &d->of[i];
        double planned = i + 1 == d->n ? d->planned_compute : d->planned_drive;
        bool known = i + 1 == d->n || f->before < planned || (held && f->before > FULL * d->step_before);
        f->now = f->before;
        if (known) f->before = planned;
    }
    d->step_now = d->step_before;
    d->step_before = d->planned_step;
    return true;
}

/* From now on, the first steps are what later ones are compared with. */
static void leave_plan(struct shore_drift *d) {
    for (uint32_t i = 0; i < d->n; i++)
        d->of[i].before = d->of[i].now;
    d->step_before = d->step_now;
    d->far = false;
}

/* How much longer it takes now than before; 1: as long, or it does not matter. */
static double ratio(const struct shore_drift *d, double before, double now, double step) {
    double x = before > 0 ? now / before : 1;
    bool matters = before > MATTERS * d->step_before || now > MATTERS * step;
    return matters && (x > DRIFT || x < 1 / DRIFT) ? x : 1;
}

bool shore_drift_end(struct shore_drift *d, double compute_seconds, double step_seconds) {
    double seconds[SHORE__MACHINE_DRIVES_MAX + 1];
    bool first = d->steps < WARM_STEPS + SAMPLE_STEPS, off = false;
    for (uint32_t i = 0; i + 1 < d->n; i++)
        seconds[i] = busy_seconds(d, i);
    seconds[d->n - 1] = compute_seconds;
    if (++d->steps <= WARM_STEPS || d->far) return d->far;
    if (first) d->step_before = least(d->step_before, step_seconds, d->steps == WARM_STEPS + 1);
    for (uint32_t i = 0; i < d->n; i++)
        if (first)
            d->of[i].before = least(d->of[i].before, seconds[i], d->steps == WARM_STEPS + 1);
        else
            off |= ratio(d, d->of[i].before, seconds[i], step_seconds) != 1;
    if (d->steps == WARM_STEPS + SAMPLE_STEPS) d->far = compare_with_plan(d);
    if (first) return d->far;
    if (d->rest) d->rest--;
    if (!off || d->rest) d->off = 0;
    if (!off || d->rest) return false;
    for (uint32_t i = 0; i < d->n; i++)
        d->of[i].now = least(d->of[i].now, seconds[i], d->off <= 1); /* the first may have begun as before */
    d->step_now = least(d->step_now, step_seconds, d->off <= 1);
    return ++d->off >= SAMPLE_STEPS;
}

/* Makes the machine's rates those of the last steps, and says what has changed. */
static void change_rates(const struct shore_drift *d, const struct shore_machine *was, struct shore_machine *now,
                         struct shore_drift_change *change) {
    now->ndrives = was->ndrives ? d->n - 1 : 0;
    for (uint32_t i = 0; i < now->ndrives; i++)
        now->drive[i] = *shore__machine_drive(was, i);
    for (uint32_t i = 0; i < d->n; i++) {
        double x = ratio(d, d->of[i].before, d->of[i].now, d->step_now);
        bool computing = i + 1 == d->n;
        if (x == 1 || (!computing && !now->ndrives)) continue;
        if (computing)
            shore__machine_slow_computing(now, x);
        else
            shore__machine_slow_drive(&now->drive[i], x);
        shore__append(change->what, sizeof change->what, "%s%s takes %.2g times as long%s", *change->what ? ", " : "",
                      computing ? "computing" : shore_fleet_drive_path(d->fleet, i), x, d->far ? " as planned" : "");
    }
}

int shore_drift_take(struct shore_drift *d, const struct shore_machine *was, struct shore_drift_change *change,
                     struct shore_machine **out, struct shore_diag *diag) {
    struct shore_drift_change found = {
        .size = sizeof found, .before_seconds = d->far ? d->step_now : d->step_before, .now_seconds = d->step_now};
    struct shore_machine *now = *out = malloc(sizeof *now);
    if (!now) return shore__out_of_memory(diag);
    if (!was) was = shore__machine_assumed();
    *now = *was;
    change_rates(d, was, now, &found);
    if (d->far) leave_plan(d);
    d->off = 0;
    d->rest = REST_STEPS;
    return shore__sized_out(change, &found, sizeof found);
}
