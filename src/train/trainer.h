/* What the files of this room share: the memory plan, the gradients under way, and the state of a trainer.
 */
#ifndef SHORE_TRAIN_TRAINER_H
#define SHORE_TRAIN_TRAINER_H

#include "base/diag.h"
#include "infer/pass.h"
#include "plan/training.h"
#include "train/accounting.h"
#include "train/activations.h"
#include "train/compress.h"
#include "train/gradients.h"
#include "train/speculation.h"
#include "train/train.h"

/* ---- idle memory (idle.c) ------------------------------------------------------------------------------------------
 */

/* What lies in kept inner activations between a layer's backward and its next forward, so that the next forward pass
 * need not wait for what backward hands over last: the table, and the first layers. */
struct train_idle {
    uint32_t later;                /* layers 1 .. later: their matrices' gradients are computed after the lookups */
    uint32_t lend_after;           /* the layer whose backward is followed by lending; 0: none */
    uint32_t layers;               /* layers 1 .. layers are lent pages */
    uint32_t first_slice, nslices; /* and these slices of block 0 */
    uint32_t waiting;              /* bit mask of layers whose gradients wait in this step */
    uintptr_t pages, later_inner;  /* where they lie */
    struct shore__later *of_unit;  /* [later * units] */
    uintptr_t spare;               /* what is left of it */
    uint64_t spare_bytes;
};

/* ---- state of the table that is read ahead (ahead.c) ---------------------------------------------------------------
 */

struct train_ahead {
    uint32_t room;         /* state images that there is memory for; 0: none is read ahead */
    uint32_t in_logits;    /* of these, in the memory of kept logits; the others are in spare idle memory */
    uint32_t count, asked; /* of this step's: chosen, and fetched or on their way */
    uint32_t *segments;    /* [room] of block 0, ascending: the image of each is at its index */
    unsigned char *chosen; /* the same by segment, until it is updated */
    bool under_way;        /* images are fetched, or stored */
    struct shore_wait wait;
};

struct trainer {
    struct shore__run *run;
    const struct shore__settings *s;
    const struct shore__model *m;
    const struct shore__train_events *events;
    struct shore__compute *c;
    struct shore__facts facts;
    struct shore__train_plan plan;
    struct shore__region_list rows; /* of the plan */
    struct shore__memory memory;    /* where they lie */
    struct shore_arena *arena;
    struct shore_fleet *fleet;
    struct shore__pass pass;

    /* buffers */
    shore__buf dx, dx_f32, dlogits, scratch;
    float *table_gradient;  /* tied and held: the whole block */
    uint16_t *table_narrow; /* the same in bf16 */

    struct activations *activations;
    struct train_idle idle;
    struct train_ahead ahead;

    struct gradients *gradients;
    struct compression compression;

    /* the step in hand */
    uint64_t base_step;
    bool compressing; /* its gradients are sent in part */
    struct speculation speculation;
    bool refused;   /* a loss or gradient that is not finite has ended the run */
    bool abandoned; /* broken, and not all gradients fit in memory: the step is computed again without speculating */
    struct waits waits;
    uint64_t lost_at; /* the committed step when a drive was lost last */
    uint32_t losses;  /* how often in a row it was that one */

    /* an emulated machine; NULL: none */
    struct shore__throttle *throttle;

    /* the commit under way */
    bool commit_pending;
    struct shore_wait commit;
    struct shore__step_report report;
    uint64_t reported; /* the last step that was */
    struct shore__train_result *result;
    struct accounting *accounting;
};

static inline int train_op_failed(struct shore_diag *diag, int rc) {
    return rc ? shore__fail(diag, rc, "a tensor operation failed: %s", shore_error_text(rc)) : 0;
}

/* Of this start. */
static inline uint64_t train_last_step(const struct shore__settings *s) {
    return s->stop_at && s->stop_at < s->steps ? s->stop_at : s->steps;
}

/* open_trainer.c: run, s, m, events and result are set. fresh, overwrite and accept_step: see shore__train(). Closed
 * by the caller, also if it could not be opened. */
int shore__trainer_open(struct trainer *t, bool fresh, bool overwrite, const uint64_t *accept_step,
                        struct shore_diag *diag);
void shore__trainer_close(struct trainer *t);
/* A kill, or a connection that broke, after a commit may have cost the line of its step. */
int shore__train_recover_metrics(struct trainer *t, struct shore_diag *diag);

/* memory.c */
/* throttle: of an emulated machine, or NULL. What compression cannot do is refused here. */
int shore__train_facts(const struct shore__settings *s, const struct shore__model *m,
                       const struct shore__throttle *throttle, struct shore__facts *out, struct shore_diag *diag);
/* The trainer's buffers are where the plan's rows lie (t->pass and t->plan are set). */
int shore__train_place(struct trainer *t, const struct shore__memory *memory, struct shore_diag *diag);

/* idle.c */
/* After shore__train_place. spare_wanted: bytes of idle.spare that are of more use than a gradient that waits. */
int shore__idle_open(struct trainer *t, uint64_t spare_wanted, struct shore_diag *diag);
void shore__idle_close(struct trainer *t);
bool shore__idle_lends_slice(const struct trainer *t, uint32_t slice);
void shore__idle_before_backward(struct trainer *t, uint32_t layer);
bool shore__idle_after_backward(struct trainer *t, uint32_t layer); /* true: memory is lent now */
/* The gradients of this layer's matrices wait until the lookups are added. */
bool shore__idle_waits(const struct trainer *t, uint32_t layer);
int shore__idle_before_forward(struct trainer *t, uint32_t layer, struct shore_diag *diag);
/* What a unit of such a layer leaves for then, or NULL; made with inner is changed to lie where it outlives the unit.
 */
struct shore__later *shore__idle_later(struct trainer *t, uint32_t layer, size_t u, bool kept, bool cheap_too,
                                       struct shore__inner *inner);

/* Are so many bytes of idle.spare idle while the layer runs backward? */
bool shore__idle_has_spare(const struct trainer *t, uint32_t layer, uint64_t bytes);

/* ahead.c */
uint64_t shore__ahead_wants(const struct trainer *t);              /* bytes of spare idle memory that would be used */
int shore__ahead_open(struct trainer *t, struct shore_diag *diag); /* after shore__idle_open */
void shore__ahead_close(struct trainer *t);
void shore__ahead_begin(struct trainer *t);                            /* the layers' backward begins: chooses */
void shore__ahead_fetch(struct trainer *t, uint32_t layer, size_t u);  /* a part of it, before the unit's backward */
bool shore__ahead_has(const struct trainer *t, struct shore__slice s); /* any of it is chosen */
bool shore__ahead_takes(struct trainer *t, uint32_t segment); /* it is updated here, not handed to the drives */
/* All gradients of the table are complete, and the rest has been handed over: updates what was chosen, hands it to its
 * pages, and begins to store it. */
int shore__ahead_update(struct trainer *t, struct shore_diag *diag);
/* What is stored lies in memory that the layer's forward takes; or in pages that it takes back, so that what they held
 * will be fetched. */
bool shore__ahead_is_in_the_way(const struct trainer *t, uint32_t layer);
int shore__ahead_settle(struct trainer *t,
                        struct shore_diag *diag); /* waits until nothing is fetched or stored any more */
void shore__ahead_drop(struct trainer *t);        /* the attempt is discarded */

/* batch.c: sequences of data from `first_index` on become the pass's tokens and targets */
int shore__batch_load(struct trainer *t, struct shore__dataset *data, uint64_t first_index, size_t sequences,
                      bool shuffle, struct shore_diag *diag);
/* Once their rows are looked up: a padding's lookup has no gradient, so it becomes -1, which is in no slice. */
void shore__batch_forget_padding(struct trainer *t);
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
