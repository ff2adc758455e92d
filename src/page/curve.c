#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "page/page.h"

#define VALUE_MOST 1e30

int shore__curve_init(struct shore__curve *c, uint32_t room) {
    *c = (struct shore__curve){.room = room, .steps_per_span = 1, .at = calloc(room, sizeof *c->at)};
    return c->at ? 0 : -ENOMEM;
}

void shore__curve_fini(struct shore__curve *c) {
    free(c->at);
    *c = (struct shore__curve){0};
}

static void join(struct shore__values *to, const struct shore__values *from) {
    if (!from->n) return;
    to->least = to->n && to->least < from->least ? to->least : from->least;
    to->most = to->n && to->most > from->most ? to->most : from->most;
    to->sum += from->sum;
    to->n += from->n;
}

/* Makes spans twice as long, in place: each two become one. */
static void halve(struct shore__curve *c) {
    for (uint32_t i = 0; i < c->room; i++) {
        const struct shore__values span = c->at[i];
        c->at[i] = (struct shore__values){0};
        join(&c->at[i / 2], &span);
    }
    c->steps_per_span *= 2;
    c->count = (c->count + 1) / 2;
}

void shore__curve_add(struct shore__curve *c, uint64_t step, double value) {
    if (!isfinite(value) || fabs(value) > VALUE_MOST) return;
    while (step / c->steps_per_span >= c->room)
        halve(c);
    uint32_t i = (uint32_t)(step / c->steps_per_span);
    join(&c->at[i], &(struct shore__values){value, value, value, 1});
    if (i >= c->count) c->count = i + 1;
}
