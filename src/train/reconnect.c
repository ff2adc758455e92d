/* A drive on another host is lost in the middle of training: its state is safe where it is. Everything that is under
 * way is given up, and once the drive is back, training goes on from the committed step. */
#include <stdio.h>
#include <time.h>

#include "base/diag.h"
#include "base/units.h"
#include "train/trainer.h"

#define PAUSE_MS_LEAST 100u
#define PAUSE_MS_MOST 5000u
/* In one step: more are no accident, but a far side that this very step ends (its memory, say). */
#define LOSSES_MOST 20u

static void say(struct trainer *t, const char *text) {
    if (t->events->note) t->events->note(t->events->ctx, text);
}

/* Nothing of the attempt is left: no request, no page, no failure. */
static void give_up_attempt(struct trainer *t) {
    shore__commit_forget(t);
    shore_fleet_discard(t->fleet);
    shore__activations_give_up(t);
    shore__ahead_drop(t);
    shore__parameters_release(t->pass.parameters);
    shore_pages_forget(t->pass.pages);
    shore__compress_forget(t);
    shore__gradients_forget(t);
}

static bool may_pass(int rc) {
    return rc == SHORE_ELINK || rc == SHORE_EBUSY || rc == SHORE_EMISSING;
}

static void wait_ms(unsigned ms) {
    struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

static bool stop_asked(const struct trainer *t) {
    return t->events->should_stop && t->events->should_stop(t->events->ctx);
}

int shore__train_reconnect(struct trainer *t, uint64_t *step, struct shore_diag *diag) {
    char text[sizeof diag->text + 160], seconds[32];
    const struct shore_diag lost = *diag;
    struct shore_diag why = lost;
    struct shore_fleet_info info = {.size = sizeof info};
    uint64_t start = shore__now_ns(), limit = (uint64_t)(t->s->reconnect_seconds * 1e9);
    int rc = SHORE_ELINK;
    give_up_attempt(t);
    snprintf(text, sizeof text, "%s; waiting for it for up to %s", why.text,
             shore__format_seconds(t->s->reconnect_seconds, seconds, sizeof seconds));
    say(t, text);
    for (unsigned pause = PAUSE_MS_LEAST; may_pass(rc); pause = pause * 2 < PAUSE_MS_MOST ? pause * 2 : PAUSE_MS_MOST) {
        if (stop_asked(t))
            return shore__fail(diag, SHORE_ELINK,
                               "stopped while a drive was away (%.500s), so that the step could not be finished; the "
                               "committed state is good: when the drive is back, go on with: longshore train --resume "
                               "%s",
                               why.text, t->run->word);
        if (shore__now_ns() - start > limit)
            return shore__fail(diag, SHORE_ELINK,
                               "gave up after %s, the committed state is good: %.500s; when the drive is back, go on "
                               "with: longshore train --resume %s",
                               shore__format_seconds((double)(shore__now_ns() - start) * 1e-9, seconds, sizeof seconds),
                               why.text, t->run->word);
        wait_ms(pause);
        rc = shore_fleet_reconnect(t->fleet, &why);
    }
    if (rc) {
        *diag = why;
        return rc;
    }
    shore_fleet_info(t->fleet, &info);
    t->losses = t->losses && info.step == t->lost_at ? t->losses + 1 : 1;
    t->lost_at = info.step;
    if (t->losses > LOSSES_MOST)
        return shore__fail(
            diag, SHORE_ELINK,
            "gave up, since a drive was lost %u times in step %llu; the committed state is good: %.500s; "
            "when that is mended, go on with: longshore train --resume %s",
            t->losses, (unsigned long long)info.step + 1, lost.text, t->run->word);
    snprintf(text, sizeof text, "connected again after %s: going on from step %llu",
             shore__format_seconds((double)(shore__now_ns() - start) * 1e-9, seconds, sizeof seconds),
             (unsigned long long)info.step);
    say(t, text);
    *step = info.step;
    return 0;
}
