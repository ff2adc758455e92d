/* A step as its files share it: units, and the state of their gradients. step.h draws the states. */
#ifndef SHORE_STEP_STEP_IMPL_H
#define SHORE_STEP_STEP_IMPL_H

#include <assert.h>
#include <pthread.h>

#include "base/events.h"
#include "base/units.h"
#include "drive/counters.h"
#include "longshore/step.h"
#include "step/speculation.h"

enum place {
    PLACE_NONE,    /* no gradient has come */
    PLACE_HERE,    /* in memory */
    PLACE_LEAVING, /* in memory, and on its way to the drives */
    PLACE_ASIDE,   /* on the drives only */
    PLACE_GONE,    /* nowhere: its buffer was reused after it was sent */
};

/* The data that is sent of a unit. */
struct given {
    const float *gradient;       /* of its first segment; NULL: it is gathered, or not in memory */
    const uint16_t *narrow;      /* the same in bf16, instead */
    struct shore_gather *gather; /* [ngather], owned */
    uint32_t ngather, gather_room;
    struct shore_hyper *groups; /* owned */
    uint32_t ngroups, groups_room;
    float coefficient; /* of the last send */
    bool gathered;     /* the list is the gradient; otherwise an earlier one has left it */
    bool had;          /* the unit has a gradient; otherwise it is carried */
    bool here;         /* the gradient is in memory */
};

/* Requests of one step that read a unit's gradient. */
struct readers {
    struct unit *unit;
    uint32_t count;
};

struct held_state;

struct unit {
    struct shore_step *step;
    struct shore_step_unit is;
    uint64_t first; /* number of its first segment in the layout */
    struct given now, made;
    enum place place;          /* of the current gradient */
    bool counted;              /* counted in the norm */
    bool stays, more;          /* as passed when it was added */
    bool sent;                 /* segments of it were sent in this attempt */
    int buffer;                /* or -1 */
    uint64_t bytes;            /* bytes of the caller's memory, until the gradient has left it */
    struct readers readers[2]; /* of the current step, and of the made one: see step->hand */
    struct held_state *state;  /* state of its last segments, or NULL */
    bool complete;             /* in this step: no other segments of it come */
    bool leaves;               /* or has left: it was put aside when it was complete */
    bool was_complete;         /* since the step was opened: it is in step->completed */
};

/* Phases, as step.h draws them. */
enum phase {
    PHASE_OVER,      /* the step was made, or none was begun */
    PHASE_GATHERING, /* gradients arrive */
    PHASE_DECIDED,   /* the norm covers all gradients */
    PHASE_SUBMITTED, /* every update is under way */
};

/* A copy from the device that has not landed. */
struct landing {
    struct shore_event until; /* first, as a fifo asks */
    struct unit *unit;
    struct shore_step_landing is;
    struct shore_step_gradient gradient; /* is.gradient points here */
    uint64_t at, bytes;                  /* its room in the caller's landing_bytes */
};

struct buffer {
    struct unit *holds; /* NULL: free, and not used in this step */
    bool released;      /* may be reused once its unit is complete, and nobody reads it */
};

struct shore_step {
    struct shore_fleet *fleet;
    struct shore_pages *pages;
    struct shore_step_options options; /* without units */
    struct unit *units;
    uint32_t nunits;
    uint64_t base_step, made_base;
    bool has_made;       /* a step was made, and is not durable yet */
    unsigned hand;       /* which readers belong to the current step */
    unsigned char *sent; /* by segment of the layout: 1: sent in this attempt */

    struct shore_clip clip; /* sums: by segment of the layout */
    struct shore_clipping clipping;
    struct shore__recent_norms recent;
    bool again;      /* this step is recomputed */
    bool speculates; /* it speculates, */
    bool broken;     /* until the norm passed the limit, */
    bool stale;      /* or something sent has changed since */
    bool any_sent;   /* something was sent in this attempt */
    bool right;      /* the updates sent so far are valid */
    enum phase phase;
    bool may_be_gone; /* something was sent whose buffer may be reused */
    bool given_up;    /* it is to be computed again: nothing lands any more */

    struct shore__fifo landing;   /* in the order in which they land */
    uint64_t next_at, next_bytes; /* room that the next landing has */
    bool lands;                   /* one is landing: callbacks do not land others */

    pthread_mutex_t mutex; /* guards readers, spills, failures */
    pthread_cond_t ended;
    uint32_t spills; /* under way */
    int failed;      /* first failure of a request */
    bool spill_failed;
    struct shore_diag failure;
    struct buffer *buffers; /* [options.nbuffers] */

    struct held_state **held; /* in the order in which they were taken */
    uint32_t nheld;
    uint32_t *completed, ncompleted; /* units in the order in which backward first completed them */
    uint64_t held_bytes;
};

/* Every edge of the picture. Gathering may begin at any time, for example after a drive was lost. */
static inline void shore__step_enter(struct shore_step *s, enum phase to) {
    assert(to != PHASE_DECIDED || s->phase == PHASE_GATHERING || s->phase == PHASE_DECIDED);
    assert(to != PHASE_SUBMITTED || s->phase == PHASE_DECIDED);
    assert(to != PHASE_OVER || s->phase == PHASE_SUBMITTED);
    s->phase = to;
}

static inline struct unit *shore__unit(struct shore_step *s, uint32_t number) {
    assert(number < s->nunits);
    return &s->units[number];
}

/* landing.c */
/* Waits for all copies, and forgets them. */
void shore__land_nothing(struct shore_step *s);

/* step_requests.c */
/* The completion of a request that reads a unit's gradient and is about to be submitted. */
struct shore_completion shore__unit_request(struct unit *u, bool spill);
/* The request was refused. */
void shore__unit_refused(struct unit *u, bool spill);
bool shore__unit_is_read(struct unit *u, bool made);
/* Waits until no request of the current step reads anything, or none of the made step. */
void shore__step_drain(struct shore_step *s, bool made);
void shore__step_wait_spills(struct shore_step *s);
/* SHORE_ELINK, or the error of a spill: errors that nobody else reports. */
int shore__step_lost_something(struct shore_step *s, struct shore_diag *diag);
void shore__step_forget_failures(struct shore_step *s);
/* Waits for requests until a buffer is free, or one has failed, or something is to land. Returns its number, or -1. */
int shore__buffer_wait(struct shore_step *s);
/* Gives the buffer to a unit; the one that held it loses it. */
void shore__buffer_give(struct shore_step *s, int number, struct unit *u);
/* Buffers that can be reused now, or once requests have ended. */
uint32_t shore__buffers_left(const struct shore_step *s);
void shore__buffers_begin(struct shore_step *s);

/* unit.c */
void shore__unit_clear(struct unit *u);
/* Adds these segments of the gradient to the norm. */
void shore__unit_count_range(struct unit *u, uint32_t segment, uint32_t count);
/* Adds the unit to the norm, once. */
void shore__unit_count(struct unit *u);
/* Removes the unit from the norm, because its sums are about to change. */
void shore__unit_uncount(struct unit *u);
/* Whether an update leaves a segment as it is: all tensors in it belong to frozen groups. Then it is carried. */
bool shore__unit_rests(const struct unit *u, uint32_t segment);
/* Describes what an update of these segments reads and writes. made: for the made step. */
int shore__unit_fill(struct unit *u, bool made, uint32_t segment, uint32_t count, float coefficient,
                     struct shore_update *out, struct shore_diag *diag);

/* step_send.c */
/* Sends the unsent part of a unit's segments [segment, segment + count). */
int shore__unit_send(struct unit *u, uint32_t segment, uint32_t count, float coefficient, struct shore_diag *diag);
/* Sends the whole unit, including the segments whose state is in memory. */
int shore__unit_send_all(struct unit *u, float coefficient, struct shore_diag *diag);
int shore__unit_put_aside(struct unit *u, struct shore_diag *diag);
/* Invalidates everything sent in this attempt. */
void shore__step_discard(struct shore_step *s);

/* held_state.c */
/* Updates the part of a unit's state that is in memory, into its page, and starts writing it. *first: its first
 * segment; unchanged if nothing could be updated here, which the drives will report. */
void shore__held_update(struct unit *u, float coefficient, uint32_t *first);
bool shore__held_is_here(const struct unit *u);
void shore__held_carried(struct unit *u);
void shore__held_discarded(struct shore_step *s);
void shore__held_drop(struct shore_step *s);

#endif
