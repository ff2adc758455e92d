/* The gradients of a step: what becomes of them from the moment they are complete until the step is durable. It knows
 * no model and no framework: a program says which segments of a block a gradient is of and where it lies.
 *
 *     shore_step_open(fleet, pages, &options, &step, &diag)
 *     each step:
 *       shore_step_begin(step, base_step, false)
 *       each gradient that is complete:  shore_step_add(), shore_step_complete()
 *       shore_step_decide()              the norm of all of them, and the coefficient
 *       shore_step_make()                every update is under way
 *       shore_fleet_commit(), shore_step_made()
 *       ... the next step ...
 *       shore_step_durable()             once that commit has ended
 *
 * Speculation: an update is handed over while gradients still come, as if nothing will be clipped. If the norm says
 * otherwise, the attempt is discarded, and everything is updated again with the right coefficient. That costs bytes, so
 * by default a step speculates only if the norms of the last steps were well below the limit.
 *
 * A unit is what one part of a backward pass completes at once (a block, a layer, a slice of a table). Its gradient is
 *
 *                      ┌─► sent: an update reads it, with coefficient 1 ──decided otherwise──► held, sent again
 *     none ─complete─► held ─────────────decided: sent with the coefficient ─────────────────► sent
 *                      ├─► leaving ─► aside: it waits on the drives ──decided: an update reads it there
 *                      └─► gone: its buffer was taken once it was sent; the step can only be computed again
 *
 * A step is
 *
 *     gathering ─decide─► decided ─make─► submitted ─made─► made, being committed ─durable─► over
 *         └────────drop, or begin again───────┘        └─lost─► again: sent once more, or computed once more
 *
 * Threading: one thread at a time. Callbacks run on it. Completions of requests run on threads of the fleet and take no
 * lock of the caller's.
 */
#ifndef LONGSHORE_STEP_H
#define LONGSHORE_STEP_H

#include "longshore/clip.h"
#include "longshore/pages.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shore_step;

/* Segments that are updated as part of one page of shore_pages_open(). */
struct shore_step_part {
    uint32_t page, segment, count;
};

#define SHORE_STEP_PARTS 2u

/* Segments [segment, segment + count) of a block, in one part or two. No two units share a segment. count 0: there is
 * nothing in it. */
struct shore_step_unit {
    uint32_t block, segment, count, nparts;
    struct shore_step_part part[SHORE_STEP_PARTS];
};

enum shore_step_speculate { SHORE_SPECULATE_AUTO, SHORE_SPECULATE_ON, SHORE_SPECULATE_OFF };

/* Zero-initialise; every zero but that of size is the default. */
struct shore_step_options {
    size_t size; /* sizeof(struct shore_step_options) */
    const struct shore_step_unit *units;
    uint32_t nunits;
    double clip; /* the largest norm that is not clipped; 0: none is */
    enum shore_step_speculate speculate;
    enum shore_gradient_form form; /* in which gradients are sent: FP32, or BF16, to which they are rounded here */
    bool host_update;              /* every gradient waits on the drives: the caller computes the updates */
    bool computes_again; /* The caller can compute a step once more. So what was sent as if nothing is clipped need not
                          * be kept: its buffer may be taken. Otherwise it is put aside where memory is short. */
    bool all_fit;        /* There is memory for the gradients of all units at once. */
    bool keeps_made;     /* What gradients point to stays until shore_step_durable(), so that a step that was lost with
                          * a drive can be sent once more. */
    uint32_t nbuffers;   /* memory of gradients that the step gives out by number: see shore_step_take() */
    uint64_t room_bytes; /* of gradients in other memory; what is beyond is put aside */
    double *sums;        /* memory for one of each segment of the layout; NULL: from the system */
    /* A page is about to be updated: nobody may use it any more. May be NULL. */
    void (*leave)(void *ctx, uint32_t page);
    /* Fills what is sent of a unit instead of its gradient (form, gradient, offsets, residual), from this segment on.
     * It stays until the update has ended. NULL, or SHORE_STEP_WHOLE returned: the gradient itself. Errors: its own. */
    int (*encode)(void *ctx, uint32_t unit, uint32_t segment, struct shore_update *update, struct shore_diag *diag);
    void *ctx;
};
#define SHORE_STEP_WHOLE 1

/* Opens the step of a fleet and its pages. Ownership: the step is the caller's, for shore_step_close(); fleet and pages
 * are borrowed until then, options during the call. Errors: -EINVAL (options.size, a unit outside the layout, parts
 * that are not all of it, a form that nothing is spilled in), -ENOMEM. */
int shore_step_open(struct shore_fleet *fleet, struct shore_pages *pages, const struct shore_step_options *options,
                    struct shore_step **out, struct shore_diag *diag);

/* Waits for what is under way, and gives everything back. NULL is allowed. */
void shore_step_close(struct shore_step *step);

/* ---- gradients come ---------------------------------------------------------------------------------------------- */

/* Begins the gradients of base_step + 1; those of before are forgotten, and what was sent of them is discarded. again:
 * it is computed once more, and does not speculate. Threading: no commit is pending if anything was sent. */
void shore_step_begin(struct shore_step *step, uint64_t base_step, bool again);

/* Another options.clip, of the step in hand, too. */
void shore_step_clip_at(struct shore_step *step, double limit);

/* Whether gradients are sent as they come: this step speculates, and nothing that has come says that it was wrong. */
bool shore_step_speculates(const struct shore_step *step);
/* Whether anything of the step in hand was sent: to forget it is to discard it, while no commit is pending. */
bool shore_step_has_sent(const struct shore_step *step);

/* A buffer for the gradient of a unit, with anything in it: *buffer is its number. Waits for one; the unit that it held
 * before has none any more. One that was not used in this step is taken first: while gradients stay in memory, nothing
 * has to be computed again. *waited_ns: what it waited is added; NULL: it does not wait. Errors: what a request failed
 * with whose end it waited for; -EAGAIN (it would have to wait, and may not). */
int shore_step_take(struct shore_step *step, uint32_t unit, uint32_t *buffer, uint64_t *waited_ns,
                    struct shore_diag *diag);
/* Gives it back before the unit is complete, or where encode sends something else. */
void shore_step_give_back(struct shore_step *step, uint32_t unit);

/* Where a gradient lies: in one piece, or gathered. */
struct shore_step_gradient {
    size_t size; /* sizeof(struct shore_step_gradient) */
    /* Canonical order from `segment` on, gaps 0; fp32. */
    float *gradient;
    uint16_t *narrow;                  /* where it is rounded to bf16, in form BF16; it may be gradient itself */
    uint32_t segment, count;           /* of the block: what is complete now; 0, 0: all of the unit */
    const struct shore_gather *gather; /* instead of gradient: of all of the unit, in the order of the block */
    uint32_t ngather;
    bool stays; /* It stays where it is until the step is over, however little memory there is. */
    bool more;  /* Another backward pass of the step changes it: it counts once that was added, or when it leaves. */
    const double *sums; /* of squares, one a segment, where the caller has them; NULL: they are computed */
};

/* Adds what is complete of a unit's gradient to the norm, and rounds it where that is how it is sent. A gather list is
 * copied; what it points to is borrowed as long as shore_step_needs() it. A unit that is added once more (another
 * backward pass has changed it) replaces what it was: where that was sent, it is sent again when all is decided.
 * Threading: computes with OpenMP's threads. Errors: -EINVAL, -ENOMEM. */
int shore_step_add(struct shore_step *step, uint32_t unit, const struct shore_step_gradient *gradient,
                   struct shore_diag *diag);

/* The hyper-parameters of a unit's groups, copied. Where they are not those that it was sent with, it is sent again
 * when all is decided. Errors: -ENOMEM. */
int shore_step_groups(struct shore_step *step, uint32_t unit, const struct shore_hyper *groups, uint32_t ngroups);

/* Segments of a unit that were added are sent now, if the step speculates. Errors: those of shore_fleet_update(). */
int shore_step_send(struct shore_step *step, uint32_t unit, uint32_t segment, uint32_t count, struct shore_diag *diag);

enum shore_step_way {
    SHORE_STEP_SENT,    /* an update reads it */
    SHORE_STEP_HELD,    /* it waits in memory */
    SHORE_STEP_ASIDE,   /* it goes to the drives, and waits there; an update may read it, too */
    SHORE_STEP_GIVEN_UP /* the step is to be computed again */
};

/* All of a unit was added. Decides where it waits for the norm, or sends it. more_bytes: by how much gradients outside
 * of the step's buffers take more memory now (less: negative) than what was added of them; where all of them take more
 * than options.room_bytes, this one goes to the drives, and this waits until enough has left. Errors: those of
 * shore_fleet_update() and of shore_fleet_spill(); what a spill failed with, or SHORE_ELINK of any request. */
int shore_step_complete(struct shore_step *step, uint32_t unit, int64_t more_bytes, enum shore_step_way *way,
                        struct shore_diag *diag);

/* Whether what a unit's gradient points to is needed: not once it has left to the drives, and no update reads it. */
bool shore_step_needs(struct shore_step *step, uint32_t unit);
/* Waits until no update or spill reads a unit's gradient, of this step or of the one that was made. */
void shore_step_wait(struct shore_step *step, uint32_t unit);
/* Whether a unit's gradient lies on the drives: shore_fleet_fetch() reads it as SHORE_FETCH_SPILLED. Waits until it has
 * left. Errors: what that failed with. */
int shore_step_aside(struct shore_step *step, uint32_t unit, bool *aside, struct shore_diag *diag);
/* A unit has no gradient any more. */
void shore_step_forget(struct shore_step *step, uint32_t unit);

/* 0, or the first failure of a request of this attempt. Errors: that one. */
int shore_step_failed(struct shore_step *step, struct shore_diag *diag);

/* ---- all have come ----------------------------------------------------------------------------------------------- */

/* The norm of all units that were added, and the coefficient. May be asked more than once; nothing is sent. */
struct shore_clipping shore_step_decide(struct shore_step *step);

/* Whether the step was sent while gradients came, and rightly: nothing of it was sent twice. */
bool shore_step_speculated(const struct shore_step *step);

#define SHORE_STEP_AGAIN 1

/* Makes the step as it was decided: every unit that was added is sent, if it was not sent rightly already; the others
 * are carried. With host_update nothing is sent: the caller updates. SHORE_STEP_AGAIN: gradients are gone; compute the
 * step once more. Threading: no commit is pending. Errors: what a request failed with, those of shore_fleet_update();
 * SHORE_ENONFINITE (the norm is not finite, and nothing is under way any more). */
int shore_step_make(struct shore_step *step, struct shore_diag *diag);

/* Gradients are forgotten, and the attempt is discarded if anything of it was sent. Threading: no commit is pending. */
void shore_step_drop(struct shore_step *step);

/* The norm of a step that is over, for what the next ones speculate on; not finite: it was skipped. */
void shore_step_remember(struct shore_step *step, double norm);

/* ---- until it is durable ----------------------------------------------------------------------------------------- */

/* The step is handed to a commit: the next one may begin. */
void shore_step_made(struct shore_step *step);
/* Its commit has ended well. */
void shore_step_durable(struct shore_step *step);
/* Whether what gradients of the step that was made point to is needed: an update reads it, or it is kept until then. */
bool shore_step_made_needs(struct shore_step *step);
/* The step that was made could not be committed: its attempt is discarded, whoever has written in it.
 * shore_step_begin() follows. Threading: no commit is pending. */
void shore_step_unmake(struct shore_step *step);
/* The next step is not made of gradients, and this unit is in it what it is in this one: shore_fleet_carry(), or a step
 * that is skipped. shore_step_begin() follows. */
void shore_step_carried(struct shore_step *step, uint32_t unit);

/* A drive was lost: everything that is under way is given up. Returns whether gradients of the step in hand were on the
 * drives, and are lost. No page is in use; no commit is pending. */
bool shore_step_lost(struct shore_step *step);
/* Sends the step that was made last once more, from what was kept: towards the same step, whose base is committed.
 * Waits. *known false: it was not kept, and nothing was sent. Errors: those of updates and of encode. */
int shore_step_send_again(struct shore_step *step, bool *known, struct shore_diag *diag);

/* ---- state that is held in memory -------------------------------------------------------------------------------- */

/* Before the last backward pass of a step: keeps as much state in memory as there is room for, of units whose pages
 * stay and that backward completes last, and begins to read what is not there. Their updates are computed here when all
 * is decided, bit for bit as drives compute them, and the drives only write. What there is no room for is given back.
 * No state of drives of other hosts is held. Units: bytes. spare: room. gradients_most: of all gradients of the step
 * together; where they fit into options.room_bytes, none is put aside, and what they leave of it, with aside, is room,
 * too. Threading: no commit is pending, if there is anything to read. */
bool shore_step_hold_state(struct shore_step *step, uint64_t spare, uint64_t gradients_most, uint64_t aside);
/* Begins to read what shore_step_hold_state() has found missing: it returned true. */
void shore_step_fetch_state(struct shore_step *step);
/* Gives back what takes more than this. */
void shore_step_shrink_state(struct shore_step *step, uint64_t room_bytes);
/* Bytes that it takes. */
uint64_t shore_step_state_bytes(const struct shore_step *step);

#ifdef __cplusplus
}
#endif

#endif
