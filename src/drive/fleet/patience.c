/* Waiting for lost drives: how long, how often, and what the user is told. */
#include <inttypes.h>
#include <stdbool.h>

#include "base/diag.h"
#include "base/units.h"
#include "longshore/state.h"

#define PAUSE_MS_LEAST 100u
#define PAUSE_MS_MOST 5000u
/* In one step. More losses are no accident: this very step breaks the far side, for example its memory. */
#define LOSSES_MOST 20u

static bool may_pass(int rc) {
    return rc == SHORE_ELINK || rc == SHORE_EBUSY || rc == SHORE_EMISSING;
}

static double seconds_since(const struct shore_patience *p) {
    return (double)(shore__now_ns() - p->since_ns) * 1e-9;
}

void shore_patience_begin(struct shore_patience *p, const struct shore_diag *lost, struct shore_diag *said) {
    p->lost = *lost;
    p->since_ns = shore__now_ns();
    p->pause_ms = PAUSE_MS_LEAST;
    shore__fail(said, 0, "%.800s; waiting for it for up to %s", lost->text, shore__format_seconds(p->seconds).text);
}

int shore_patience_try(struct shore_patience *p, int rc, struct shore_diag *diag) {
    const struct shore_diag why = *diag;
    if (!may_pass(rc)) return rc;
    if (seconds_since(p) > p->seconds)
        return shore__fail_of(
            diag, SHORE_ELINK, &why,
            "gave up after %s, the committed state is good: %.500s; when the drive is back, go on with: %s",
            shore__format_seconds(seconds_since(p)).text, why.text, p->go_on);
    shore__pause_until(shore__now_ns() + p->pause_ms * UINT64_C(1000000));
    p->pause_ms = p->pause_ms * 2 < PAUSE_MS_MOST ? p->pause_ms * 2 : PAUSE_MS_MOST;
    return 1;
}

int shore_patience_end(struct shore_patience *p, uint64_t step, struct shore_diag *diag, struct shore_diag *said) {
    p->losses = p->losses && step == p->at_step ? p->losses + 1 : 1;
    p->at_step = step;
    if (p->losses > LOSSES_MOST)
        return shore__fail(diag, SHORE_ELINK,
                           "gave up, since a drive was lost %u times in step %" PRIu64
                           "; the committed state is good: %.500s; when that is mended, go on with: %s",
                           p->losses, step + 1, p->lost.text, p->go_on);
    shore__fail(said, 0, "connected again after %s: going on from step %" PRIu64,
                shore__format_seconds(seconds_since(p)).text, step);
    return 0;
}
