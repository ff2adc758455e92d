/* The gradients of a step, from the moment they are complete until the step is durable. The step knows no model and no
 * framework: a program says which segments of a block a gradient belongs to and where it lies.
 *
 *     shore_step_open(fleet, pages, &options, &step, &diag)
 *     each step:
 *       shore_step_begin(step, base_step, false)
 *       each gradient that is complete:  shore_step_add(), shore_step_complete()
 *       (shore_step_count()              the sums of this process's part: the others' are put beside them)
 *       shore_step_decide()              the norm of all of them, and the coefficient
 *       shore_step_make()                every update is under way
 *       shore_fleet_commit(), shore_step_made()
 *       ... the next step ...
 *       shore_step_durable()             once that commit has ended
 *
 * Speculation: updates are sent while gradients still come, as if nothing will be clipped. If the norm says otherwise,
 * the attempt is discarded, and everything is updated again with the right coefficient. That costs bytes, so by default
 * a step speculates only if the norms of the last steps were well below the limit.
 *
 * A unit is a run of segments that backward completes at once (a block, a layer, a slice of a table). Its gradient is
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
 * On a device: backward computes gradients there, and each one lands: it is copied to the host, and counts once the
 * event behind the copy has passed. Landings end in the order in which they began.
 *
 *     computing   ... layer 3 ── event ── layer 2 ── event ── ...
 *                                 │ follow             shore_step_land()
 *     landing                     └─ get ── event: then landed(), add, complete (or send)
 *
 * A number of a unit is below options.nunits, in every call. The step aborts on any other.
 *
 * Threading: one thread at a time. Callbacks run on that thread, and only within a call. So the step sees that an event
 * has passed when it is called next: shore_step_land(), _land_at() and _take() look, and wait if they need to;
 * shore_step_land_all() waits. They take no lock while they wait. Whatever waits can be helped by a watch of the device
 * (shore_device_watch()), which does not know the step. Completions of requests run on threads of the fleet and take no
 * lock of the caller's.
 */
#ifndef LONGSHORE_STEP_H
#define LONGSHORE_STEP_H

#include "longshore/clip.h"
#include "longshore/device.h"
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

/* Segments [segment, segment + count) of a block, in one part or two. No two units share a segment or a page. A page
 * may have other segments, too: those of other processes (see shore_pages_outdate()). count 0: the unit is empty. */
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
    double clip; /* the largest norm that is not clipped; 0: nothing is clipped */
    enum shore_step_speculate speculate;
    enum shore_gradient_form form; /* the form in which gradients are sent: FP32, or BF16 (the step rounds them) */
    bool host_update;              /* every gradient waits on the drives; the caller computes the updates */
    /* The caller can compute a step once more. So a gradient that was sent as if nothing is clipped need not be kept:
     * its buffer may be taken. Otherwise it is put aside when memory is short. */
    bool computes_again;
    bool all_fit; /* There is memory for the gradients of all units at once. */
    /* The caller keeps the memory of gradients until shore_step_durable(). So a step that was lost with a drive can be
     * sent once more. */
    bool keeps_made;
    uint32_t nbuffers;   /* buffers for gradients, which the step gives out by number: see shore_step_take() */
    uint64_t room_bytes; /* for gradients in other memory; gradients beyond it are put aside */
    double *sums;        /* memory for one sum of squares for each segment of the layout; NULL: from the system */
    /* Called when a page is about to be updated: nobody may use it from now on. May be NULL. */
    void (*leave)(void *ctx, uint32_t page);
    /* Fills in what is sent instead of a unit's gradient (form, gradient, offsets, residual), from this segment on.
     * That memory stays until the update has ended. NULL, or SHORE_STEP_WHOLE returned: the gradient itself is sent.
     * Errors: its own. */
    int (*encode)(void *ctx, uint32_t unit, uint32_t segment, struct shore_update *update, struct shore_diag *diag);
    void *ctx;
    struct shore_device *device; /* where gradients come from; NULL: nothing lands */
    uint64_t landing_bytes;      /* pinned memory of the caller's for landings: see shore_step_land_at() */
    /* The host has what shore_step_land() was called for, with this tag. 0: the step goes on with it.
     * SHORE_STEP_TAKEN: the caller has done what there is to do. It may call any function of the step but those of this
     * header that land. NULL: nothing is done before. Errors: its own. */
    int (*landed)(void *ctx, uint32_t unit, uint64_t tag, struct shore_diag *diag);
    uint64_t aside_bytes; /* beyond room_bytes, for gradients that were put aside, until they have left */
};
#define SHORE_STEP_WHOLE 1
#define SHORE_STEP_TAKEN 1
#define SHORE_STEP_AGAIN 1

/* Opens the step of a fleet and its pages. Ownership: the step is the caller's, for shore_step_close(); fleet and pages
 * are borrowed until then, options during the call. Errors: -EINVAL (options.size, a unit outside the layout, parts
 * that do not make up their unit, a form that cannot be spilled), -ENOMEM. */
int shore_step_open(struct shore_fleet *fleet, struct shore_pages *pages, const struct shore_step_options *options,
                    struct shore_step **out, struct shore_diag *diag);

/* Waits for all requests under way, and releases everything. NULL is allowed. */
void shore_step_close(struct shore_step *step);

/* ---- gradients come ---------------------------------------------------------------------------------------------- */

/* Begins the gradients of base_step + 1. Earlier gradients are forgotten; if any were sent, the attempt is discarded.
 * again: the step is computed once more, and does not speculate. Threading: no commit is pending if anything was
 * sent. */
void shore_step_begin(struct shore_step *step, uint64_t base_step, bool again);

/* Sets another options.clip, for the step in hand, too. */
void shore_step_clip_at(struct shore_step *step, double limit);

/* Whether gradients are sent as they come: this step speculates, and nothing so far says that this was wrong. */
bool shore_step_speculates(const struct shore_step *step);
/* Whether anything of the step in hand was sent. If so, forgetting the step discards the attempt, which needs that no
 * commit is pending. */
bool shore_step_has_sent(const struct shore_step *step);

/* Takes a buffer for the gradient of a unit: *buffer is its number, and its content is undefined. Waits for one, first
 * for what lands; the unit whose gradient it held before loses it. Buffers that were not used in this step are taken
 * first: while gradients stay in memory, nothing has to be computed again. SHORE_STEP_AGAIN: see shore_step_land().
 * Errors: the error of a request that it waited for, those of shore_step_land_all(). */
int shore_step_take(struct shore_step *step, uint32_t unit, uint32_t *buffer, struct shore_diag *diag);
/* Gives the buffer back before the unit is complete, or if encode sends something else. */
void shore_step_give_back(struct shore_step *step, uint32_t unit);

/* Where a gradient lies: as one range, or gathered. */
struct shore_step_gradient {
    size_t size; /* sizeof(struct shore_step_gradient) */
    /* Canonical order from `segment` on, gaps 0; fp32. */
    float *gradient;
    uint16_t *narrow;        /* where to put the bf16 values, in form BF16; may be gradient itself */
    uint32_t segment, count; /* of the block: the segments that are complete now; 0, 0: the whole unit */
    uint32_t ngather;
    bool stays; /* It stays where it is until the step is over, however short memory is. */
    bool more;  /* Another backward pass of the step changes it: it counts in the norm once that pass was added, or when
                   it leaves. */
    const struct shore_gather *gather; /* instead of gradient: of the whole unit, in the order of the block. Items may
                                          reach beyond it */
};

/* Adds the complete segments of a unit's gradient to the norm, and rounds them in form BF16. A gather list is copied;
 * the memory of its items is borrowed as long as shore_step_needs() it. If a unit is added once more (another backward
 * pass has changed it), the new gradient replaces the old one. If the old one was sent, the unit is sent again when all
 * is decided. Threading: computes with OpenMP's threads. Errors: -EINVAL (size, no memory, segments that are not the
 * unit's, no step has begun), -ENOMEM. */
int shore_step_add(struct shore_step *step, uint32_t unit, const struct shore_step_gradient *gradient,
                   struct shore_diag *diag);

/* Sets the hyper-parameters of a unit's groups; they are copied. If the unit was sent with others, it is sent again
 * when all is decided. Errors: -ENOMEM. */
int shore_step_groups(struct shore_step *step, uint32_t unit, const struct shore_hyper *groups, uint32_t ngroups);

/* Sends segments of a unit that were added now, if the step speculates. Errors: those of shore_fleet_update(). */
int shore_step_send(struct shore_step *step, uint32_t unit, uint32_t segment, uint32_t count, struct shore_diag *diag);

enum shore_step_way {
    SHORE_STEP_SENT,    /* an update reads it */
    SHORE_STEP_HELD,    /* it waits in memory */
    SHORE_STEP_ASIDE,   /* it goes to the drives and waits there; an update may read it, too */
    SHORE_STEP_GIVEN_UP /* the step is to be computed again */
};

/* The whole unit was added. Decides where it waits for the norm, or sends it. more_bytes: memory that gradients outside
 * of the step's buffers take now beyond what was added of them (less: negative). If all of them take more than
 * options.room_bytes, this one goes to the drives, and the call waits until those that have not left take no more than
 * options.aside_bytes beyond. Errors: those of shore_fleet_update() and of shore_fleet_spill(); the error of a failed
 * spill, or SHORE_ELINK of any request. */
int shore_step_complete(struct shore_step *step, uint32_t unit, int64_t more_bytes, enum shore_step_way *way,
                        struct shore_diag *diag);

/* Waits until gradients that were put aside have left, as far as all of them and more_bytes together take more than
 * room_bytes. more_bytes: as of shore_step_complete(). */
void shore_step_wait_for_room(struct shore_step *step, int64_t more_bytes, uint64_t room_bytes);

/* A copy of a gradient that is under way from options.device. */
struct shore_step_landing {
    size_t size;              /* sizeof(struct shore_step_landing) */
    struct shore_event until; /* behind the copy: once it has passed, the host has it */
    uint64_t tag;             /* for options.landed */
    /* Where it lies then, as one range: the step adds it. NULL: there is nothing to add, or landed adds it. */
    const struct shore_step_gradient *gradient;
    uint64_t ends; /* 1: the unit is complete with it. 0: its segments are sent, if the step speculates. */
};

/* A unit's gradient, or part of it, is on its way to the host. Once it has come, and all that were called for before
 * have, landed is called; the step adds the gradient and completes the unit, or sends the segments. This happens here,
 * as far as events have passed, or in a later call. The struct is copied; the memory is borrowed as long as
 * shore_step_needs() it. SHORE_STEP_AGAIN: a unit was given up, and nothing lands any more: drop the step, and compute
 * it again. Errors: -EINVAL (size, no device, a gather list), -ENOMEM; those of the device, of landed, and of what the
 * step then does. */
int shore_step_land(struct shore_step *step, uint32_t unit, const struct shore_step_landing *landing,
                    struct shore_diag *diag);

/* Waits for all landings. shore_step_make() needs that none is left; shore_step_begin() and shore_step_drop() wait for
 * the copies, and forget them. SHORE_STEP_AGAIN and Errors: as of shore_step_land(). */
int shore_step_land_all(struct shore_step *step, struct shore_diag *diag);

/* Gives room for the next landing in the caller's options.landing_bytes: *at is its offset, a multiple of 64. It is
 * free again once that has landed. Waits for landings, the first ones first, while there is no room. Errors: -EINVAL (0
 * bytes, or more than landing_bytes), and as of shore_step_land(). */
int shore_step_land_at(struct shore_step *step, uint64_t bytes, uint64_t *at, struct shore_diag *diag);

/* Whether the memory of a unit's gradient is still needed. It is not once the gradient has left to the drives and no
 * update reads it. */
bool shore_step_needs(struct shore_step *step, uint32_t unit);
/* Waits until no update or spill reads a unit's gradient, of this step or of the step that was made before. */
void shore_step_wait(struct shore_step *step, uint32_t unit);
/* Whether a unit's gradient lies on the drives: shore_fleet_fetch() reads it as SHORE_FETCH_SPILLED. Waits until it has
 * left. Errors: that of its spill. */
int shore_step_aside(struct shore_step *step, uint32_t unit, bool *aside, struct shore_diag *diag);
/* Bytes of a unit's gradient that count in options.room_bytes. */
uint64_t shore_step_bytes(const struct shore_step *step, uint32_t unit);
/* Drops a unit's gradient. */
void shore_step_forget(struct shore_step *step, uint32_t unit);

/* 0, or the first failure of a request of this attempt. Errors: that one. */
int shore_step_failed(struct shore_step *step, struct shore_diag *diag);

/* ---- all have come ----------------------------------------------------------------------------------------------- */

/* Counts in the norm what was added and is not counted yet. options.sums then has the sums of this process's units, and
 * 0 for other segments since shore_step_begin(). If other processes update those: put their sums there. Errors: -EINVAL
 * (gradients have not landed). */
int shore_step_count(struct shore_step *step, struct shore_diag *diag);

/* Counts as shore_step_count() does, and adds all of options.sums in the order of the layout. Returns that norm, and
 * the coefficient. May be called more than once; it sends nothing. Until then, a step judges by its own sums whether it
 * speculates. */
struct shore_clipping shore_step_decide(struct shore_step *step);

/* Whether speculation was right: the step was sent while gradients came, and nothing of it was sent twice. */
bool shore_step_speculated(const struct shore_step *step);

/* Makes the step as decided: sends every unit that was added and not sent rightly already; carries the others. With
 * host_update it sends nothing: the caller updates. SHORE_STEP_AGAIN: gradients are gone; compute the step once more.
 * Threading: no commit is pending. Errors: that of a request, those of shore_fleet_update(); -EINVAL (it was not
 * decided, or gradients have not landed); SHORE_ENONFINITE (the norm is not finite, and nothing is under way any
 * more). */
int shore_step_make(struct shore_step *step, struct shore_diag *diag);

/* Forgets all gradients, waits for copies that have not landed, and discards the attempt if anything of it was sent.
 * Threading: no commit is pending. */
void shore_step_drop(struct shore_step *step);

/* Remembers the norm of a step that is over: the next steps decide by it whether they speculate. Not finite: the step
 * was skipped. */
void shore_step_remember(struct shore_step *step, double norm);

/* ---- until it is durable ----------------------------------------------------------------------------------------- */

/* The step was handed to a commit: the next step may begin. */
void shore_step_made(struct shore_step *step);
/* The commit of that step has succeeded. */
void shore_step_durable(struct shore_step *step);
/* Whether the memory of the made step's gradients is still needed: an update reads it, or it is kept until the step is
 * durable. */
bool shore_step_made_needs(struct shore_step *step);
/* The step that was made could not be committed: discards its attempt, whoever has written in it. shore_step_begin()
 * follows. Threading: no commit is pending. */
void shore_step_unmake(struct shore_step *step);
/* The next step is not made of gradients, and leaves this unit as it is: after shore_fleet_carry(), or in a skipped
 * step. shore_step_begin() follows. */
void shore_step_carried(struct shore_step *step, uint32_t unit);

/* A drive was lost: gives up everything that is under way. Returns whether gradients of the step in hand were on the
 * drives, and are lost. No page is in use; no commit is pending. */
bool shore_step_lost(struct shore_step *step);
/* Sends the step that was made last once more, from the gradients that were kept, towards the same step. Its base is
 * committed. Waits. *known false: the gradients were not kept, and nothing was sent. Errors: those of updates and of
 * encode. */
int shore_step_send_again(struct shore_step *step, bool *known, struct shore_diag *diag);

/* ---- state that is held in memory -------------------------------------------------------------------------------- */

/* Call it before the last backward pass of a step. Holds as much optimizer state in memory as there is room for: of
 * units whose pages stay, those first that backward completes last. The host computes their updates when all is
 * decided, bit for bit as drives compute them; the drives only write. State beyond the room is given back. Nothing is
 * held of drives on other hosts. Returns whether held state is missing: then call shore_step_fetch_state(). Units:
 * bytes. spare: room. gradients_most: all gradients of the step together. If they fit into options.room_bytes, none is
 * put aside, and the rest of it, with aside, is room, too. Threading: no commit is pending, if there is anything to
 * read. */
bool shore_step_hold_state(struct shore_step *step, uint64_t spare, uint64_t gradients_most, uint64_t aside);
/* Begins to read the state that shore_step_hold_state() has found missing (it returned true). */
void shore_step_fetch_state(struct shore_step *step);
/* Forgets the held state of a unit, after what is under way with it. Call it before other values of the unit are stored
 * into the made step. Threading: no commit is pending. */
void shore_step_forget_state(struct shore_step *step, uint32_t unit);
/* Gives back held state until it takes no more than this. */
void shore_step_shrink_state(struct shore_step *step, uint64_t room_bytes);
/* Bytes that held state takes. */
uint64_t shore_step_state_bytes(const struct shore_step *step);

#ifdef __cplusplus
}
#endif

#endif
