/* Plans again in mid-run where the machine does not work as fast as it did when it was planned for. If its rates
 * change, or are far from the plan's (src/machine/rate_drift.c), a plan that is then better takes the old one's place
 * between two steps. No bit changes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/units.h"
#include "machine/machine.h"
#include "plan/simulate.h"
#include "train/trainer.h"

#define GAIN 0.03 /* of a step's time: the least that another plan is worth */
#define TELLS 1.0 /* seconds that steps take longer in the rest of the run: less is not worth a line */
#define PAYS 2    /* times that what is gained in the run pays for opening the trainer again */

struct drift {
    struct shore_drift *rates;
    double open_seconds;           /* that opening the trainer took */
    bool off;                      /* rates have changed */
    bool told;                     /* that no other plan is better */
    struct shore_machine *machine; /* whose plan is better; NULL: none is */
    char *why;                     /* for the run's record */
};

/* Not if it was planned again before, or if steps wait for a limit of writes. */
static void say_planned(const struct trainer *t) {
    const struct shore_plan_times *plan = &t->plan.plan->times;
    double drive = 0;
    for (int lane = 0; lane < SHORE_LANES; lane++)
        if (lane != SHORE_LANE_COMPUTE) drive = fmax(drive, plan->lane_seconds[lane]);
    if (plan->bound != SHORE_LANES)
        shore__drift_planned(t->drift->rates, plan->step_seconds, plan->lane_seconds[SHORE_LANE_COMPUTE], drive);
}

int shore__drift_open(struct trainer *t, struct shore_diag *diag) {
    if (!t->facts.scratch) return 0; /* drives in memory forget the state when they are closed */
    struct drift *d = t->drift = calloc(1, sizeof *d);
    if (!d) return shore__out_of_memory(diag);
    d->open_seconds = (double)(shore__now_ns() - t->opened_ns) * 1e-9;
    int rc = shore_drift_open(t->fleet, &d->rates, diag);
    if (!rc && !t->machine) say_planned(t);
    return rc;
}

void shore__drift_close(struct trainer *t) {
    if (!t->drift) return;
    shore_drift_close(t->drift->rates);
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
    if (t->drift) shore_drift_begin(t->drift->rates);
}

void shore__drift_end_step(struct trainer *t) {
    double seconds = t->report.step_seconds - t->report.paced_seconds;
    if (t->drift) t->drift->off = shore_drift_end(t->drift->rates, t->report.compute_seconds, seconds);
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
static bool pays(const struct drift *d, double old, double new, double seconds_left) {
    double gain = old > 0 ? 1 - new / old : 0;
    return gain > GAIN && gain * seconds_left > PAYS * d->open_seconds;
}

bool shore__drift_plans_again(struct trainer *t, uint64_t steps_left) {
    struct drift *d = t->drift;
    struct shore_drift_change change = {.size = sizeof change};
    struct shore_diag why;
    if (!d || !d->off) return false;
    d->off = false;
    shore_machine_free(d->machine);
    free(d->why);
    d->why = NULL;
    if (shore_drift_take(d->rates, t->facts.machine, &change, &d->machine, &why)) return false;
    double old = simulate(t->plan.plan, d->machine), new = old > 0 ? simulate_new(t, d->machine) : 0;
    bool better = pays(d, old, new, change.now_seconds * (double)steps_left);
    double lost = (change.now_seconds - change.before_seconds) * (double)steps_left;
    if (!better && !d->told && *change.what && lost > TELLS) {
        train_note(t, "planned again, since %s: no other plan saves enough time", change.what);
        d->told = true;
    }
    return better && asprintf(&d->why, "planned again, since %s: by simulation, a step takes %s instead of %s",
                              change.what, shore__format_seconds(new).text, shore__format_seconds(old).text) > 0;
}
