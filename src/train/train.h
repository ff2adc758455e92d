/* Training of a run, step by step. */
#ifndef SHORE_TRAIN_TRAIN_H
#define SHORE_TRAIN_TRAIN_H

#include "pass/describe.h"
#include "report/report.h"
#include "run/run.h"

struct shore__train_events {
    void *ctx;
    void (*step)(void *ctx, const struct shore_step_report *report);
    void (*note)(void *ctx, const char *text);
    /* the text of a sample, every --sample-every steps */
    void (*sample)(void *ctx, uint64_t step, const char *text, size_t bytes);
    /* called after every step and during long waits; nonzero: stop cleanly after the step */
    int (*should_stop)(void *ctx);
    /* called before memory is taken; may change what happens to activations */
    void (*planned)(void *ctx, const struct shore__facts *f, struct shore__train_plan *plan);
    shore__progress_fn making; /* called while the initial state is written */
    void (*opened)(void *ctx); /* called once the run's directory and its state are there, before the first step */
};

/* Bytes that a run with these settings needs. */
int shore__train_needs(const struct shore__settings *s, const struct shore__model *m, struct shore__needs *out,
                       struct shore_diag *diag);

/* Facts of the plan. tempo: NULL, or another machine's. Refuses what compression cannot do. */
struct shore__tempo;
int shore__train_facts(const struct shore__settings *s, const struct shore__model *m, const struct shore__tempo *tempo,
                       struct shore__facts *out, struct shore_diag *diag);
/* Facts of the plan that are known before compute is opened: what the volumes hold beside the state, how they are
 * opened, and how many bytes they take. */
struct shore__facts shore__train_facts_of(const struct shore__settings *s, const struct shore__model *m);

/* Makes the state of a prepared run: creates, fills and seals its fleet, and finishes the run. options: what the run
 * itself does not say; overwrite: see shore_fleet_options. */
int shore__train_initial_state(struct shore__run *run, struct shore_fleet_options *options, const char *processor,
                               shore__progress_fn making, void *making_ctx, struct shore_fleet **out,
                               struct shore_diag *diag);

struct shore__train_result {
    bool opened; /* the state exists: after a later failure, training can continue from its committed step */
    uint64_t step;
    unsigned char digest[16];
    double last_loss, last_val_loss;
    bool emulated;             /* the times are another machine's */
    bool no_gain;              /* --stop-after-no-gain has ended it */
    uint64_t missed_snapshots; /* snapshots of --snapshot-every that could not be made */
};

/* Trains a run. fresh: it is prepared only, so its state is made first; otherwise it continues from its last committed
 * step. The budget is checked before anything is written: SHORE_EBUDGET with "minimum SIZE". overwrite and accept_step:
 * see shore_fleet_options. */
int shore__train(struct shore__run *run, bool fresh, bool overwrite, const uint64_t *accept_step,
                 const struct shore__train_events *events, struct shore__train_result *out, struct shore_diag *diag);

#endif
