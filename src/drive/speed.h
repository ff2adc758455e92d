/* How fast drives are, for placement: measured once, when their volumes are made. */
#ifndef SHORE_DRIVE_SPEED_H
#define SHORE_DRIVE_SPEED_H

#include "longshore/state.h"

/* paths: of the volumes that will be made, NULL for a virtual drive. speeds: bytes a second, read and written together,
 * in the pattern of UPDATE; all 1 where nothing is to be measured: fewer than two drives, all on one device, or one
 * that only overwriting what is on it could measure (a block device). Takes a temporary file beside each volume, and a
 * fraction of a second for each drive. Never fails: what cannot be measured is noted, and all are taken to be equal. */
void shore__drives_measure(char *const *paths, uint32_t ndrives, const struct shore_fleet_options *options,
                           uint64_t *speeds);

/* One drive's speed, measured alone: bytes a second. path: of a volume; a temporary file beside it. */
int shore__drive_measure(const char *path, enum shore_io io, uint64_t *speed, struct shore_diag *diag);

/* The device that a volume at path would lie on; 0: it is a device itself, or that cannot be found out. */
uint64_t shore__drive_device(const char *path);

/* Whether volumes at all these paths would lie on one device, and so share its speed. */
bool shore__drives_share_device(char *const *paths, uint32_t ndrives);

/* The value of --drive-speeds, one speed for each drive; speeds may be NULL: only the check. SHORE_EUSAGE. */
int shore__speeds_parse(const char *text, uint32_t ndrives, uint64_t *speeds, struct shore_diag *diag);

#endif
