/* A limit of writes a day holds back steps, so that what the drives have written since the start, with the step that
 * begins, is never more than the limit's share of the time. A run that goes on counts from its last step. Time that
 * passed without writes is not made up for: a day of waiting for a drive is no day's worth of writes. */
#include <stdlib.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/counters.h"
#include "longshore/run.h"
#include "run/run.h"

/* Of a drive, or of all together. */
struct written {
    uint64_t most;  /* bytes a day; 0: any */
    uint64_t start; /* counted before the first step */
    double step;    /* of a step, on average, when a step was held back; at first 0 */
};

struct shore_endurance {
    struct shore_fleet *fleet;
    uint64_t start_ns, steps; /* steps: made since the start */
    uint32_t ndrives;
    struct written of[]; /* each drive, then all */
};

static uint64_t count(const struct shore_endurance *e, uint32_t i) {
    uint64_t bytes = 0;
    if (i < e->ndrives) return shore__fleet_written(e->fleet, i);
    for (i = 0; i < e->ndrives; i++)
        bytes += shore__fleet_written(e->fleet, i);
    return bytes;
}

/* The run's last step counts: a run that is started again and again makes no more steps than one that goes on. */
static void count_last_step(struct shore_endurance *e, const struct shore__run *run, uint64_t step_bytes) {
    struct shore__pulse pulse;
    double all = 0;
    shore__run_pulse(run, &pulse);
    if (!pulse.steps_timed) return;
    if (pulse.written_bytes > step_bytes) step_bytes = pulse.written_bytes;
    uint64_t ago_ns = pulse.seconds_ago > 0 ? (uint64_t)(pulse.seconds_ago * 1e9) : 0;
    e->start_ns = e->start_ns > ago_ns ? e->start_ns - ago_ns : 0;
    e->steps = 1;
    for (uint32_t i = 0; i < e->ndrives; i++)
        all += (double)shore_fleet_drive_segments(e->fleet, i);
    for (uint32_t i = 0; i <= e->ndrives; i++) {
        double share = i < e->ndrives ? (double)shore_fleet_drive_segments(e->fleet, i) / all : 1;
        e->of[i].start -= (uint64_t)(share * (double)step_bytes);
    }
}

int shore__endurance_open(const struct shore__run *run, struct shore_fleet *fleet, const uint64_t *most,
                          uint64_t step_bytes, struct shore_endurance **out, struct shore_diag *diag) {
    uint32_t n = shore__fleet_info(fleet).ndrives;
    bool limited = false;
    *out = NULL;
    for (uint32_t i = 0; i <= n; i++)
        limited |= most[i] > 0;
    if (!limited) return 0;
    struct shore_endurance *e = *out = calloc(1, sizeof *e + (n + 1) * sizeof e->of[0]);
    if (!e) return shore__out_of_memory(diag);
    e->fleet = fleet;
    e->ndrives = n;
    e->start_ns = shore__now_ns();
    for (uint32_t i = 0; i <= n; i++)
        e->of[i] = (struct written){.most = most[i], .start = count(e, i)};
    count_last_step(e, run, step_bytes);
    return 0;
}

void shore_endurance_close(struct shore_endurance *endurance) {
    free(endurance);
}

/* When the next step may begin, if so many steps' writes come on top of those that are counted. */
static uint64_t due_ns(const struct shore_endurance *e, unsigned beyond) {
    double latest = 0;
    for (uint32_t i = 0; i <= e->ndrives; i++) {
        const struct written *w = &e->of[i];
        double bytes = (double)(count(e, i) - w->start) + w->step * beyond;
        double seconds = w->most ? bytes * SHORE__DAY_SECONDS / (double)w->most : 0;
        if (seconds > latest) latest = seconds;
    }
    return e->start_ns + (uint64_t)(latest * 1e9);
}

/* Forgets time that passed without writes. */
static void forget(struct shore_endurance *e, uint64_t now, uint64_t due) {
    if (now > due) e->start_ns += now - due;
}

bool shore_endurance_holds(struct shore_endurance *e) {
    if (!e) return false;
    if (e->steps++ == 0) return true;                   /* nobody knows what a step writes */
    uint64_t now = shore__now_ns(), due = due_ns(e, 3); /* what the commit still writes, and the next step */
    forget(e, now, due);
    return due > now;
}

double shore_endurance_left(struct shore_endurance *e) {
    if (!e || !e->steps) return 0;
    for (uint32_t i = 0; i <= e->ndrives; i++)
        e->of[i].step = (double)(count(e, i) - e->of[i].start) / (double)e->steps;
    uint64_t now = shore__now_ns(), due = due_ns(e, 1);
    forget(e, now, due);
    return due > now ? (double)(due - now) * 1e-9 : 0;
}
