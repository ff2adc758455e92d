/* Removes volumes of this host that no run needs any more. */
#ifndef SHORE_DRIVE_LOCAL_VOLUME_REMOVE_H
#define SHORE_DRIVE_LOCAL_VOLUME_REMOVE_H

#include <stdbool.h>
#include <stdint.h>

#include "longshore/error.h"

#define SHORE__ANY_GENERATION UINT64_MAX

/* Removes the volume at path (a file; a device only loses its headers) if it belongs to this fleet and generation.
 * begun: also removes a file without a header, which is an unfinished volume. Errors: SHORE_EMISSING (nothing is
 * there), SHORE_EMISMATCH (something else is there: it stays), SHORE_EBUSY (still locked after a wait). Durable: on
 * return. */
int shore__volume_remove(const char *path, const uint64_t fleet_id[2], uint64_t generation, bool begun,
                         struct shore_diag *diag);

/* Whether a result of removing says that nothing of ours is there any more. */
bool shore__removal_is_over(int rc);

#endif
