/* The commit of a fleet, the updates that wait for it, and the end of an attempt. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/sized.h"
#include "base/units.h"
#include "drive/fleet/join.h"

/* Only the first own drive gets the blob: one copy is enough, since every drive has the step. */
static void send_commit(struct shore_fleet *f, struct shore__join *join) {
    const struct shore_commit *each = f->commit_each;
    f->commit_each = NULL;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        const struct shore_commit *commit = each ? &each[d] : d == f->own_first ? &join->commit : &join->elsewhere;
        int rc = f->drives[d]->ops->commit(f->drives[d], commit, shore__share_completion(join, d));
        if (rc) shore__share_refused(join, d, rc);
        shore__fleet_count(f, d, SHORE__COUNTER(link_control), commit->metrics_bytes + commit->blob_bytes);
    }
    shore__join_share_done(join, 0, NULL);
}

/* Returns the pending commit if it can be sent now. Called with the lock held. No drive gets a commit before all
 * updates have succeeded, so a failed update fails the commit and leaves every drive untouched. */
static struct shore__join *commit_due(struct shore_fleet *f, bool *refused) {
    *refused = false;
    assert(f->commit || !f->commit_sent);
    if (!f->commit || f->commit_sent || f->outstanding) return NULL;
    f->commit_sent = true;
    f->commit_start_ns = shore__now_ns();
    *refused = f->broken_rc || (f->attempt_rc && f->commit->commit.how != SHORE_COMMIT_SKIPPED);
    return f->commit;
}

static void commit_go(struct shore_fleet *f, struct shore__join *join, bool refused) {
    if (refused) {
        shore__join_share_done(join, f->broken_rc ? f->broken_rc : f->attempt_rc,
                               f->broken_rc ? &f->broken_diag : &f->attempt_diag);
    } else {
        send_commit(f, join);
    }
}

void shore__fleet_update_ended(struct shore__join *ended) {
    struct shore_fleet *f = ended->fleet;
    shore__join_complete(ended);
    bool refused;
    pthread_mutex_lock(&f->lock);
    assert(f->outstanding > 0);
    f->outstanding--;
    if (ended->rc && ended->update.attempt == f->attempt && !f->attempt_rc) {
        f->attempt_rc = ended->rc;
        f->attempt_diag = ended->diag;
    }
    if (ended->update.attempt == f->attempt) shore__fleet_wrote(f, &ended->update);
    struct shore__join *join = commit_due(f, &refused);
    pthread_mutex_unlock(&f->lock);
    if (join) commit_go(f, join, refused);
}

/* Updates that were held, taken from the queue. */
struct held {
    struct shore__join *first;
    uint64_t left;
};

/* Called with the lock held. */
static struct held take_held(struct shore_fleet *f) {
    const struct held held = {f->held, f->nheld};
    f->held = f->held_tail = NULL;
    f->outstanding += f->nheld; /* in addition to updates that a broken fleet is refusing */
    f->nheld = 0;
    return held;
}

/* Sends them, or lets them fail. */
static void release(struct held held, int rc, const struct shore_diag *diag) {
    while (held.first) {
        struct shore__join *next = held.first->next;
        assert(held.left > 0);
        if (rc) {
            shore__join_share_done(held.first, rc, diag);
        } else {
            shore__fleet_send_update(held.first);
        }
        held.first = next;
        held.left--;
    }
    assert(!held.left);
}

static void commit_ended(struct shore__join *join) {
    struct shore_fleet *f = join->fleet;
    int rc = join->rc;
    pthread_mutex_lock(&f->lock);
    assert(f->commit == join && f->commit_sent);
    assert(!f->held == !f->nheld);
    if (!rc) {
        assert(!f->outstanding && (join->commit.how == SHORE_COMMIT_RESTORED || join->commit.step == f->step + 1));
        f->step = join->commit.step;
        shore__fleet_next_round(f);
        f->metrics_bytes = join->commit.metrics_bytes;
        if (f->metrics_bytes) memcpy(f->metrics, join->commit.metrics, f->metrics_bytes);
        f->attempt_rc = 0;
    } else if (!(f->attempt_rc && join->commit.how != SHORE_COMMIT_SKIPPED)) {
        /* some drives may have the new step and some not: recovery decides */
        f->broken_rc = rc;
        f->broken_diag = join->diag;
        shore__fleet_next_round(f);
    }
    const uint64_t now_ns = shore__now_ns();
    f->counters[SHORE__COUNTER(commit_ns)] += now_ns - f->commit_start_ns;
    shore__recorder_worked(f->recorder, SHORE_LANE_COMMIT, SHORE__NO_DRIVE, f->commit_start_ns, now_ns, 0);
    f->unconfirmed = f->is_part && !rc;
    struct held held = {0};
    if (!f->unconfirmed) held = take_held(f);
    f->commit = NULL;
    f->commit_sent = false;
    if (f->unconfirmed) pthread_cond_broadcast(&f->idle); /* for who closes while updates are held */
    pthread_mutex_unlock(&f->lock);
    shore__join_complete(join);
    release(held, rc, &join->diag);
}

int shore_fleet_confirm(struct shore_fleet *f, uint64_t step) {
    if (!f->is_part) return 0;
    struct held held = {0};
    pthread_mutex_lock(&f->lock);
    int rc = f->commit ? -EBUSY : !f->ready || step != f->step ? SHORE_ESTALE : 0;
    if (!rc) held = take_held(f);
    if (!rc) f->unconfirmed = false;
    pthread_mutex_unlock(&f->lock);
    release(held, 0, NULL);
    return rc;
}

/* Those that wait for the other parts. Called with the lock held. */
static struct held take_unconfirmed(struct shore_fleet *f) {
    return f->unconfirmed ? take_held(f) : (struct held){0};
}

void shore__fleet_discard_held(struct shore_fleet *f) {
    pthread_mutex_lock(&f->lock);
    const struct held held = take_unconfirmed(f);
    pthread_mutex_unlock(&f->lock);
    release(held, SHORE_EDISCARDED, NULL);
}

static struct shore__join *commit_join(struct shore_fleet *f, const struct shore_commit *commit,
                                       struct shore_completion done) {
    struct shore__join *join = shore__join_new(f, SHORE__JOIN_COMMIT, commit->metrics_bytes + commit->blob_bytes, done);
    if (!join) return NULL;
    join->ended = commit_ended;
    join->commit = *commit;
    join->commit.metrics = join->tail;
    join->commit.blob = join->tail + commit->metrics_bytes;
    if (commit->metrics_bytes) memcpy(join->tail, commit->metrics, commit->metrics_bytes);
    if (commit->blob_bytes) memcpy(join->tail + commit->metrics_bytes, commit->blob, commit->blob_bytes);
    join->elsewhere = join->commit;
    join->elsewhere.blob = NULL;
    join->elsewhere.blob_bytes = 0;
    return join;
}

static bool commit_is_possible(const struct shore_commit *commit) {
    return (unsigned)commit->how <= SHORE_COMMIT_RESTORED && commit->metrics_bytes <= SHORE__METRICS_BYTES &&
           commit->blob_bytes <= SHORE_BLOB_BYTES && (commit->metrics || !commit->metrics_bytes) &&
           (commit->blob || !commit->blob_bytes) && commit->step < UINT64_MAX - 1;
}

int shore_fleet_commit_with(struct shore_fleet *f, const struct shore_commit *given, struct shore_completion done) {
    struct shore_commit known, *commit = &known;
    struct shore_diag why;
    int rc = shore__sized_in(commit, sizeof *commit, given, "shore_commit", &why);
    if (!rc && !commit_is_possible(commit)) return -EINVAL;
    struct shore__drive *first = f->drives[f->own_first];
    if (!rc && commit->blob_bytes && first->ops->can_carry) rc = first->ops->can_carry(first, &why);
    if (rc) return shore__join_refuse(done, rc, &why);
    struct shore__join *join = commit_join(f, commit, done), *due = NULL;
    if (!join) return -ENOMEM;
    bool refused = false;
    pthread_mutex_lock(&f->lock);
    if (!f->ready) {
        rc = -EINVAL;
    } else if (f->config.read_only) {
        rc = -EROFS;
    } else if (f->commit || f->unconfirmed) {
        rc = -EBUSY;
    } else if (commit->step != f->step + 1 && commit->how != SHORE_COMMIT_RESTORED) {
        rc = SHORE_ESTALE;
    } else {
        f->commit = join;
        due = commit_due(f, &refused);
    }
    pthread_mutex_unlock(&f->lock);
    if (rc) shore__join_free(join);
    if (due) commit_go(f, due, refused);
    return rc;
}

int shore__fleet_commit_each(struct shore_fleet *f, const struct shore_commit *each, struct shore_completion done) {
    f->commit_each = each;
    int rc = shore_fleet_commit_with(f, &each[0], done);
    if (rc) f->commit_each = NULL;
    return rc;
}

int shore_fleet_commit(struct shore_fleet *f, uint64_t base_step, bool skip, const void *metrics,
                       uint32_t metrics_bytes, struct shore_completion done) {
    struct shore_commit commit = {.size = sizeof commit,
                                  .step = base_step + 1,
                                  .how = skip ? SHORE_COMMIT_SKIPPED : SHORE_COMMIT_UPDATED,
                                  .metrics = metrics,
                                  .metrics_bytes = metrics_bytes};
    return shore_fleet_commit_with(f, &commit, done);
}

uint64_t shore_fleet_discard(struct shore_fleet *f) {
    pthread_mutex_lock(&f->lock);
    uint64_t attempt = ++f->attempt;
    const struct held held = take_unconfirmed(f);
    shore__fleet_next_round(f);
    pthread_mutex_unlock(&f->lock);
    release(held, SHORE_EDISCARDED, NULL);
    for (uint32_t d = 0; d < f->ndrives; d++) {
        f->drives[d]->ops->discard(f->drives[d], attempt);
    }
    pthread_mutex_lock(&f->lock);
    f->attempt_rc = 0;
    pthread_mutex_unlock(&f->lock);
    return attempt;
}

uint64_t shore_fleet_attempt(const struct shore_fleet *fleet) {
    struct shore_fleet *f = (struct shore_fleet *)(uintptr_t)fleet;
    pthread_mutex_lock(&f->lock);
    uint64_t attempt = f->attempt;
    pthread_mutex_unlock(&f->lock);
    return attempt;
}
