#include <errno.h>
#include <stdlib.h>

#include "report/report.h"

#define WEIGHT 0.3     /* of the newest step */
#define STEPS_LEAST 3u /* before a drive is named */
#define FACTOR_LEAST 1.5
#define SHARE_LEAST 0.5 /* of a step: a drive that works less holds up no other */

int shore__slowness_init(struct shore__slowness *s, uint32_t ndrives) {
    *s = (struct shore__slowness){.ndrives = ndrives};
    s->last_ns = calloc(ndrives, sizeof *s->last_ns);
    s->smooth = calloc(ndrives, sizeof *s->smooth);
    return s->last_ns && s->smooth ? 0 : -ENOMEM;
}

void shore__slowness_fini(struct shore__slowness *s) {
    free(s->last_ns);
    free(s->smooth);
    *s = (struct shore__slowness){0};
}

int shore__slowness_step(struct shore__slowness *s, const uint64_t *busy_ns, double step_seconds, double *factor) {
    uint32_t worst = 0, working = 0;
    double sum = 0;
    for (uint32_t d = 0; d < s->ndrives; d++) {
        double seconds = (double)(busy_ns[d] - s->last_ns[d]) * 1e-9;
        s->last_ns[d] = busy_ns[d];
        s->smooth[d] = s->steps ? (1 - WEIGHT) * s->smooth[d] + WEIGHT * seconds : seconds;
        if (s->smooth[d] > s->smooth[worst]) worst = d;
        sum += s->smooth[d];
        working += s->smooth[d] > 0;
    }
    s->steps++;
    if (working < 2 || s->steps < STEPS_LEAST) return -1;
    double others = (sum - s->smooth[worst]) / (working - 1);
    *factor = s->smooth[worst] / others;
    return *factor >= FACTOR_LEAST && s->smooth[worst] >= SHARE_LEAST * step_seconds ? (int)worst : -1;
}
