/* The cache of a drive of this process: a cache file beside its volume, or memory where there is no volume; a lane of
 * its own, so that it holds up nothing else. Serves the calls whose functions are over keys. */
#ifndef SHORE_DRIVE_LOCAL_CACHE_H
#define SHORE_DRIVE_LOCAL_CACHE_H

#include "drive/drive.h"
#include "drive/function.h"

struct shore__cache;

/* Costs nothing until CACHE_OPEN. What is given is borrowed; volume NULL: in memory. */
int shore__cache_new(const char *volume, const uint64_t fleet_id[2], const struct shore__drive_config *config,
                     struct shore__cache **out);
/* Calls run one after the other, in the order in which they came; those of them that move bytes have several pages
 * under way. */
int shore__cache_call(struct shore__cache *c, const struct shore__call *call, struct shore_completion done);
/* Drains and removes the cache. NULL: nothing. */
void shore__cache_free(struct shore__cache *c);
/* As of a drive (drive.h). NULL: nothing. */
void shore__cache_forked(struct shore__cache *c);

#endif
