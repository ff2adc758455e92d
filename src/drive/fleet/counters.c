#include "drive/counters.h"

#include <string.h>

#include "base/units.h"
#include "drive/fleet/fleet.h"
#include "drive/remote/remote.h"

void shore__fleet_count(struct shore_fleet *f, uint32_t drive, size_t counter, uint64_t bytes) {
    if (!(f->drives[drive]->ops->caps & SHORE__DRIVE_COUNTS_LINK)) f->counters[counter] += bytes;
}

bool shore__fleet_worked(const struct shore_fleet *f, uint64_t (*ns)[SHORE_LANES]) {
    const bool paced = f->gate && f->gate->worked;
    if (!paced && !f->has_remote) return false;
    memset(ns, 0, f->ndrives * sizeof *ns);
    if (paced) f->gate->worked(f->gate, f->ndrives, ns);
    for (uint32_t d = 0; d < f->ndrives; d++)
        if (shore__is_remote(f->drives[d]))
            ns[d][SHORE_LANE_LINK_IN] = shore__remote_link_ns(f->drives[d]); /* both directions */
    return true;
}

void shore__fleet_set_wait_watch(struct shore_fleet *f, struct shore__wait_watch *watch) {
    struct shore__wait_watch *before = f->wait_watch;
    f->wait_watch = watch;
    if (before) before->over(before);
}

uint64_t shore__fleet_waits(struct shore_fleet *f) {
    struct shore__wait_watch *watch = f ? f->wait_watch : NULL;
    uint64_t now = shore__now_ns();
    if (watch) watch->begins(watch, now);
    return now;
}

void shore__fleet_waited(struct shore_fleet *f, enum shore_lane lane, uint64_t since_ns) {
    if (!f) return;
    struct shore__wait_watch *watch = f->wait_watch;
    uint64_t now = shore__now_ns();
    f->counters[SHORE__COUNTER(waited_ns) + lane] += now - since_ns;
    if (!watch) return;
    uint64_t sent = lane == SHORE_LANE_COMMIT ? f->commit_start_ns : 0;
    if (sent > since_ns) watch->ended(watch, SHORE_LANE_DRIVE_UPDATE, since_ns, sent < now ? sent : now);
    watch->ended(watch, lane, since_ns, now);
}

int shore__fleet_wait(struct shore_fleet *f, enum shore_lane lane, struct shore_wait *wait, struct shore_diag *diag) {
    if (shore_wait_is_done(wait)) return shore_wait(wait, diag);
    uint64_t since = shore__fleet_waits(f);
    int rc = shore_wait(wait, diag);
    shore__fleet_waited(f, lane, since);
    return rc;
}

uint64_t shore__fleet_waits_ns(const struct shore_fleet *f) {
    uint64_t ns = 0;
    for (int lane = 0; lane < SHORE_LANES; lane++)
        ns += f->counters[SHORE__COUNTER(waited_ns) + lane];
    return ns;
}
