#include "drive/fleet/join.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/chunk.h"
#include "drive/remote/remote.h"

struct shore__join *shore__join_new(struct shore_fleet *f, enum shore__join_kind kind, size_t tail_bytes,
                                    struct shore_completion done) {
    tail_bytes = (tail_bytes + 15) / 16 * 16;
    struct shore__join *join = calloc(1, sizeof *join + tail_bytes + f->ndrives * sizeof *join->share);
    if (!join) return NULL;
    join->share = (struct shore__share *)(void *)(join->tail + tail_bytes);
    for (uint32_t d = 0; d < f->ndrives; d++) /* now: a drive may complete one part while the next one is made */
        join->share[d] = (struct shore__share){join, &f->busy[d]};
    join->fleet = f;
    join->kind = kind;
    join->done = done;
    atomic_init(&join->left, 1); /* the submitter's own share */
    pthread_mutex_lock(&f->lock);
    f->joins++;
    pthread_mutex_unlock(&f->lock);
    return join;
}

void shore__join_free(struct shore__join *join) {
    struct shore_fleet *f = join->fleet;
    free(join);
    pthread_mutex_lock(&f->lock);
    assert(f->joins > 0);
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

struct shore__scratch_part shore__join_scratch_part(const struct shore__join *join, uint32_t i) {
    const uint64_t stripe = SHORE__SCRATCH_STRIPE_BYTES, end = join->scratch_at + join->scratch_bytes;
    uint64_t number = join->scratch_at / stripe + i;
    struct shore__scratch_part p = {.at = i ? number * stripe : join->scratch_at};
    p.bytes = join->nparts == 1 ? join->scratch_bytes : (number + 1) * stripe - p.at;
    if (p.bytes > end - p.at) p.bytes = end - p.at;
    p.drive = shore__stripes_find(&join->fleet->stripes, number, &p.local);
    p.local = p.local * stripe + p.at % stripe;
    assert(p.at < end && p.bytes && p.drive < join->fleet->ndrives);
    return p;
}

static void say_damaged(struct shore__join *join, uint32_t part) {
    join_fail(join, SHORE_ECORRUPT, NULL);
    if (!join->seals_each && join->nparts > 1) {
        shore__fail(&join->diag, SHORE_ECORRUPT, "the drives returned other bytes of scratch than were stored");
        return;
    }
    struct shore__scratch_part p = shore__join_scratch_part(join, part);
    struct shore__drive *drive = join->fleet->drives[p.drive];
    shore__fail(&join->diag, SHORE_ECORRUPT,
                "%s: returned other bytes than were stored: %llu bytes at %llu of its scratch", drive->path,
                (unsigned long long)p.bytes, (unsigned long long)p.local);
}

static void finish_seals(struct shore__join *join) {
    unsigned char sum[16] = {0};
    const unsigned char *seals = join->seals_each ? join->tail : sum;
    uint32_t count = join->seals_each ? join->nparts : 1;
    for (uint32_t i = 0; i < join->nparts; i++)
        shore__sum_add(sum, join->tail + 16 * (size_t)i);
    if (join->kind == SHORE__JOIN_PUT) memcpy(join->seals, seals, 16 * (size_t)count);
    for (uint32_t i = 0; join->kind == SHORE__JOIN_GET && i < count && !join->rc && join->fleet->keeps_data; i++)
        if (memcmp(seals + 16 * (size_t)i, join->seals + 16 * (size_t)i, 16) != 0) say_damaged(join, i);
}

/* After a failed update, the state of the current step cannot match its checksums. Reports the error of the update
 * instead: it is the one that helps. */
static void explain_fetch(struct shore__join *join) {
    struct shore_fleet *f = join->fleet;
    pthread_mutex_lock(&f->lock);
    if (f->attempt_rc && join->update.base_step == f->step + 1) {
        join->rc = f->attempt_rc;
        join->diag = f->attempt_diag;
    }
    pthread_mutex_unlock(&f->lock);
}

void shore__join_complete(struct shore__join *join) {
    join->done.fn(join->done.ctx, join->rc, join->rc ? &join->diag : NULL);
}

void shore__join_share_done(struct shore__join *join, int rc, const struct shore_diag *diag) {
    if (rc) join_fail(join, rc, diag);
    unsigned left = atomic_fetch_sub(&join->left, 1);
    assert(left > 0);
    if (left > 1) return;
    if (join->kind == SHORE__JOIN_FETCH && join->rc == SHORE_ECORRUPT) explain_fetch(join);
    if ((join->kind == SHORE__JOIN_PUT || join->kind == SHORE__JOIN_GET) && !join->rc) finish_seals(join);
    if (join->ended)
        join->ended(join);
    else
        shore__join_complete(join);
    shore__join_free(join);
}

static void share_done(void *ctx, int rc, const struct shore_diag *diag) {
    struct shore__share *share = ctx;
    shore__busy_end(share->busy);
    shore__join_share_done(share->join, rc, diag);
}

struct shore_completion shore__share_completion(struct shore__join *join, uint32_t d) {
    unsigned before = atomic_fetch_add(&join->left, 1);
    assert(before > 0 && d < join->fleet->ndrives);
    shore__busy_begin(join->share[d].busy);
    return (struct shore_completion){share_done, &join->share[d]};
}

/* A refused share counts as a failed one. The refusal is only a code, so its sentence is made here. */
void shore__share_refused(struct shore__join *join, uint32_t d, int rc) {
    struct shore__drive *drive = join->fleet->drives[d];
    struct shore_diag why;
    if (!shore__is_remote(drive) || !shore__remote_is_broken(drive, &why))
        shore__fail(&why, rc, "%s: %s", drive->path, shore_error_text(rc));
    share_done(&join->share[d], rc, &why);
}

bool shore__fleet_intersect(const struct shore_fleet *f, uint32_t block, uint32_t d, uint32_t segment, uint32_t count,
                            struct shore__range *out) {
    struct shore__range own = f->ranges[(size_t)block * f->ndrives + d];
    uint32_t first = own.first > segment ? own.first : segment;
    uint32_t own_end = own.first + own.count, end = segment + count;
    if (own_end < end) end = own_end;
    if (own.count == 0 || first >= end) return false;
    assert(first >= segment && end <= segment + count);
    *out = (struct shore__range){first, end - first};
    return true;
}

int shore__join_refuse(struct shore_completion done, int rc, const struct shore_diag *why) {
    done.fn(done.ctx, rc, why);
    return 0;
}
