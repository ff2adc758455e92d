/* What a fleet is asked to do with its state: fetch, update, store, carry. */
#include <errno.h>
#include <string.h>

#include "base/diag.h"
#include "base/sized.h"
#include "drive/chunk.h"
#include "drive/fleet/join.h"
#include "drive/layout.h"
#include "near/update.h"
#include "number/gather.h"

int shore_fleet_fetch(struct shore_fleet *f, uint64_t step, uint32_t block, uint32_t segment, uint32_t count,
                      enum shore_fetch_kind kind, void *dst, struct shore_completion done) {
    bool known = (unsigned)kind <= SHORE_FETCH_SPILLED_BF16;
    int rc = known && shore__fleet_is_ready(f) ? shore__fleet_check_range(f, block, segment, count) : -EINVAL;
    if (rc) return rc;
    struct shore__join *join = shore__join_new(f, SHORE__JOIN_FETCH, 0, done);
    if (!join) return -ENOMEM;
    join->update.base_step = step;
    size_t segment_bytes = shore__fetch_segment_bytes(f->config.plane_bytes, kind);
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
        rc = f->drives[d]->ops->fetch(f->drives[d], &fetch, shore__share_completion(join, d));
        if (rc) shore__share_refused(join, d, rc);
        shore__link_count(f, d, shore__link_of_fetch(kind),
                          kind == SHORE_FETCH_STATE
                              ? part.count * segment_bytes
                              : shore__layout_bytes(f->layout, block, part.first, part.count, segment_bytes));
        shore__link_count(f, d, SHORE__LINK_CONTROL, sizeof fetch);
    }
    shore__join_share_done(join, 0, NULL);
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
    if (join->kind != SHORE__JOIN_UPDATE) {
        struct shore_store part = {
            .base_step = join->update.base_step,
            .attempt = join->update.attempt,
            .block = join->update.block,
            .segment = range.first,
            .count = range.count,
            .order = join->update.order,
        };
        if (join->kind == SHORE__JOIN_CARRY) {
            rc = drive->ops->carry(drive, &part, shore__share_completion(join, d));
        } else {
            part.state = join->state + (range.first - join->update.segment) * shore_fleet_state_bytes(f);
            shore__link_count(f, d, SHORE__LINK_IN_STATE, part.count * shore_fleet_state_bytes(f));
            rc = drive->ops->store(drive, &part, shore__share_completion(join, d));
        }
    } else {
        struct shore_update part = shore__update_part(&f->config, &join->update, range.first, range.count);
        count_update(f, d, &part);
        rc = drive->ops->update(drive, &part, shore__share_completion(join, d));
    }
    if (rc) shore__share_refused(join, d, rc);
}

/* Initial state is a store that belongs to no step. */
void shore__fleet_send_update(struct shore__join *join) {
    struct shore_fleet *f = join->fleet;
    const struct shore_update *whole = &join->update;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        struct shore__range range;
        if (shore__fleet_intersect(f, whole->block, d, whole->segment, whole->count, &range)) send_to(join, d, range);
    }
    shore__join_share_done(join, 0, NULL);
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
        shore__join_free(join);
        return rc;
    }
    if (broken)
        shore__join_share_done(join, f->broken_rc, &f->broken_diag); /* a completion has words, which a code has not */
    else if (!hold)
        shore__fleet_send_update(join);
    return 0;
}

const char *shore__update_left_out(const struct shore_fleet *f, const struct shore_update *update) {
    const struct shore_layout_block *block = &f->layout->blocks[update->block];
    bool adam = shore__optimizer(f->config.optimizer)->corrects_bias;
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
    bool initial = !shore__fleet_is_ready(f);
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
