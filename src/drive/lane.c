#include "drive/lane.h"

#include <assert.h>

#include "base/thread.h"

int shore__lane_start(struct shore__lane *lane, const char *name, void *(*run)(void *), void *ctx) {
    pthread_mutex_init(&lane->mutex, NULL);
    pthread_cond_init(&lane->work, NULL);
    pthread_cond_init(&lane->idle, NULL);
    lane->head = lane->tail = NULL;
    lane->unfinished = 0;
    lane->stopping = false;
    int rc = shore__thread_start(&lane->thread, name, run, ctx);
    lane->started = rc == 0;
    return rc;
}

void shore__lane_stop(struct shore__lane *lane) {
    if (!lane->started) return;
    shore__lane_drain(lane);
    pthread_mutex_lock(&lane->mutex);
    lane->stopping = true;
    pthread_cond_signal(&lane->work);
    pthread_mutex_unlock(&lane->mutex);
    pthread_join(lane->thread, NULL);
    assert(!lane->head && !lane->tail);
    pthread_mutex_destroy(&lane->mutex);
    pthread_cond_destroy(&lane->work);
    pthread_cond_destroy(&lane->idle);
    lane->started = false;
}

void shore__lane_push(struct shore__lane *lane, struct shore__job *job) {
    pthread_mutex_lock(&lane->mutex);
    assert(!lane->stopping);
    lane->unfinished++;
    if (!lane->tail || lane->tail->order <= job->order) {
        job->next = NULL;
        if (lane->tail) lane->tail->next = job;
        if (!lane->head) lane->head = job;
        lane->tail = job;
    } else {
        struct shore__job **at = &lane->head;
        while ((*at)->order <= job->order) {
            at = &(*at)->next;
        }
        job->next = *at;
        *at = job;
    }
    assert(lane->unfinished && !lane->tail->next);
    pthread_cond_signal(&lane->work);
    pthread_mutex_unlock(&lane->mutex);
}

int shore__lane_ask(struct shore__lane *lane, struct shore__job *job, struct shore_completion *done,
                    struct shore_diag *diag) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    *done = shore_wait_completion(&wait);
    shore__lane_push(lane, job);
    return shore_wait(&wait, diag);
}

void shore__lane_drain(struct shore__lane *lane) {
    pthread_mutex_lock(&lane->mutex);
    while (lane->unfinished) {
        pthread_cond_wait(&lane->idle, &lane->mutex);
    }
    pthread_mutex_unlock(&lane->mutex);
}

struct shore__job *shore__lane_pop(struct shore__lane *lane, bool wait) {
    pthread_mutex_lock(&lane->mutex);
    while (wait && !lane->head && !lane->stopping) {
        pthread_cond_wait(&lane->work, &lane->mutex);
    }
    struct shore__job *job = lane->head;
    assert(!job == !lane->tail && (!job || lane->unfinished > 0));
    if (job) {
        lane->head = job->next;
        if (!lane->head) lane->tail = NULL;
    }
    pthread_mutex_unlock(&lane->mutex);
    return job;
}

struct shore__job *shore__lane_swap(struct shore__lane *lane, struct shore__job *job) {
    pthread_mutex_lock(&lane->mutex);
    struct shore__job *first = lane->head;
    if (first && first->order < job->order) {
        struct shore__job **at = &first->next;
        while (*at && (*at)->order < job->order)
            at = &(*at)->next;
        job->next = *at;
        *at = job;
        if (!job->next) lane->tail = job;
        lane->head = first->next;
        assert(!lane->tail->next && lane->unfinished > 1);
        job = first;
    }
    pthread_mutex_unlock(&lane->mutex);
    return job;
}

void shore__lane_finished(struct shore__lane *lane) {
    pthread_mutex_lock(&lane->mutex);
    assert(lane->unfinished > 0);
    if (--lane->unfinished == 0) pthread_cond_broadcast(&lane->idle);
    pthread_mutex_unlock(&lane->mutex);
}

void shore__slots_init(struct shore__slots *slots) {
    pthread_mutex_init(&slots->mutex, NULL);
    slots->step[0] = slots->step[1] = UINT64_MAX;
    slots->active = 0;
    slots->attempt = 0;
}

void shore__slots_set(struct shore__slots *slots, unsigned active, uint64_t step) {
    pthread_mutex_lock(&slots->mutex);
    assert(active < 2);
    slots->active = active;
    slots->step[active] = step;
    slots->step[1 - active] = UINT64_MAX;
    pthread_mutex_unlock(&slots->mutex);
}

int shore__slots_find(struct shore__slots *slots, uint64_t step) {
    pthread_mutex_lock(&slots->mutex);
    int slot = slots->step[0] == step ? 0 : slots->step[1] == step ? 1 : -1;
    pthread_mutex_unlock(&slots->mutex);
    return step == UINT64_MAX ? -1 : slot;
}

int shore__slots_write(struct shore__slots *slots, uint64_t base_step, uint64_t attempt) {
    int rc;
    pthread_mutex_lock(&slots->mutex);
    if (attempt != slots->attempt) {
        rc = SHORE_EDISCARDED;
    } else if (base_step == UINT64_MAX || base_step != slots->step[slots->active]) {
        rc = SHORE_ESTALE;
    } else {
        slots->step[1 - slots->active] = base_step + 1;
        rc = (int)slots->active;
    }
    pthread_mutex_unlock(&slots->mutex);
    return rc;
}

void shore__slots_commit(struct shore__slots *slots, uint64_t step, bool skip) {
    pthread_mutex_lock(&slots->mutex);
    assert(slots->active < 2);
    if (skip) {
        slots->step[slots->active] = step;
        slots->step[1 - slots->active] = UINT64_MAX;
    } else {
        slots->active = 1 - slots->active;
        slots->step[slots->active] = step; /* a drive that owns no segment has seen no update */
    }
    pthread_mutex_unlock(&slots->mutex);
}

void shore__slots_discard(struct shore__slots *slots, uint64_t attempt) {
    pthread_mutex_lock(&slots->mutex);
    slots->attempt = attempt;
    /* the slot being written; the step before the committed one stays */
    if (slots->step[1 - slots->active] == slots->step[slots->active] + 1) {
        slots->step[1 - slots->active] = UINT64_MAX;
    }
    pthread_mutex_unlock(&slots->mutex);
}

bool shore__slots_holds(struct shore__slots *slots, unsigned active, uint64_t base_step, uint64_t attempt) {
    pthread_mutex_lock(&slots->mutex);
    bool holds = slots->active == active && slots->step[active] == base_step && slots->attempt == attempt;
    pthread_mutex_unlock(&slots->mutex);
    return holds;
}

bool shore__slots_attempt_is(struct shore__slots *slots, uint64_t attempt) {
    pthread_mutex_lock(&slots->mutex);
    bool is = slots->attempt == attempt;
    pthread_mutex_unlock(&slots->mutex);
    return is;
}

unsigned shore__slots_active(struct shore__slots *slots, uint64_t *step) {
    pthread_mutex_lock(&slots->mutex);
    unsigned active = slots->active;
    if (step) *step = slots->step[active];
    pthread_mutex_unlock(&slots->mutex);
    return active;
}
