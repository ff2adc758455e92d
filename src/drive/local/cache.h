/* The cache of a drive in this process: a cache file beside its volume, or memory if there is no volume. It has a lane
 * of its own, so that it holds up nothing else, and serves the calls whose functions are over keys. */
#ifndef SHORE_DRIVE_LOCAL_CACHE_H
#define SHORE_DRIVE_LOCAL_CACHE_H

#include "drive/drive.h"
#include "drive/function.h"

struct shore__cache;

/* Takes no resources until CACHE_OPEN. Its arguments are borrowed; volume NULL: in memory. */
int shore__cache_new(const char *volume, const uint64_t fleet_id[2], const struct shore__drive_config *config,
                     struct shore__cache **out);
/* Runs calls one by one, in order. Calls that move bytes have several pages under way. */
int shore__cache_call(struct shore__cache *c, const struct shore__call *call, struct shore_completion done);
/* Drains and removes the cache. NULL is allowed. */
void shore__cache_free(struct shore__cache *c);
/* As for a drive (drive.h). NULL is allowed. */
void shore__cache_forked(struct shore__cache *c);

#endif
