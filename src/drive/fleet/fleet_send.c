/* Sends updates, stores and carries to their drives. */
#include <assert.h>

#include "drive/chunk.h"
#include "drive/fleet/join.h"

/* Bytes of an update request without its groups, as a drive of this host counts them. */
#define UPDATE_BYTES 104u

static void count_update(struct shore_fleet *f, uint32_t d, const struct shore_update *u) {
    bool sparse = u->form == SHORE_GRADIENT_SPARSE;
    shore__fleet_count(f, d, sparse ? SHORE__COUNTER(link_in_compressed) : SHORE__COUNTER(link_in_gradients),
                       shore__update_gradient_bytes(&f->config, u));
    shore__fleet_count(f, d, SHORE__COUNTER(link_in_state), shore__update_residual_bytes(&f->config, u));
    shore__fleet_count(f, d, SHORE__COUNTER(link_out_params), shore__update_bytes_out(&f->config, u));
    shore__fleet_count(f, d, SHORE__COUNTER(link_control), UPDATE_BYTES + u->ngroups * sizeof *u->groups);
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
            shore__fleet_count(f, d, SHORE__COUNTER(link_in_state), part.count * shore_fleet_state_bytes(f));
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
    uint32_t sent = 0;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        struct shore__range range;
        if (!shore__fleet_intersect(f, whole->block, d, whole->segment, whole->count, &range)) continue;
        send_to(join, d, range);
        sent += range.count;
    }
    assert(sent == whole->count);
    shore__join_share_done(join, 0, NULL);
}
