/* Gates delay work: it ends no sooner than the gate says. The emulation of another machine (run/emulation) uses them to
 * take that machine's time; drives and the host update know nothing else about it. */
#ifndef SHORE_DRIVE_GATE_H
#define SHORE_DRIVE_GATE_H

#include <stdint.h>

#include "longshore/lane.h"

struct shore__gate {
    /* When so much work that starts now will be over, by shore__now_ns(). Never waits. Threading: any. */
    uint64_t (*over_ns)(struct shore__gate *gate, enum shore_lane lane, uint32_t drive, uint64_t amount);
    /* For how long each lane has worked until now, by drive; lanes of all drives together count with each.
     * NULL: not known. */
    void (*worked)(struct shore__gate *gate, uint32_t ndrives, uint64_t (*ns)[SHORE_LANES]);
};

struct shore_fleet;
/* Sets the gate of everything the fleet does from now on, with nothing under way. gate outlives the fleet; NULL: no
 * gate. */
void shore__fleet_set_gate(struct shore_fleet *fleet, struct shore__gate *gate);

#endif
