/* Names of snapshots and of their files. */
#ifndef SHORE_DRIVE_SNAPSHOT_NAME_H
#define SHORE_DRIVE_SNAPSHOT_NAME_H

#include <stdbool.h>

#define SHORE__SNAPSHOT_NAME_BYTES 64u

/* Letters, digits, '.', '_' and '-', not first '.' or '-', at most 64, not ending in ".partial". */
bool shore__snapshot_name_valid(const char *name);
/* Path of the snapshot of the volume at path: path + ".snapshot-" + name. malloc'ed. */
char *shore__snapshot_path(const char *path, const char *name);

#endif
