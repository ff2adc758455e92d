/* Fleets whose drives take the time of other ones. */
#ifndef SHORE_DRIVE_FLEET_EMULATED_H
#define SHORE_DRIVE_FLEET_EMULATED_H

#include "longshore/state.h"

struct shore__throttle;

/* As shore_fleet_create() and shore_fleet_open(). throttle outlives the fleet; NULL: as fast as they are. */
int shore__fleet_create_emulated(const struct shore_layout *layout, const struct shore_fleet_options *options,
                                 struct shore__throttle *throttle, struct shore_fleet **out, struct shore_diag *diag);
int shore__fleet_open_emulated(const struct shore_layout *layout, const struct shore_fleet_options *options,
                               struct shore__throttle *throttle, struct shore_fleet **out, struct shore_diag *diag);

#endif
