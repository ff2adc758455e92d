/* The trainer that the files of this room share: its resources, its parts and the current step. Each part has its own
 * header, and only its own file sees its fields. */
#ifndef SHORE_TRAIN_TRAINER_H
#define SHORE_TRAIN_TRAINER_H

#include "base/diag.h"
#include "drive/counters.h"
#include "pass/describe.h"
#include "pass/pass.h"
#include "train/activations.h"
#include "train/compress.h"
#include "train/experts.h"
#include "train/gradients.h"
#include "train/train.h"

struct trainer {
    /* resources */
    struct shore__run *run;
    const struct shore__settings *s;
    const struct shore__model *m;
    const struct shore__train_events *events;
    struct shore__train_result *result;
    struct shore__facts facts;
    struct shore__train_plan plan;
    struct shore__memory memory; /* where the plan's rows lie */
    struct shore_arena *arena;
    struct shore__compute *c;
    struct shore_fleet *fleet;
    struct shore__tempo *tempo;    /* the emulated machine's clock; NULL: this machine's */
    struct shore_machine *machine; /* that it was planned again for; NULL: it was not */
    uint64_t opened_ns;
    double best_seconds; /* of a step at the machine's highest rate of products; 0: not known */
    struct shore__pass pass;
    struct shore__lookups lookups; /* if rows of the embedding are gathered */
    shore__buf dx, dx_f32, dlogits, scratch;
    float *table_gradient;  /* of a tied table held in memory: the whole block */
    shore__buf table_there; /* the same on the device */
    uint16_t *table_narrow; /* the same in bf16 */

    /* parts */
    struct activations *activations;
    struct gradients *gradients;
    struct compression *compression;
    struct experts *experts; /* NULL: the model has none */
    struct shore_step *step;
    struct shore_meter *meter;
    struct shore_trace *trace;         /* NULL: none is recorded */
    struct shore_endurance *endurance; /* NULL: drives may write as much as they can */
    struct drift *drift;               /* NULL: it does not plan again */

    /* the current step */
    uint64_t base_step;
    bool compressing;     /* it sends only part of its gradients */
    bool again;           /* it is recomputed */
    double norm;          /* of its gradients, once all are there */
    double paced_seconds; /* it was held back, by pacing.c */
    bool told_of_pacing;  /* that was said */
    uint32_t late_steps;  /* in which computing took longer than on the machine that is emulated */
    bool refused;         /* a loss or gradient that is not finite has ended the run */

    /* the commit under way, and the report of its step */
    bool commit_pending;
    struct shore_wait commit;
    struct shore_step_report report;
    double busy_seconds[SHORE_LANES]; /* of the emulated machine, when the step began */
    uint64_t reported;                /* the last step reported */

    struct shore_patience patience; /* used by reconnect.c alone */
};

/* Last step of this start. */
static inline uint64_t train_last_step(const struct shore__settings *s) {
    return s->stop_at && s->stop_at < s->steps ? s->stop_at : s->steps;
}

/* Notes a text for the caller. */
#define train_note(t, ...) shore__note((t)->events->note, (t)->events->ctx, __VA_ARGS__)

/* open_trainer.c: run, s, m, events and result must be set. fresh, overwrite and accept_step: see shore__train(). The
 * caller closes the trainer, even if it could not be opened. */
int shore__trainer_open(struct trainer *t, bool fresh, bool overwrite, const uint64_t *accept_step,
                        struct shore_diag *diag);
void shore__trainer_close(struct trainer *t);
/* Closes it after a step, and opens it again with the plan of drift.c. No commit is under way. After an error it can
 * only be closed. */
int shore__trainer_open_again(struct trainer *t, struct shore_diag *diag);
/* Writes the metrics line of the committed step, if a kill or a broken connection after its commit has lost it. */
int shore__train_recover_metrics(struct trainer *t, struct shore_diag *diag);

/* memory.c */
/* Places the trainer's buffers where the plan's rows lie. t->pass and t->plan must be set. */
int shore__train_lay_out(struct trainer *t, const struct shore__memory *memory, struct shore_diag *diag);

/* batch.c: loads sequences of data, from first_index on, into the pass's tokens and targets. */
int shore__batch_load(struct trainer *t, struct shore__dataset *data, uint64_t first_index, size_t sequences,
                      bool shuffle, struct shore_diag *diag);
/* Sets the tokens of padding to -1, which is in no slice, because a padding's lookup has no gradient. Called once their
 * rows are looked up and the loss is known, so that the device has them. */
int shore__batch_forget_padding(struct trainer *t, struct shore_diag *diag);
int shore__batch_validate(struct trainer *t, double *loss, struct shore_diag *diag);
bool shore__batch_validation_due(const struct trainer *t, uint64_t step);

/* commit.c: _submit starts a commit. _finish waits for it, if there is one, and reports its step. */
int shore__commit_submit(struct trainer *t, bool skip, struct shore_diag *diag);
int shore__commit_finish(struct trainer *t, struct shore_diag *diag);
/* Begins counting anew: bytes and waits so far belong to no step (a loss was measured, a snapshot taken, an attempt
 * broke). */
void shore__commit_begin_counting(struct trainer *t);
/* Reports the committed step, once, whichever way the commit became known. */
void shore__commit_report(struct trainer *t);
/* Waits for the commit under way, if there is one, and ignores its result. */
void shore__commit_forget(struct trainer *t);

/* pacing.c: holds back steps where --max-writes-per-day says so. */
int shore__pacing_open(struct trainer *t, struct shore_diag *diag);
/* Waits until the next step may begin. Returns whether the user asked to stop. No commit is under way. */
bool shore__pacing_wait(struct trainer *t);

/* drift.c: plans again where the machine gets slower or faster. */
int shore__drift_open(struct trainer *t, struct shore_diag *diag);
void shore__drift_close(struct trainer *t);
void shore__drift_begin_step(struct trainer *t);
void shore__drift_end_step(struct trainer *t); /* its report is complete */
/* Whether another plan would be better for the steps that are left. */
bool shore__drift_plans_again(struct trainer *t, uint64_t steps_left);
/* Then: the machine that it is for. The run has a change to record, which shore__trainer_open() does. Ownership: the
 * caller's. */
struct shore_machine *shore__drift_take(struct trainer *t);

/* sampling.c */
bool shore__train_sample_due(const struct trainer *t, uint64_t step);
int shore__train_sample(struct trainer *t, uint64_t step, struct shore_diag *diag); /* with this step's parameters */

/* reconnect.c: waits until the drives are back after SHORE_ELINK, which diag explains. *step: the committed step. */
int shore__train_reconnect(struct trainer *t, uint64_t *step, struct shore_diag *diag);

/* step.c */
int shore__step_compute(struct trainer *t, bool *finite, bool *replay, struct shore_diag *diag);

#endif
