/* Requests for a fleet's state: fetch, update, store, carry. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/diag.h"
#include "base/sized.h"
#include "drive/chunk.h"
#include "drive/fleet/join.h"
#include "drive/layout.h"

int shore_fleet_fetch(struct shore_fleet *f, uint64_t step, uint32_t block, uint32_t segment, uint32_t count,
                      enum shore_fetch_kind kind, void *dst, struct shore_completion done) {
    bool known = (unsigned)kind <= SHORE_FETCH_SPILLED_BF16;
    int rc = known && shore__fleet_is_ready(f) ? shore__fleet_check_range(f, block, segment, count) : -EINVAL;
    if (rc) return rc;
    struct shore__join *join = shore__join_new(f, SHORE__JOIN_FETCH, 0, done);
    if (!join) return -ENOMEM;
    join->update.base_step = step;
    size_t segment_bytes = shore__fetch_segment_bytes(f->config.plane_bytes, kind);
    uint32_t asked = 0;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        struct shore__range part;
        if (!shore__fleet_intersect(f, block, d, segment, count, &part)) continue;
        struct shore__drive_fetch fetch = {
            .step = step,
            .block = block,
            .segment = part.first,
            .count = part.count,
            .kind = kind,
            .dst = (unsigned char *)dst + (part.first - segment) * segment_bytes,
        };
        asked += part.count;
        rc = f->drives[d]->ops->fetch(f->drives[d], &fetch, shore__share_completion(join, d));
        if (rc) shore__share_refused(join, d, rc);
        shore__fleet_count(f, d, shore__counter_of_fetch(kind),
                           kind == SHORE_FETCH_STATE
                               ? part.count * segment_bytes
                               : shore__layout_bytes(f->layout, block, part.first, part.count, segment_bytes));
        shore__fleet_count(f, d, SHORE__COUNTER(link_control), sizeof fetch);
    }
    assert(asked == count);
    shore__join_share_done(join, 0, NULL);
    return 0;
}

/* Sends the update, or holds it back until its base step is committed. */
static int submit_update(struct shore__join *join) {
    struct shore_fleet *f = join->fleet;
    const struct shore_update *update = &join->update;
    bool hold = false, broken = false;
    int rc = 0;
    join->ended = shore__fleet_update_ended;
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
    } else if ((f->commit && update->base_step == f->step + 1) || (f->unconfirmed && update->base_step == f->step)) {
        hold = true;
        if (f->held_tail) {
            f->held_tail->next = join;
        } else {
            f->held = join;
        }
        f->held_tail = join;
        f->nheld++;
        assert(f->held && !join->next);
    } else if (f->commit || update->base_step != f->step) {
        rc = SHORE_ESTALE;
    } else {
        f->outstanding++;
    }
    pthread_mutex_unlock(&f->lock);
    if (rc) {
        shore__join_free(join);
        return rc;
    }
    if (broken)
        shore__join_share_done(join, f->broken_rc, &f->broken_diag); /* completions carry a sentence, codes do not */
    else if (!hold)
        shore__fleet_send_update(join);
    return 0;
}

int shore_fleet_update(struct shore_fleet *f, const struct shore_update *given, struct shore_completion done) {
    struct shore_update known, *update = &known;
    struct shore_diag why;
    int rc = shore__sized_in(update, sizeof *update, given, "shore_update", &why);
    if (rc) return shore__join_refuse(done, rc, &why);
    rc = shore__update_check(&f->config, update);
    if (rc) return rc;
    const char *what = shore__update_left_out(f, update);
    if (what) return shore__join_refuse(done, shore__fail(&why, -EINVAL, "shore_fleet_update: %s", what), &why);
    size_t groups_bytes = update->ngroups * sizeof *update->groups;
    size_t gather_bytes = update->gather ? update->ngather * sizeof *update->gather : 0;
    size_t gather_at = (groups_bytes + 15) / 16 * 16;
    struct shore__join *join = shore__join_new(f, SHORE__JOIN_UPDATE, gather_at + gather_bytes, done);
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
    if (rc) return shore__join_refuse(done, rc, &why);
    rc = shore__fleet_check_range(f, store->block, store->segment, store->count);
    if (rc) return rc;
    bool initial = shore__fleet_is_new(f);
    struct shore__join *join = shore__join_new(f, initial ? SHORE__JOIN_INITIAL : SHORE__JOIN_STORE, 0, done);
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
    shore__fleet_send_update(join);
    return 0;
}

int shore_fleet_carry(struct shore_fleet *f, uint64_t base_step, uint64_t attempt, uint32_t block, uint32_t segment,
                      uint32_t count, struct shore_completion done) {
    int rc = shore__fleet_check_range(f, block, segment, count);
    if (rc) return rc;
    struct shore__join *join = shore__join_new(f, SHORE__JOIN_CARRY, 0, done);
    if (!join) return -ENOMEM;
    join->update = (struct shore_update){
        .base_step = base_step, .attempt = attempt, .block = block, .segment = segment, .count = count};
    return submit_update(join);
}
