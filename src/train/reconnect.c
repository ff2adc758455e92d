/* Reconnects to a drive on another host that is lost during training. Its state is safe. The trainer gives up all
 * requests under way, waits for the drive, and continues from the committed step. */
#include <stdio.h>

#include "base/diag.h"
#include "drive/counters.h"
#include "train/trainer.h"

/* Clears the attempt: its requests, pages and failures. */
static void give_up_attempt(struct trainer *t) {
    shore__commit_forget(t);
    shore__parameters_release(t->pass.parameters);
    shore_step_lost(t->step);
    shore__activations_settle(t, NULL);
    shore__compress_forget(t);
}

int shore__train_reconnect(struct trainer *t, uint64_t *step, struct shore_diag *diag) {
    char go_on[sizeof diag->text];
    struct shore_diag why = *diag, said;
    int rc = SHORE_ELINK;
    snprintf(go_on, sizeof go_on, "longshore train --resume %s", t->run->word);
    t->patience.size = sizeof t->patience;
    t->patience.seconds = t->s->reconnect_seconds;
    t->patience.go_on = go_on; /* valid until this function returns */
    give_up_attempt(t);
    shore_patience_begin(&t->patience, diag, &said);
    train_note(t, "%s", said.text);
    while ((rc = shore_patience_try(&t->patience, rc, &why)) > 0) {
        if (t->events->should_stop && t->events->should_stop(t->events->ctx))
            return shore__fail_of(
                diag, SHORE_ELINK, &why,
                "stopped while a drive was away (%.500s), so that the step could not be finished; the "
                "committed state is good: when the drive is back, go on with: %s",
                why.text, go_on);
        rc = shore_fleet_reconnect(t->fleet, &why);
    }
    const uint64_t committed = shore__fleet_info(t->fleet).step;
    if (!rc) rc = shore_patience_end(&t->patience, committed, &why, &said);
    if (rc) {
        *diag = why;
        return rc;
    }
    train_note(t, "%s", said.text);
    *step = committed;
    return 0;
}
