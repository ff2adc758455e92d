/* Plans again in mid-run where the machine does not work as fast as it did when it was planned for: a drive got slow, a
 * host got busy, or either is over. What each drive and the processor take of a step, over its first steps, is what the
 * plan's rates stand for. If that changes by more than a fifth for several steps, the rates change with it, and a plan
 * that is then better takes the old one's place between two steps. No bit changes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "machine/machine.h"
#include "plan/simulate.h"
#include "train/trainer.h"

#define WARM_STEPS 2   /* after opening: they touch memory for the first time, and fill caches */
#define SAMPLE_STEPS 4 /* that a figure is of */
#define REST_STEPS 8   /* until it is looked at again, where no plan was better */
#define DRIFT 1.2
#define MATTERS 0.1 /* of a step's time: who takes less does not hold it up */
#define GAIN 0.03   /* of a step's time: the least that another plan is worth */
#define TELLS 1.0   /* seconds that steps take longer in the rest of the run: less is not worth a line */
#define PAYS 2      /* times that what is gained in the run pays for opening the trainer again */

/* Seconds of a step for which a drive was busy, or the last one: in which the processor computed. */
struct figure {
    uint64_t last_ns; /* of a drive: its counter when the step began */
    double before;    /* in the quickest of the first steps: what holds up one alone does not count */
    double now;       /* in the quickest of the last `off` ones */
};

struct drift {
    double open_seconds;           /* that opening the trainer took */
    double step_before, step_now;  /* of the whole step, as in struct figure */
    uint32_t steps, off, rest;     /* seen; the last ones in a row that drifted; steps until it is looked at again */
    bool told;                     /* that no other plan is better */
    struct shore_machine *machine; /* whose plan is better; NULL: none is */
    char *why;                     /* for the run's record */
    uint32_t n;
    struct figure of[];
};

int shore__drift_open(struct trainer *t, struct shore_diag *diag) {
    const size_t drives = t->s->drives.count;
    const uint32_t n = 1 + (uint32_t)(drives < SHORE__MACHINE_DRIVES_MAX ? drives : SHORE__MACHINE_DRIVES_MAX);
    if (!t->facts.scratch) return 0; /* drives in memory forget the state when they are closed */
    struct drift *d = t->drift = calloc(1, sizeof *d + n * sizeof d->of[0]);
    if (!d) return shore__out_of_memory(diag);
    d->n = n;
    d->open_seconds = (double)(shore__now_ns() - t->opened_ns) * 1e-9;
    return 0;
}

void shore__drift_close(struct trainer *t) {
    if (!t->drift) return;
    shore_machine_free(t->drift->machine);
    free(t->drift->why);
    free(t->drift);
}

struct shore_machine *shore__drift_take(struct trainer *t) {
    struct shore_machine *machine = t->drift->machine;
    t->run->change = t->drift->why;
    t->drift->machine = NULL;
    t->drift->why = NULL;
    return machine;
}

void shore__drift_begin_step(struct trainer *t) {
    for (uint32_t i = 0; t->drift && i + 1 < t->drift->n; i++)
        t->drift->of[i].last_ns = shore_fleet_drive_busy_ns(t->fleet, i);
}

static double seconds_of(struct trainer *t, uint32_t i) {
    struct figure *f = &t->drift->of[i];
    if (i + 1 == t->drift->n) return t->report.compute_seconds;
    uint64_t was = f->last_ns;
    f->last_ns = shore_fleet_drive_busy_ns(t->fleet, i);
    return (double)(f->last_ns - was) * 1e-9;
}

static double least(double so_far, double seconds, bool first) {
    return first || seconds < so_far ? seconds : so_far;
}

/* How much longer it takes now than before; 1: as long, or it does not matter. */
static double ratio(const struct drift *d, double before, double now, double step) {
    double x = before > 0 ? now / before : 1;
    bool matters = before > MATTERS * d->step_before || now > MATTERS * step;
    return matters && (x > DRIFT || x < 1 / DRIFT) ? x : 1;
}

void shore__drift_end_step(struct trainer *t) {
    struct drift *d = t->drift;
    if (!d) return;
    double seconds[SHORE__MACHINE_DRIVES_MAX + 1];
    bool first = d->steps < WARM_STEPS + SAMPLE_STEPS, off = false;
    for (uint32_t i = 0; i < d->n; i++)
        seconds[i] = seconds_of(t, i);
    d->steps++;
    if (d->steps <= WARM_STEPS) return;
    double step = t->report.step_seconds - t->report.paced_seconds;
    if (first) d->step_before = least(d->step_before, step, d->steps == WARM_STEPS + 1);
    for (uint32_t i = 0; i < d->n; i++)
        if (first)
            d->of[i].before = least(d->of[i].before, seconds[i], d->steps == WARM_STEPS + 1);
        else
            off |= ratio(d, d->of[i].before, seconds[i], step) != 1;
    if (d->rest) d->rest--;
    if (!off || d->rest) d->off = 0;
    if (!off || d->rest) return;
    for (uint32_t i = 0; i < d->n; i++)
        d->of[i].now = least(d->of[i].now, seconds[i], d->off <= 1); /* the first may have begun as before */
    d->step_now = least(d->step_now, step, d->off <= 1);
    d->off++;
}

/* The machine that the plan was made for, with the rates of the last steps. what: says what has changed. */
static struct shore_machine *machine_now(const struct trainer *t, char *what, size_t bytes) {
    const struct drift *d = t->drift;
    const struct shore_machine *was = t->facts.machine ? t->facts.machine : shore__machine_assumed();
    struct shore_machine *now = malloc(sizeof *now);
    *what = 0;
    if (!now) return NULL;
    *now = *was;
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
        shore__append(what, bytes, "%s%s takes %.2g times as long", *what ? ", " : "",
                      computing ? "computing" : t->s->drives.item[i]->text, x);
    }
    return now;
}

/* Seconds of the plan's step on another machine; 0: there is no memory to say. */
static double simulate(const struct shore_plan *plan, const struct shore_machine *machine) {
    struct shore_plan there = *plan;
    struct shore_diag why;
    there.simulation = NULL;
    there.options.machine = machine;
    int rc = shore__plan_time(&there, &why);
    shore__simulation_close(there.simulation);
    return rc ? 0 : there.times.step_seconds;
}

/* The same of the plan that would be made now. */
static double simulate_new(const struct trainer *t, const struct shore_machine *machine) {
    struct shore__facts facts = t->facts;
    struct shore__train_plan plan;
    struct shore_diag why;
    facts.machine = machine;
    int rc = shore__plan_training(&facts, t->s->memory_bytes, &plan, NULL, &why);
    double seconds = rc ? INFINITY : plan.plan->times.step_seconds;
    shore__train_plan_close(&plan);
    return seconds;
}

/* Whether a new plan saves so much that the steps that are left pay for opening the trainer again. */
static bool pays(const struct drift *d, double old, double new, uint64_t steps_left) {
    double gain = old > 0 ? 1 - new / old : 0;
    return gain > GAIN && gain * d->step_now * (double)steps_left > PAYS * d->open_seconds;
}

bool shore__drift_plans_again(struct trainer *t, uint64_t steps_left) {
    struct drift *d = t->drift;
    char what[400];
    if (!d || d->off < SAMPLE_STEPS) return false;
    shore_machine_free(d->machine);
    free(d->why);
    d->why = NULL;
    d->machine = machine_now(t, what, sizeof what);
    double old = d->machine ? simulate(t->plan.plan, d->machine) : 0;
    double new = old > 0 ? simulate_new(t, d->machine) : 0;
    bool better = pays(d, old, new, steps_left);
    d->off = 0;
    d->rest = REST_STEPS;
    if (!better && !d->told && *what && (d->step_now - d->step_before) * (double)steps_left > TELLS) {
        train_note(t, "planned again, since %s: no other plan saves enough time", what);
        d->told = true;
    }
    return better && asprintf(&d->why, "planned again, since %s: by simulation, a step takes %s instead of %s", what,
                              shore__format_seconds(new).text, shore__format_seconds(old).text) > 0;
}
