/* --max-writes-per-day: steps wait for what run/lifecycle/endurance.c counts. */
#include <stdlib.h>

#include "base/units.h"
#include "train/trainer.h"

int shore__pacing_open(struct trainer *t, struct shore_diag *diag) {
    uint32_t n = (uint32_t)t->s->drives.count;
    uint64_t *most = calloc(n + 1, sizeof *most);
    int rc = most ? shore__settings_max_writes(t->s, &most[n], most, diag) : shore__out_of_memory(diag);
    if (!rc) rc = shore__endurance_open(t->run, t->fleet, most, 0, &t->endurance, diag);
    free(most);
    return rc;
}

bool shore__pacing_wait(struct trainer *t) {
    const double look = 0.1;
    uint64_t start = shore__now_ns();
    bool asked = false;
    double left = shore_endurance_left(t->endurance);
    if (!(left > 0)) return false;
    if (!t->told_of_pacing) {
        t->told_of_pacing = true;
        train_note(t, "steps wait for --max-writes-per-day %s: the next one begins in %s", t->s->max_writes,
                   shore__format_seconds(left).text);
    }
    while (left > 0 && !asked) {
        shore__pause_until(shore__now_ns() + (uint64_t)(1e9 * (left < look ? left : look)));
        asked = t->events->should_stop && t->events->should_stop(t->events->ctx);
        left = shore_endurance_left(t->endurance);
    }
    t->paced_seconds = (double)(shore__now_ns() - start) * 1e-9;
    return asked;
}
