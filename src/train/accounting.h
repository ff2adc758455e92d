/* Accounts for a step: its seconds, the seconds spent waiting, the bytes moved, and the drive that held it up. */
#ifndef SHORE_TRAIN_ACCOUNTING_H
#define SHORE_TRAIN_ACCOUNTING_H

#include "longshore/state.h"
#include "model/model.h"
#include "report/report.h"

struct shore__tempo;

/* Nanoseconds that the current step has waited so far. Each part of a trainer adds its own. */
struct waits {
    uint64_t drives_ns, commit_ns;
    uint64_t scratch_ns; /* the part of drives_ns spent on inner activations */
};

struct accounting;

/* tempo: the emulated machine's clock; NULL: this machine's. fleet and tempo are borrowed. */
int shore__accounting_open(struct shore_fleet *fleet, struct shore__tempo *tempo, struct accounting **out,
                           struct shore_diag *diag);
void shore__accounting_close(struct accounting *a);
/* Begins a step: bytes and waits counted so far belong to no step. */
void shore__accounting_begin(struct accounting *a, struct waits *waits);
/* Ends the step and begins the next. Fills the report's seconds, bytes, emulated times and slow drive. */
void shore__accounting_end(struct accounting *a, struct waits *waits, struct shore__step_report *r);
/* Seconds since the step began. */
double shore__accounting_seconds(const struct accounting *a);

#endif
