/* A drive that another process has: it stands in this process's fleet with its extents, so that all above sees the
 * whole layout, and does nothing. Fetches go to the program. */
#ifndef SHORE_DRIVE_FLEET_PEER_H
#define SHORE_DRIVE_FLEET_PEER_H

#include "drive/drive.h"

struct shore__wire_open;

/* Drive number `drive` of the fleet. told: what its process says of it, taken over on success; NULL: not known yet.
 * path: as it was given. */
int shore__peer_make(const struct shore_fleet_options *options, uint32_t drive, const char *path,
                     struct shore__wire_open *told, struct shore__drive **out, struct shore_diag *diag);
/* Whether it is one that nothing is known of. */
bool shore__peer_is_unknown(const struct shore__drive *d);

/* A drive of this process as shore__peer_make() takes it. Ownership: *told only borrows. */
int shore__peer_tell(const struct shore__drive *d, struct shore__wire_open *told, struct shore_diag *diag);

#endif
