/* Named copies of a fleet's committed state, beside its volumes. */
#ifndef SHORE_DRIVE_FLEET_FLEET_SNAPSHOT_H
#define SHORE_DRIVE_FLEET_FLEET_SNAPSHOT_H

#include "drive/drive.h"
#include "drive/snapshot_name.h"

/* Acts on all drives at once, between commits, with no update under way. A copy is made on all drives or on none.
 * Durable: on return. */
int shore__fleet_snapshot(struct shore_fleet *fleet, const char *name, struct shore_diag *diag);
/* Removes the copies, where there are any. */
void shore__fleet_snapshot_remove(struct shore_fleet *fleet, const char *name);

#endif
