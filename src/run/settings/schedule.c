/* The learning rate over a run. */
#include <math.h>

#include "run/settings.h"

/* Warmup steps: 2% of all steps. Random weights take at least 100 steps, or a third of a short run: Adam's first steps
 * are as large as the rate whatever the gradient, and losses jumped (bench/results/first-steps.md). */
uint64_t shore__warmup_for(const struct shore__settings *s, uint64_t steps) {
    uint64_t share = steps / 50, least = steps / 3 < 100 ? steps / 3 : 100;
    return s->model || share > least ? share : least;
}

double shore__learning_rate(const struct shore__settings *s, uint64_t step) {
    uint64_t steps = s->steps ? s->steps : 1000;
    uint64_t warmup = s->warmup == SHORE__WARMUP_CHOSEN ? shore__warmup_for(s, steps) : s->warmup;
    double lr = isnan(s->lr) ? 3e-4 : s->lr;
    double least = isnan(s->min_lr) ? lr / 10 : s->min_lr;
    if (step < warmup) return lr * (double)step / (double)warmup;
    uint64_t first = warmup ? warmup : 1; /* the first step at the full rate */
    if (s->schedule == SHORE__CONSTANT || step <= first) return lr;
    double done = step >= steps ? 1 : (double)(step - first) / (double)(steps - first);
    double left = s->schedule == SHORE__LINEAR ? 1 - done : 0.5 * (1 + cos(3.14159265358979323846 * done));
    return least + (lr - least) * left;
}
