/* Copies of a fleet's committed state under a name, beside its volumes. */
#ifndef SHORE_DRIVE_SNAPSHOT_H
#define SHORE_DRIVE_SNAPSHOT_H

#include "drive/drive.h"

#define SHORE__SNAPSHOT_NAME_BYTES 64u

/* Letters, digits, '.', '_' and '-', not first '.' or '-', at most 64, not ending in ".partial". */
bool shore__snapshot_name_valid(const char *name);
/* Where the snapshot of the volume at path lies: path + ".snapshot-" + name. malloc'ed. */
char *shore__snapshot_path(const char *path, const char *name);

/* On all drives at once; between commits, with no update under way. Made on all or on none. Durable: on return. */
int shore__fleet_snapshot(struct shore_fleet *fleet, const char *name, struct shore_diag *diag);

#endif
