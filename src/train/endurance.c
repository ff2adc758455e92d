/* --max-writes-per-day: holds back steps, so that what the drives have written since the start, with the step that
 * begins, is never more than the limit's share of the time. A resumed run counts from its last step. Time that passed
 * without writes is not made up for: a day of waiting for a drive is no day's worth of writes. */
#include <stdlib.h>

#include "base/units.h"
#include "train/trainer.h"

/* Of a drive, or of all together. */
struct written {
    uint64_t most;  /* bytes a day; 0: any */
    uint64_t start; /* counted before the first step */
    double step;    /* of a step, on average, when a step was held back; at first 0 */
};

struct endurance {
    uint64_t start_ns, steps; /* steps: made since the start */
    bool said;
    uint32_t ndrives;
    struct written of[]; /* each drive, then all */
};

static uint64_t count(const struct trainer *t, uint32_t i) {
    uint64_t bytes = 0, n = t->endurance->ndrives;
    if (i < n) return shore__fleet_written(t->fleet, i);
    for (i = 0; i < n; i++)
        bytes += shore__fleet_written(t->fleet, i);
    return bytes;
}

/* The run's last step counts: a run that is started again and again makes no more steps than one that goes on. */
static void count_last_step(struct trainer *t) {
    struct endurance *e = t->endurance;
    struct shore__pulse pulse;
    shore__run_pulse(t->run, &pulse);
    if (!pulse.written_bytes) return;
    uint64_t ago_ns = pulse.seconds_ago > 0 ? (uint64_t)(pulse.seconds_ago * 1e9) : 0;
    e->start_ns = e->start_ns > ago_ns ? e->start_ns - ago_ns : 0;
    e->steps = 1;
    for (uint32_t i = 0; i <= e->ndrives; i++) {
        double share =
            i < e->ndrives ? (double)shore_fleet_drive_segments(t->fleet, i) / (double)t->m->layout->segments : 1;
        e->of[i].start -= (uint64_t)(share * (double)pulse.written_bytes);
    }
}

int shore__endurance_open(struct trainer *t, bool fresh, struct shore_diag *diag) {
    uint32_t n = (uint32_t)t->s->drives.count;
    uint64_t *most = calloc(n + 1, sizeof *most);
    bool limited = false;
    int rc = most ? shore__settings_max_writes(t->s, &most[n], most, diag) : shore__out_of_memory(diag);
    for (uint32_t i = 0; !rc && i <= n; i++)
        limited |= most[i] > 0;
    if (limited && !(t->endurance = calloc(1, sizeof *t->endurance + (n + 1) * sizeof t->endurance->of[0])))
        rc = shore__out_of_memory(diag);
    if (t->endurance) {
        t->endurance->ndrives = n;
        t->endurance->start_ns = shore__now_ns();
        for (uint32_t i = 0; i <= n; i++)
            t->endurance->of[i] = (struct written){.most = most[i], .start = count(t, i)};
        if (!fresh) count_last_step(t);
    }
    free(most);
    return rc;
}

void shore__endurance_close(struct trainer *t) {
    free(t->endurance);
}

/* When the next step may begin, if so many steps' writes come on top of those that are counted. */
static uint64_t due_ns(struct trainer *t, unsigned beyond) {
    const struct endurance *e = t->endurance;
    double latest = 0;
    for (uint32_t i = 0; i <= e->ndrives; i++) {
        const struct written *w = &e->of[i];
        double bytes = (double)(count(t, i) - w->start) + w->step * beyond;
        double seconds = w->most ? bytes * SHORE__DAY_SECONDS / (double)w->most : 0;
        if (seconds > latest) latest = seconds;
    }
    return e->start_ns + (uint64_t)(latest * 1e9);
}

/* Forgets time that passed without writes. */
static void forget(struct endurance *e, uint64_t now, uint64_t due) {
    if (now > due) e->start_ns += now - due;
}

bool shore__endurance_holds(struct trainer *t) {
    if (!t->endurance) return false;
    if (t->endurance->steps++ == 0) return true;        /* nobody knows what a step writes */
    uint64_t now = shore__now_ns(), due = due_ns(t, 3); /* what the commit still writes, and the next step */
    forget(t->endurance, now, due);
    return due > now;
}

/* Says once what a step waits for. */
static void say(struct trainer *t, double seconds) {
    if (t->endurance->said) return;
    t->endurance->said = true;
    train_note(t, "steps wait for --max-writes-per-day %s: the next one begins in %s", t->s->max_writes,
               shore__format_seconds(seconds).text);
}

bool shore__endurance_wait(struct trainer *t) {
    const uint64_t look_ns = 100000000;
    struct endurance *e = t->endurance;
    if (!e || !e->steps) return false;
    for (uint32_t i = 0; i <= e->ndrives; i++)
        e->of[i].step = (double)(count(t, i) - e->of[i].start) / (double)e->steps;
    uint64_t due = due_ns(t, 1), start = shore__now_ns(), now = start;
    bool asked = false;
    if (due > now) say(t, (double)(due - now) * 1e-9);
    while (now < due && !asked) {
        shore__pause_until(due - now > look_ns ? now + look_ns : due);
        now = shore__now_ns();
        asked = t->events->should_stop && t->events->should_stop(t->events->ctx);
    }
    forget(e, now, due);
    t->paced_seconds = (double)(now - start) * 1e-9;
    return asked;
}
