/* What the files of this room share: a unit, and what is known of its gradient. The states are drawn in step.h. */
#ifndef SHORE_STEP_STEP_IMPL_H
#define SHORE_STEP_STEP_IMPL_H

#include <assert.h>
#include <pthread.h>

#include "longshore/step.h"
#include "step/speculation.h"

enum place {
    PLACE_NONE,    /* nothing has come */
    PLACE_HERE,    /* in memory */
    PLACE_LEAVING, /* in memory, and on its way to the drives */
    PLACE_ASIDE,   /* on the drives alone */
    PLACE_GONE,    /* nowhere: its buffer was taken after it was sent */
};

/* What is sent of a unit. */
struct given {
    const float *gradient;       /* of its first segment; NULL: gathered, or not in memory */
    const uint16_t *narrow;      /* instead, in bf16 */
    struct shore_gather *gather; /* [ngather], ours */
    uint32_t ngather, gather_room;
    struct shore_hyper *groups; /* ours */
    uint32_t ngroups, groups_room;
    float coefficient; /* it was sent with */
    bool had;          /* there is a gradient; otherwise the unit is carried */
    bool here;         /* and it is in memory */
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
    uint64_t first; /* of its segments, in the layout */
    struct given now, made;
    enum place place;          /* of what is given now */
    bool counted;              /* in the norm */
    bool stays, more;          /* as it was added */
    bool sent;                 /* segments of it, in this attempt */
    int buffer;                /* or -1 */
    uint64_t bytes;            /* of the caller's memory, until it is known to have left */
    struct readers readers[2]; /* of the step in hand, and of the one that was made: see step->hand */
    struct held_state *state;  /* of its last segments, or NULL */
    bool was_complete;         /* since the step was opened: it is in step->completed */
};

/* As step.h draws them. */
enum phase {
    PHASE_OVER,      /* it was made, or none was begun */
    PHASE_GATHERING, /* gradients come */
    PHASE_DECIDED,   /* the norm is that of all that have come */
    PHASE_SUBMITTED, /* every update is under way */
};

struct buffer {
    struct unit *holds; /* NULL: free, and never used in this step */
    bool released;      /* may be taken once nobody reads it */
};

struct shore_step {
    struct shore_fleet *fleet;
    struct shore_pages *pages;
    struct shore_step_options options; /* but for units */
    struct unit *units;
    uint32_t nunits;
    uint64_t base_step, made_base;
    bool has_made;       /* a step was made, and is not durable yet */
    unsigned hand;       /* which readers are of the step in hand */
    unsigned char *sent; /* by segment of the layout: 1, in this attempt */

    struct shore_clip clip; /* sums: by segment of the layout */
    struct shore_clipping clipping;
    struct shore__recent_norms recent;
    bool again;      /* this step is computed once more */
    bool speculates; /* it does, */
    bool broken;     /* until the norm passed the limit, */
    bool stale;      /* or something that was sent has changed since */
    bool any_sent;   /* in this attempt */
    bool right;      /* what was sent while gradients came counts */
    enum phase phase;
    bool may_be_gone; /* something was sent whose buffer may be taken */

    pthread_mutex_t mutex; /* of readers, spills, failures */
    pthread_cond_t ended;
    uint32_t spills; /* under way */
    int failed;      /* first failure of a request */
    bool spill_failed;
    struct shore_diag failure;
    struct buffer *buffers; /* [options.nbuffers] */

    struct held_state **held; /* in the order in which they were taken */
    uint32_t nheld;
    uint32_t *completed, ncompleted; /* units, in the order in which backward has completed them first */
    uint64_t held_bytes;
};

/* Every edge of the picture: what begins gathering may come at any time, as a loss of a drive does. */
static inline void shore__step_enter(struct shore_step *s, enum phase to) {
    assert(to != PHASE_DECIDED || s->phase == PHASE_GATHERING || s->phase == PHASE_DECIDED);
    assert(to != PHASE_SUBMITTED || s->phase == PHASE_DECIDED);
    assert(to != PHASE_OVER || s->phase == PHASE_SUBMITTED);
    s->phase = to;
}

/* step_requests.c */
/* The completion of a request that reads a unit's gradient and is about to be submitted. */
struct shore_completion shore__unit_request(struct unit *u, bool spill);
/* It was refused. */
void shore__unit_refused(struct unit *u, bool spill);
bool shore__unit_is_read(struct unit *u, bool made);
/* Waits until no request of the step in hand reads anything, or none of the step that was made. */
void shore__step_drain(struct shore_step *s, bool made);
void shore__step_wait_spills(struct shore_step *s);
/* SHORE_ELINK, or what a spill failed with: what nobody else will say. */
int shore__step_lost_something(struct shore_step *s, struct shore_diag *diag);
void shore__step_forget_failures(struct shore_step *s);
/* Buffers that could be taken now or once requests have ended. */
uint32_t shore__buffers_left(const struct shore_step *s);
void shore__buffers_begin(struct shore_step *s);

/* unit.c */
void shore__unit_clear(struct unit *u);
/* Adds these segments to the norm: their sums, or NULL, from the gradient. */
void shore__unit_count_range(struct unit *u, uint32_t segment, uint32_t count, const double *sums);
/* Adds the unit to the norm, once. */
void shore__unit_count(struct unit *u);
/* Takes it out of the norm: its sums are about to be others. */
void shore__unit_uncount(struct unit *u);
/* What an update of these segments reads and writes. made: of the step that was made. */
int shore__unit_fill(struct unit *u, bool made, uint32_t segment, uint32_t count, float coefficient,
                     struct shore_update *out, struct shore_diag *diag);

/* step_send.c */
/* Sends what was not sent yet of a unit's segments [segment, segment + count). */
int shore__unit_send(struct unit *u, uint32_t segment, uint32_t count, float coefficient, struct shore_diag *diag);
/* Sends the whole unit, the segments whose state is here among them. */
int shore__unit_send_all(struct unit *u, float coefficient, struct shore_diag *diag);
int shore__unit_put_aside(struct unit *u, struct shore_diag *diag);
/* Nothing that was sent in this attempt counts. */
void shore__step_discard(struct shore_step *s);

/* held_state.c */
/* Updates what is here of a unit's state, into its page, and begins to write it. *first: its first segment, or as it
 * was where nothing could be updated here, of which the drives will say more. */
void shore__held_update(struct unit *u, float coefficient, uint32_t *first);
bool shore__held_is_here(const struct unit *u);
void shore__held_carried(struct unit *u);
void shore__held_discarded(struct shore_step *s);
void shore__held_drop(struct shore_step *s);

#endif
