/* A gate may hold work back: it ends no sooner than the gate says. So the time of another machine is taken
 * (run/emulation); drives, and who updates for them, know no more of it than this.
 */
#ifndef SHORE_DRIVE_GATE_H
#define SHORE_DRIVE_GATE_H

#include <stdint.h>

enum shore__work {
    SHORE__WORK_IN,  /* bytes that cross the host link to the drives */
    SHORE__WORK_OUT, /* from them */
    SHORE__WORK_READ,
    SHORE__WORK_WRITE,       /* bytes of a drive */
    SHORE__WORK_UPDATE,      /* elements, beside a drive */
    SHORE__WORK_HOST_UPDATE, /* elements, on the host */
};

struct shore__gate {
    /* When so much work that begins now will be over, by shore__now_ns(). Never waits. Threading: any. */
    uint64_t (*over_ns)(struct shore__gate *gate, enum shore__work work, uint32_t drive, uint64_t amount);
};

struct shore_fleet;
/* For all that the fleet does from now on, with nothing under way. gate outlives it; NULL: nothing is held back. */
void shore__fleet_set_gate(struct shore_fleet *fleet, struct shore__gate *gate);

#endif
