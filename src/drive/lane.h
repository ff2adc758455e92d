/* Lanes: a lane is a queue of jobs with one thread that runs them. Also the two slots of local kinds of drives. */
#ifndef SHORE_DRIVE_LANE_H
#define SHORE_DRIVE_LANE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "longshore/state.h"

struct shore__job {
    struct shore__job *next;
    uint32_t order; /* lower runs first; equal ones in order of arrival */
};

struct shore__lane {
    pthread_mutex_t mutex;
    pthread_cond_t work, idle;
    struct shore__job *head, *tail;
    uint64_t unfinished; /* pushed and not yet finished */
    bool stopping, started;
    pthread_t thread;
};

int shore__lane_start(struct shore__lane *lane, const char *name, void *(*run)(void *), void *ctx);
/* Drains, and ends the thread. Harmless on a lane that was never started. */
void shore__lane_stop(struct shore__lane *lane);
void shore__lane_push(struct shore__lane *lane, struct shore__job *job);
/* Pushes a job, and waits for its completion *done, a part of it. Returns its code. */
int shore__lane_ask(struct shore__lane *lane, struct shore__job *job, struct shore_completion *done,
                    struct shore_diag *diag);
/* Waits until everything pushed has finished, including completions. */
void shore__lane_drain(struct shore__lane *lane);

/* For the lane's thread. wait: until there is a job; NULL then means that the lane stops. */
struct shore__job *shore__lane_pop(struct shore__lane *lane, bool wait);
/* Puts a popped job back, first among its order, and takes one of lower order instead; returns the job itself if there
 * is none. */
struct shore__job *shore__lane_swap(struct shore__lane *lane, struct shore__job *job);
/* Finishes a job, after its completion has run. */
void shore__lane_finished(struct shore__lane *lane);

/* The step that each slot holds or receives, and the attempt. Threading: any. */
struct shore__slots {
    pthread_mutex_t mutex;
    uint64_t step[2]; /* UINT64_MAX: none */
    unsigned active;
    uint64_t attempt;
};

void shore__slots_init(struct shore__slots *slots);
/* After begin: `active` holds step, the other slot nothing. */
void shore__slots_set(struct shore__slots *slots, unsigned active, uint64_t step);
/* The slot that holds step, or -1. */
int shore__slots_find(struct shore__slots *slots, uint64_t step);
/* Prepares for an update of base_step: the other slot will hold the next step. Returns the active slot, or a negative
 * code. */
int shore__slots_write(struct shore__slots *slots, uint64_t base_step, uint64_t attempt);
/* When a job's turn comes: whether that slot is still the active one with that step, and the attempt continues. */
bool shore__slots_holds(struct shore__slots *slots, unsigned active, uint64_t base_step, uint64_t attempt);
void shore__slots_commit(struct shore__slots *slots, uint64_t step, bool skip);
void shore__slots_discard(struct shore__slots *slots, uint64_t attempt);
bool shore__slots_attempt_is(struct shore__slots *slots, uint64_t attempt);
unsigned shore__slots_active(struct shore__slots *slots, uint64_t *step);

#endif
