/* Requests of a fleet: split by drive, joined again; what waits for a commit, and the commit itself. */
#include "drive/fleet/fleet.h"
#include "drive/function.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/sized.h"
#include "base/units.h"
#include "drive/chunk.h"
#include "drive/layout.h"
#include "drive/remote/remote.h"
#include "number/gather.h"

enum join_kind {
    JOIN_FETCH,
    JOIN_UPDATE,
    JOIN_STORE,
    JOIN_CARRY,
    JOIN_INITIAL,
    JOIN_SPILL,
    JOIN_PUT,
    JOIN_GET,
    JOIN_COMMIT
};

/* What one drive does for a request. */
struct part {
    struct shore__join *join;
    struct shore__meter *meter;
};

/* One request of the caller: its parts on the drives, and what they come to. */
struct shore__join {
    struct shore__join *next; /* held */
    struct shore_fleet *fleet;
    enum join_kind kind;
    struct shore_completion done;
    atomic_uint left;
    atomic_bool failed; /* who sets it writes rc and diag */
    int rc;
    struct shore_diag diag;
    /* groups and gather list point into tail; of a store: what both have in common; of a fetch: its step */
    struct shore_update update;
    const unsigned char *state;
    struct shore_commit commit, elsewhere; /* as the first drive and the others get it; they point into tail */
    unsigned char *seal_out;
    unsigned char seal_want[16];
    uint32_t nparts;
    struct part *part;    /* by drive; behind the tail */
    unsigned char tail[]; /* groups and gather list of an update, a seal for each part, or metrics and blob */
};

static void update_finished(struct shore_fleet *f, uint64_t attempt, int rc, const struct shore_diag *diag);
static void commit_finished(struct shore_fleet *f, struct shore__join *join);

static struct shore__join *join_new(struct shore_fleet *f, enum join_kind kind, size_t tail_bytes,
                                    struct shore_completion done) {
    tail_bytes = (tail_bytes + 15) / 16 * 16;
    struct shore__join *join = calloc(1, sizeof *join + tail_bytes + f->ndrives * sizeof *join->part);
    if (!join) return NULL;
    join->part = (struct part *)(void *)(join->tail + tail_bytes);
    for (uint32_t d = 0; d < f->ndrives; d++) /* now: a drive may complete one part while the next one is made */
        join->part[d] = (struct part){join, &f->meters[d]};
    join->fleet = f;
    join->kind = kind;
    join->done = done;
    atomic_init(&join->left, 1); /* the submitter's own share */
    pthread_mutex_lock(&f->lock);
    f->joins++;
    pthread_mutex_unlock(&f->lock);
    return join;
}

static void join_free(struct shore__join *join) {
    struct shore_fleet *f = join->fleet;
    free(join);
    pthread_mutex_lock(&f->lock);
    if (--f->joins == 0) pthread_cond_broadcast(&f->idle);
    pthread_mutex_unlock(&f->lock);
}

static void join_fail(struct shore__join *join, int rc, const struct shore_diag *diag) {
    if (atomic_exchange(&join->failed, true)) return;
    join->rc = rc;
    if (diag) {
        join->diag = *diag;
    } else {
        shore__fail(&join->diag, rc, "%s", shore_error_text(rc));
    }
}

static void finish_seals(struct shore__join *join) {
    unsigned char sum[16] = {0};
    for (uint32_t i = 0; i < join->nparts; i++) {
        shore__sum_add(sum, join->tail + 16 * (size_t)i);
    }
    if (join->kind == JOIN_PUT) {
        memcpy(join->seal_out, sum, 16);
    } else if (memcmp(sum, join->seal_want, 16) != 0 && join->fleet->keeps_data) {
        join_fail(join, SHORE_ECORRUPT, NULL);
        shore__fail(&join->diag, SHORE_ECORRUPT,
                    "scratch data came back from the drives with other bytes than were stored");
    }
}

/* What a failed update has left of the step in hand cannot match: its own sentence is the one that helps. */
static void explain_fetch(struct shore__join *join) {
    struct shore_fleet *f = join->fleet;
    pthread_mutex_lock(&f->lock);
    if (f->attempt_rc && join->update.base_step == f->step + 1) {
        join->rc = f->attempt_rc;
        join->diag = f->attempt_diag;
    }
    pthread_mutex_unlock(&f->lock);
}

static void join_part_done(struct shore__join *join, int rc, const struct shore_diag *diag) {
    if (rc) join_fail(join, rc, diag);
    if (atomic_fetch_sub(&join->left, 1) != 1) return;
    struct shore_fleet *f = join->fleet;
    if (join->kind == JOIN_COMMIT) {
        commit_finished(f, join);
        return;
    }
    if (join->kind == JOIN_FETCH && join->rc == SHORE_ECORRUPT) explain_fetch(join);
    if ((join->kind == JOIN_PUT || join->kind == JOIN_GET) && !join->rc) finish_seals(join);
    const struct shore_diag *sentence = join->rc ? &join->diag : NULL;
    join->done.fn(join->done.ctx, join->rc, sentence);
    if (join->kind == JOIN_UPDATE || join->kind == JOIN_STORE || join->kind == JOIN_CARRY)
        update_finished(f, join->update.attempt, join->rc, sentence);
    join_free(join);
}

/* How long each drive has something to do: a slow one shows. */
static void meter_begin(struct shore__meter *m) {
    pthread_mutex_lock(&m->lock);
    if (m->under_way++ == 0) m->since_ns = shore__now_ns();
    pthread_mutex_unlock(&m->lock);
}

static void meter_end(struct shore__meter *m) {
    pthread_mutex_lock(&m->lock);
    if (--m->under_way == 0) m->busy_ns += shore__now_ns() - m->since_ns;
    pthread_mutex_unlock(&m->lock);
}

static void part_done(void *ctx, int rc, const struct shore_diag *diag) {
    struct part *part = ctx;
    meter_end(part->meter);
    join_part_done(part->join, rc, diag);
}

static struct shore_completion part_completion(struct shore__join *join, uint32_t d) {
    atomic_fetch_add(&join->left, 1);
    meter_begin(join->part[d].meter);
    return (struct shore_completion){part_done, &join->part[d]};
}

/* The part was refused: it counts as one that has failed. A submit has no room for words. */
static void part_refused(struct shore__join *join, uint32_t d, int rc) {
    struct shore__drive *drive = join->fleet->drives[d];
    struct shore_diag why;
    if (!shore__is_remote(drive) || !shore__remote_is_broken(drive, &why))
        shore__fail(&why, rc, "%s: %s", drive->ops->path(drive), shore_error_text(rc));
    part_done(&join->part[d], rc, &why);
}

/* The common part of drive d's range and [segment, segment + count). */
static bool intersect(const struct shore_fleet *f, uint32_t block, uint32_t d, uint32_t segment, uint32_t count,
                      struct shore__range *out) {
    struct shore__range own = f->ranges[(size_t)block * f->ndrives + d];
    uint32_t first = own.first > segment ? own.first : segment;
    uint32_t own_end = own.first + own.count, end = segment + count;
    if (own_end < end) end = own_end;
    if (own.count == 0 || first >= end) return false;
    *out = (struct shore__range){first, end - first};
    return true;
}

static int check_range(const struct shore_fleet *f, uint32_t block, uint32_t segment, uint32_t count) {
    if (block >= f->layout->nblocks || count == 0) return -EINVAL;
    uint32_t segments = f->layout->blocks[block].segments;
    return segment >= segments || count > segments - segment ? -EINVAL : 0;
}

static bool is_ready(struct shore_fleet *f) {
    pthread_mutex_lock(&f->lock);
    bool ready = f->ready;
    pthread_mutex_unlock(&f->lock);
    return ready;
}

int shore_fleet_fetch(struct shore_fleet *f, uint64_t step, uint32_t block, uint32_t segment, uint32_t count,
                      enum shore_fetch_kind kind, void *dst, struct shore_completion done) {
    bool known = (unsigned)kind <= SHORE_FETCH_SPILLED_BF16;
    int rc = known && is_ready(f) ? check_range(f, block, segment, count) : -EINVAL;
    if (rc) return rc;
    struct shore__join *join = join_new(f, JOIN_FETCH, 0, done);
    if (!join) return -ENOMEM;
    join->update.base_step = step;
    size_t segment_bytes = shore__fetch_segment_bytes(f->config.plane_bytes, kind);
    for (uint32_t d = 0; d < f->ndrives; d++) {
        struct shore__range part;
        if (!intersect(f, block, d, segment, count, &part)) continue;
        struct shore__drive_fetch fetch = {
            .step = step,
            .block = block,
            .segment = part.first,
            .count = part.count,
            .kind = kind,
            .dst = (unsigned char *)dst + (part.first - segment) * segment_bytes,
        };
        rc = f->drives[d]->ops->fetch(f->drives[d], &fetch, part_completion(join, d));
        if (rc) part_refused(join, d, rc);
        shore__link_count(f, d, shore__link_of_fetch(kind),
                          kind == SHORE_FETCH_STATE
                              ? part.count * segment_bytes
                              : shore__layout_bytes(f->layout, block, part.first, part.count, segment_bytes));
        shore__link_count(f, d, SHORE__LINK_CONTROL, sizeof fetch);
    }
    join_part_done(join, 0, NULL);
    return 0;
}

/* What a request to update says beside its groups, as a drive of this host counts it. */
#define UPDATE_BYTES 104u

static void count_update(struct shore_fleet *f, uint32_t d, const struct shore_update *u) {
    bool sparse = u->form == SHORE_GRADIENT_SPARSE;
    shore__link_count(f, d, sparse ? SHORE__LINK_IN_COMPRESSED : SHORE__LINK_IN_GRADIENTS,
                      shore__update_gradient_bytes(&f->config, u));
    shore__link_count(f, d, SHORE__LINK_IN_STATE, shore__update_residual_bytes(&f->config, u));
    shore__link_count(f, d, SHORE__LINK_OUT_PARAMS, shore__update_bytes_out(&f->config, u));
    shore__link_count(f, d, SHORE__LINK_CONTROL, UPDATE_BYTES + u->ngroups * sizeof *u->groups);
}

static void send_to(struct shore__join *join, uint32_t d, struct shore__range range) {
    struct shore_fleet *f = join->fleet;
    struct shore__drive *drive = f->drives[d];
    int rc;
    if (join->kind != JOIN_UPDATE) {
        struct shore_store part = {
            .base_step = join->update.base_step,
            .attempt = join->update.attempt,
            .block = join->update.block,
            .segment = range.first,
            .count = range.count,
            .order = join->update.order,
        };
        if (join->kind == JOIN_CARRY) {
            rc = drive->ops->carry(drive, &part, part_completion(join, d));
        } else {
            part.state = join->state + (range.first - join->update.segment) * shore_fleet_state_bytes(f);
            shore__link_count(f, d, SHORE__LINK_IN_STATE, part.count * shore_fleet_state_bytes(f));
            rc = drive->ops->store(drive, &part, part_completion(join, d));
        }
    } else {
        struct shore_update part = shore__update_part(&f->config, &join->update, range.first, range.count);
        count_update(f, d, &part);
        rc = drive->ops->update(drive, &part, part_completion(join, d));
    }
    if (rc) part_refused(join, d, rc);
}

/* An update, a store or what is carried; initial state is a store that belongs to no step. */
static void send_update(struct shore__join *join) {
    struct shore_fleet *f = join->fleet;
    const struct shore_update *whole = &join->update;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        struct shore__range range;
        if (intersect(f, whole->block, d, whole->segment, whole->count, &range)) send_to(join, d, range);
    }
    join_part_done(join, 0, NULL);
}

/* Sends it, or holds it back until the commit of its base step is through. */
static int submit_update(struct shore__join *join) {
    struct shore_fleet *f = join->fleet;
    const struct shore_update *update = &join->update;
    bool hold = false, broken = false;
    int rc = 0;
    pthread_mutex_lock(&f->lock);
    if (!f->ready) {
        rc = -EINVAL;
    } else if (f->config.read_only) {
        rc = -EROFS;
    } else if (f->broken_rc) {
        broken = true;
        f->outstanding++;
    } else if (update->attempt != f->attempt) {
        rc = SHORE_EDISCARDED;
    } else if (f->commit && update->base_step == f->step + 1) {
        hold = true;
        if (f->held_tail) {
            f->held_tail->next = join;
        } else {
            f->held = join;
        }
        f->held_tail = join;
        f->nheld++;
    } else if (f->commit || update->base_step != f->step) {
        rc = SHORE_ESTALE;
    } else {
        f->outstanding++;
    }
    pthread_mutex_unlock(&f->lock);
    if (rc) {
        join_free(join);
        return rc;
    }
    if (broken)
        join_part_done(join, f->broken_rc, &f->broken_diag); /* a completion has words, which a code has not */
    else if (!hold)
        send_update(join);
    return 0;
}

/* A completion has words, which a code has not. */
static int refuse(struct shore_completion done, int rc, const struct shore_diag *why) {
    done.fn(done.ctx, rc, why);
    return 0;
}

/* What a caller left out, of which nothing else would tell: every step would be committed, and change nothing. NULL: no
 * such thing. */
static const char *left_out(const struct shore_fleet *f, const struct shore_update *update) {
    const struct shore_layout_block *block = &f->layout->blocks[update->block];
    bool adam = f->config.optimizer == SHORE_ADAMW || f->config.optimizer == SHORE_ADAM;
    if (update->coefficient == 0)
        return "coefficient is 0, which would multiply the gradient by 0: 1 leaves it as it is";
    for (uint32_t t = 0; t < block->ntensors; t++) {
        const struct shore_hyper *h = &update->groups[block->tensors[t].group];
        if (adam && !h->frozen && h->inv_sqrt_bias2 == 0)
            return "inv_sqrt_bias2 of a group is 0: shore_hyper_at_step() fills it in";
    }
    const struct shore__gather_list list = {update->gather, update->ngather};
    if (update->gather && update->form == SHORE_GRADIENT_SPARSE) return "a gather list cannot be of form SPARSE";
    return update->gather ? shore__gather_fault(&list, block) : NULL;
}

int shore_fleet_update(struct shore_fleet *f, const struct shore_update *given, struct shore_completion done) {
    struct shore_update known, *update = &known;
    struct shore_diag why;
    int rc = shore__sized_in(update, sizeof *update, given, "shore_update", &why);
    if (rc) return refuse(done, rc, &why);
    rc = shore__update_check(&f->config, update);
    if (rc) return rc;
    const char *what = left_out(f, update);
    if (what) return refuse(done, shore__fail(&why, -EINVAL, "shore_fleet_update: %s", what), &why);
    size_t groups_bytes = update->ngroups * sizeof *update->groups;
    size_t gather_bytes = update->gather ? update->ngather * sizeof *update->gather : 0;
    size_t gather_at = (groups_bytes + 15) / 16 * 16;
    struct shore__join *join = join_new(f, JOIN_UPDATE, gather_at + gather_bytes, done);
    if (!join) return -ENOMEM;
    memcpy(join->tail, update->groups, groups_bytes);
    if (gather_bytes) memcpy(join->tail + gather_at, update->gather, gather_bytes);
    join->update = *update;
    join->update.groups = (const struct shore_hyper *)(void *)join->tail;
    if (update->gather) join->update.gather = (const struct shore_gather *)(void *)(join->tail + gather_at);
    return submit_update(join);
}

int shore_fleet_store(struct shore_fleet *f, const struct shore_store *given, struct shore_completion done) {
    struct shore_store known, *store = &known;
    struct shore_diag why;
    int rc = shore__sized_in(store, sizeof *store, given, "shore_store", &why);
    if (rc) return refuse(done, rc, &why);
    rc = check_range(f, store->block, store->segment, store->count);
    if (rc) return rc;
    bool initial = !is_ready(f);
    struct shore__join *join = join_new(f, initial ? JOIN_INITIAL : JOIN_STORE, 0, done);
    if (!join) return -ENOMEM;
    join->state = store->state;
    join->update = (struct shore_update){
        .base_step = store->base_step,
        .attempt = store->attempt,
        .block = store->block,
        .segment = store->segment,
        .count = store->count,
        .order = store->order,
    };
    if (!initial) return submit_update(join);
    send_update(join);
    return 0;
}

int shore_fleet_carry(struct shore_fleet *f, uint64_t base_step, uint64_t attempt, uint32_t block, uint32_t segment,
                      uint32_t count, struct shore_completion done) {
    int rc = check_range(f, block, segment, count);
    if (rc) return rc;
    struct shore__join *join = join_new(f, JOIN_CARRY, 0, done);
    if (!join) return -ENOMEM;
    join->update = (struct shore_update){
        .base_step = base_step, .attempt = attempt, .block = block, .segment = segment, .count = count};
    return submit_update(join);
}

/* ---- functions of drives ---- */

static void send_call(struct shore__join *join, uint32_t d, const struct shore__call *call) {
    struct shore_fleet *f = join->fleet;
    int rc = f->drives[d]->ops->call(f->drives[d], call, part_completion(join, d));
    if (rc) part_refused(join, d, rc);
    shore__link_count(f, d, shore__function(call->function)->link, shore__call_crossing(call, f->layout));
}

int shore_fleet_spill(struct shore_fleet *f, uint32_t block, uint32_t segment, uint32_t count,
                      enum shore_gradient_form form, const void *gradient, struct shore_completion done) {
    size_t each = shore__gradient_segment_bytes(form);
    int rc = is_ready(f) && each ? check_range(f, block, segment, count) : -EINVAL;
    if (rc) return rc;
    struct shore__join *join = join_new(f, JOIN_SPILL, 0, done);
    if (!join) return -ENOMEM;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        struct shore__range part;
        if (!intersect(f, block, d, segment, count, &part)) continue;
        struct shore__call call = {.function = SHORE__SPILL,
                                   .block = block,
                                   .segment = part.first,
                                   .count = part.count,
                                   .form = form,
                                   .in = (const unsigned char *)gradient + (part.first - segment) * each};
        send_call(join, d, &call);
    }
    join_part_done(join, 0, NULL);
    return 0;
}

/* Scratch: stripes of 1 MiB go round the drives, by their shares. */

static int scratch(struct shore_fleet *f, bool put, uint64_t offset, uint64_t bytes, unsigned char *buffer,
                   unsigned char *seal_out, const unsigned char *seal_want, struct shore_completion done) {
    const uint64_t stripe = SHORE__SCRATCH_STRIPE_BYTES;
    if (!is_ready(f) || bytes == 0 || offset % SHORE__IO_ALIGN || bytes % SHORE__IO_ALIGN ||
        offset > f->scratch_bytes || bytes > f->scratch_bytes - offset) {
        return -EINVAL;
    }
    uint64_t nparts = f->ndrives == 1 ? 1 : (offset + bytes - 1) / stripe - offset / stripe + 1;
    struct shore__join *join = join_new(f, put ? JOIN_PUT : JOIN_GET, nparts * 16, done);
    if (!join) return -ENOMEM;
    join->nparts = (uint32_t)nparts;
    join->seal_out = seal_out;
    if (seal_want) memcpy(join->seal_want, seal_want, 16);
    uint64_t at = offset;
    for (uint64_t i = 0; i < nparts; i++) {
        uint64_t number = at / stripe, within = at % stripe;
        uint64_t part = nparts == 1 ? bytes : stripe - within;
        if (part > offset + bytes - at) part = offset + bytes - at;
        uint64_t local;
        uint32_t d = shore__stripes_find(&f->stripes, number, &local);
        struct shore__call call = {.function = put ? SHORE__SCRATCH_PUT : SHORE__SCRATCH_GET,
                                   .start = local * stripe + within,
                                   .bytes = part,
                                   .in = buffer + (at - offset),
                                   .out = buffer + (at - offset),
                                   .seal = join->tail + 16 * i};
        send_call(join, d, &call);
        at += part;
    }
    join_part_done(join, 0, NULL);
    return 0;
}

int shore_fleet_scratch_put(struct shore_fleet *f, uint64_t offset, uint64_t bytes, const void *src,
                            unsigned char seal[16], struct shore_completion done) {
    return scratch(f, true, offset, bytes, (unsigned char *)(uintptr_t)src, seal, NULL, done);
}

int shore_fleet_scratch_get(struct shore_fleet *f, uint64_t offset, uint64_t bytes, void *dst,
                            const unsigned char seal[16], struct shore_completion done) {
    return scratch(f, false, offset, bytes, dst, NULL, seal, done);
}

/* ---- commit ---- */

/* The blob goes to the first drive alone: each has the step, and one is enough to keep it. */
static void send_commit(struct shore_fleet *f, struct shore__join *join) {
    for (uint32_t d = 0; d < f->ndrives; d++) {
        int rc =
            f->drives[d]->ops->commit(f->drives[d], d ? &join->elsewhere : &join->commit, part_completion(join, d));
        if (rc) part_refused(join, d, rc);
        shore__link_count(f, d, SHORE__LINK_CONTROL, join->commit.metrics_bytes + (d ? 0 : join->commit.blob_bytes));
    }
    join_part_done(join, 0, NULL);
}

/* With the lock: the pending commit, if it can go now. Nothing is sent to any drive before all updates have completed
 * well: so a failed update fails the commit with every drive untouched. */
static struct shore__join *commit_due(struct shore_fleet *f, bool *refused) {
    *refused = false;
    if (!f->commit || f->commit_sent || f->outstanding) return NULL;
    f->commit_sent = true;
    f->commit_start_ns = shore__now_ns();
    *refused = f->broken_rc || (f->attempt_rc && f->commit->commit.how != SHORE_COMMIT_SKIPPED);
    return f->commit;
}

static void commit_go(struct shore_fleet *f, struct shore__join *join, bool refused) {
    if (refused) {
        join_part_done(join, f->broken_rc ? f->broken_rc : f->attempt_rc,
                       f->broken_rc ? &f->broken_diag : &f->attempt_diag);
    } else {
        send_commit(f, join);
    }
}

static void update_finished(struct shore_fleet *f, uint64_t attempt, int rc, const struct shore_diag *diag) {
    bool refused;
    pthread_mutex_lock(&f->lock);
    f->outstanding--;
    if (rc && attempt == f->attempt && !f->attempt_rc) {
        f->attempt_rc = rc;
        f->attempt_diag = *diag;
    }
    struct shore__join *join = commit_due(f, &refused);
    pthread_mutex_unlock(&f->lock);
    if (join) commit_go(f, join, refused);
}

static void commit_finished(struct shore_fleet *f, struct shore__join *join) {
    int rc = join->rc;
    pthread_mutex_lock(&f->lock);
    if (!rc) {
        f->step = join->commit.step;
        f->metrics_bytes = join->commit.metrics_bytes;
        if (f->metrics_bytes) memcpy(f->metrics, join->commit.metrics, f->metrics_bytes);
        f->attempt_rc = 0;
    } else if (!(f->attempt_rc && join->commit.how != SHORE_COMMIT_SKIPPED)) {
        /* some drives may have the new step and some not: recovery decides */
        f->broken_rc = rc;
        f->broken_diag = join->diag;
    }
    f->commit_ns += shore__now_ns() - f->commit_start_ns;
    struct shore__join *held = f->held;
    f->held = f->held_tail = NULL;
    f->outstanding += f->nheld; /* beside what a broken fleet is just refusing */
    f->nheld = 0;
    f->commit = NULL;
    f->commit_sent = false;
    pthread_mutex_unlock(&f->lock);
    join->done.fn(join->done.ctx, rc, rc ? &join->diag : NULL);
    while (held) {
        struct shore__join *next = held->next;
        if (rc) {
            join_part_done(held, rc, &join->diag);
        } else {
            send_update(held);
        }
        held = next;
    }
    join_free(join);
}

static struct shore__join *commit_join(struct shore_fleet *f, const struct shore_commit *commit,
                                       struct shore_completion done) {
    struct shore__join *join = join_new(f, JOIN_COMMIT, commit->metrics_bytes + commit->blob_bytes, done);
    if (!join) return NULL;
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
    if (!rc && commit->blob_bytes) rc = f->drives[0]->ops->can_carry(f->drives[0], &why);
    if (rc) return refuse(done, rc, &why);
    struct shore__join *join = commit_join(f, commit, done), *due = NULL;
    if (!join) return -ENOMEM;
    bool refused = false;
    pthread_mutex_lock(&f->lock);
    if (!f->ready) {
        rc = -EINVAL;
    } else if (f->config.read_only) {
        rc = -EROFS;
    } else if (f->commit) {
        rc = -EBUSY;
    } else if (commit->step != f->step + 1 && commit->how != SHORE_COMMIT_RESTORED) {
        rc = SHORE_ESTALE;
    } else {
        f->commit = join;
        due = commit_due(f, &refused);
    }
    pthread_mutex_unlock(&f->lock);
    if (rc) join_free(join);
    if (due) commit_go(f, due, refused);
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

int shore_fleet_commit_restored(struct shore_fleet *f, uint64_t step, const void *metrics, uint32_t metrics_bytes,
                                struct shore_completion done) {
    struct shore_commit commit = {.size = sizeof commit,
                                  .step = step,
                                  .how = SHORE_COMMIT_RESTORED,
                                  .metrics = metrics,
                                  .metrics_bytes = metrics_bytes};
    return shore_fleet_commit_with(f, &commit, done);
}

uint64_t shore_fleet_discard(struct shore_fleet *f) {
    pthread_mutex_lock(&f->lock);
    uint64_t attempt = ++f->attempt;
    pthread_mutex_unlock(&f->lock);
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
