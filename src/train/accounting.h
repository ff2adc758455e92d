/* What a step took: its seconds, and which of them were waits; the bytes that moved; the drive that held it up. */
#ifndef SHORE_TRAIN_ACCOUNTING_H
#define SHORE_TRAIN_ACCOUNTING_H

#include "longshore/state.h"
#include "model/model.h"
#include "report/report.h"

struct shore__tempo;

/* What the step in hand has waited for so far; each part of a trainer adds its own. */
struct waits {
    uint64_t drives_ns, commit_ns;
    uint64_t scratch_ns; /* of drives_ns: for inner activations */
};

struct accounting;

/* tempo: of another machine, whose time is taken; NULL: this one's. Both are borrowed. */
int shore__accounting_open(struct shore_fleet *fleet, struct shore__tempo *tempo, struct accounting **out,
                           struct shore_diag *diag);
void shore__accounting_close(struct accounting *a);
/* A step begins here: what was moved and waited for until now is none's. */
void shore__accounting_begin(struct accounting *a, struct waits *waits);
/* The step ends here, and the next begins: fills seconds, bytes, emulated times and the slow drive of its report. */
void shore__accounting_end(struct accounting *a, struct waits *waits, struct shore__step_report *r);
/* Seconds since the step began. */
double shore__accounting_seconds(const struct accounting *a);

#endif
