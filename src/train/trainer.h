/* What the files of this room share: what a trainer is made of, its parts (each in a header of its own, its fields seen
 * by its own file), and the step in hand. */
#ifndef SHORE_TRAIN_TRAINER_H
#define SHORE_TRAIN_TRAINER_H

#include "base/diag.h"
#include "pass/describe.h"
#include "pass/pass.h"
#include "train/accounting.h"
#include "train/activations.h"
#include "train/compress.h"
#include "train/gradients.h"
#include "train/train.h"

struct trainer {
    /* what it is made of */
    struct shore__run *run;
    const struct shore__settings *s;
    const struct shore__model *m;
    const struct shore__train_events *events;
    struct shore__train_result *result;
    struct shore__facts facts;
    struct shore__train_plan plan;
    struct shore__memory memory; /* where its rows lie */
    struct shore_arena *arena;
    struct shore__compute *c;
    struct shore_fleet *fleet;
    struct shore__tempo *tempo; /* whose time is taken; NULL: this one's */
    struct shore__pass pass;
    shore__buf dx, dx_f32, dlogits, scratch;
    float *table_gradient;  /* tied and held: the whole block */
    shore__buf table_there; /* the same on the device */
    uint16_t *table_narrow; /* the same in bf16 */

    /* its parts */
    struct activations *activations;
    struct gradients *gradients;
    struct compression *compression;
    struct shore_step *step;
    struct accounting *accounting;

    /* the step in hand */
    uint64_t base_step;
    bool compressing; /* its gradients are sent in part */
    bool again;       /* it is computed again */
    double norm;      /* of its gradients, once all have come */
    bool abandoned;   /* not all gradients fit in memory, and the norm passed the limit: it is computed again */
    bool refused;     /* a loss or gradient that is not finite has ended the run */
    struct waits waits;

    /* the commit under way, and what its step reports */
    bool commit_pending;
    struct shore_wait commit;
    struct shore__step_report report;
    uint64_t reported; /* the last step that was */

    struct shore_patience patience; /* seen by reconnect.c alone */
};

/* Of this start. */
static inline uint64_t train_last_step(const struct shore__settings *s) {
    return s->stop_at && s->stop_at < s->steps ? s->stop_at : s->steps;
}

/* Said to whoever listens. */
#define train_note(t, ...) shore__note((t)->events->note, (t)->events->ctx, __VA_ARGS__)

/* open_trainer.c: run, s, m, events and result are set. fresh, overwrite and accept_step: see shore__train(). Closed
 * by the caller, also if it could not be opened. */
int shore__trainer_open(struct trainer *t, bool fresh, bool overwrite, const uint64_t *accept_step,
                        struct shore_diag *diag);
void shore__trainer_close(struct trainer *t);
/* A kill, or a connection that broke, after a commit may have cost the line of its step. */
int shore__train_recover_metrics(struct trainer *t, struct shore_diag *diag);

/* memory.c */
/* tempo: NULL, or another machine's. What compression cannot do is refused here. */
int shore__train_facts(const struct shore__settings *s, const struct shore__model *m, const struct shore__tempo *tempo,
                       struct shore__facts *out, struct shore_diag *diag);
/* The trainer's buffers are where the plan's rows lie (t->pass and t->plan are set). */
int shore__train_lay_out(struct trainer *t, const struct shore__memory *memory, struct shore_diag *diag);

/* batch.c: sequences of data from `first_index` on become the pass's tokens and targets */
int shore__batch_load(struct trainer *t, struct shore__dataset *data, uint64_t first_index, size_t sequences,
                      bool shuffle, struct shore_diag *diag);
/* Once their rows are looked up and the loss is known, so that the device has them: a padding's lookup has no gradient,
 * so it becomes -1, which is in no slice. */
int shore__batch_forget_padding(struct trainer *t, struct shore_diag *diag);
int shore__batch_validate(struct trainer *t, double *loss, struct shore_diag *diag);
bool shore__batch_validation_due(const struct trainer *t, uint64_t step);

/* commit.c: a commit is under way from _submit on; _finish waits for it and reports its step, if there is one */
int shore__commit_submit(struct trainer *t, bool skip, struct shore_diag *diag);
int shore__commit_finish(struct trainer *t, struct shore_diag *diag);
/* What was moved and waited for until here is no step's: a loss was measured, a snapshot taken, an attempt broke. */
void shore__commit_begin_counting(struct trainer *t);
/* The step is committed, however that became known; it is reported once. */
void shore__commit_report(struct trainer *t);
/* Waits for the commit that is under way, if there is one, whatever becomes of it. */
void shore__commit_forget(struct trainer *t);

/* sampling.c */
bool shore__train_sample_due(const struct trainer *t, uint64_t step);
int shore__train_sample(struct trainer *t, uint64_t step, struct shore_diag *diag); /* of this step's parameters */

/* reconnect.c: after SHORE_ELINK, which diag explains: waits until the drives are back. *step: the committed one. */
int shore__train_reconnect(struct trainer *t, uint64_t *step, struct shore_diag *diag);

/* step.c */
int shore__step_compute(struct trainer *t, bool *finite, bool *replay, struct shore_diag *diag);

#endif
