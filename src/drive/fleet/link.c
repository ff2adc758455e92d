#include "drive/link.h"

#include "base/units.h"
#include "drive/fleet/fleet.h"

void shore__link_count(struct shore_fleet *f, uint32_t drive, size_t counter, uint64_t bytes) {
    if (!(f->drives[drive]->ops->caps & SHORE__DRIVE_COUNTS_LINK)) f->counters[counter] += bytes;
}

void shore__fleet_waited(struct shore_fleet *f, enum shore_lane lane, uint64_t since_ns) {
    if (f) f->counters[SHORE__COUNTER(waited_ns) + lane] += shore__now_ns() - since_ns;
}

int shore__fleet_wait(struct shore_fleet *f, enum shore_lane lane, struct shore_wait *wait, struct shore_diag *diag) {
    if (shore_wait_is_done(wait)) return shore_wait(wait, diag);
    uint64_t since = shore__now_ns();
    int rc = shore_wait(wait, diag);
    shore__fleet_waited(f, lane, since);
    return rc;
}
