/* Gates delay work: it ends no sooner than the gate says. The emulation of another machine (run/emulation) uses them to
 * take that machine's time; drives and the host update know nothing else about it. */
#ifndef SHORE_DRIVE_GATE_H
#define SHORE_DRIVE_GATE_H

#include <stdint.h>

enum shore__work {
    SHORE__WORK_IN,  /* bytes that cross the host link to the drives */
    SHORE__WORK_OUT, /* bytes that cross from them */
    SHORE__WORK_READ,
    SHORE__WORK_WRITE,       /* bytes of a drive */
    SHORE__WORK_UPDATE,      /* elements, beside a drive */
    SHORE__WORK_HOST_UPDATE, /* elements, on the host */
};

struct shore__gate {
    /* When so much work that starts now will be over, by shore__now_ns(). Never waits. Threading: any. */
    uint64_t (*over_ns)(struct shore__gate *gate, enum shore__work work, uint32_t drive, uint64_t amount);
};

struct shore_fleet;
/* Sets the gate of everything the fleet does from now on, with nothing under way. gate outlives the fleet; NULL: no
 * gate. */
void shore__fleet_set_gate(struct shore_fleet *fleet, struct shore__gate *gate);

#endif
