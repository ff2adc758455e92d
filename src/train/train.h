/* Training: the step schedule over a run. */
#ifndef SHORE_TRAIN_TRAIN_H
#define SHORE_TRAIN_TRAIN_H

#include "pass/describe.h"
#include "report/report.h"
#include "run/run.h"

struct shore__train_events {
    void *ctx;
    void (*step)(void *ctx, const struct shore__step_report *report);
    void (*note)(void *ctx, const char *text);
    /* text of a sample, every --sample-every steps */
    void (*sample)(void *ctx, uint64_t step, const char *text, size_t bytes);
    /* checked after every step and from long waits: nonzero stops cleanly after the step */
    int (*should_stop)(void *ctx);
    /* before memory is taken: may set what becomes of activations */
    void (*planned)(void *ctx, const struct shore__facts *f, struct shore__train_plan *plan);
    shore__progress_fn making; /* while the initial state is written */
};

/* What a run of these settings needs. */
int shore__train_needs(const struct shore__settings *s, const struct shore__model *m, struct shore__needs *out,
                       struct shore_diag *diag);

/* What is known of its plan before compute is opened: what its volumes hold beside its state, how they are opened, how
 * many bytes they take. */
struct shore__facts shore__train_facts_of(const struct shore__settings *s, const struct shore__model *m);

/* Makes the state of a prepared run: its fleet is created, filled and sealed, the run finished. options: but for what
 * the run itself says; overwrite: see there. */
int shore__train_initial_state(struct shore__run *run, struct shore_fleet_options *options, const char *processor,
                               shore__progress_fn making, void *making_ctx, struct shore_fleet **out,
                               struct shore_diag *diag);

struct shore__train_result {
    bool opened; /* the state is there: what fails from then on has a committed step to go on from */
    uint64_t step;
    unsigned char digest[16];
    double last_loss, last_val_loss;
    bool emulated;             /* times were those of another machine */
    uint64_t missed_snapshots; /* of --snapshot-every: they could not be made */
};

/* Makes the state of a prepared run (fleet created, filled, sealed; run finished) and then trains it; or trains an
 * opened one from its last committed step. fresh: the first. The budget is checked before anything is written:
 * SHORE_EBUDGET with "minimum SIZE". overwrite and accept_step: see shore_fleet_options. */
int shore__train(struct shore__run *run, bool fresh, bool overwrite, const uint64_t *accept_step,
                 const struct shore__train_events *events, struct shore__train_result *out, struct shore_diag *diag);

#endif
