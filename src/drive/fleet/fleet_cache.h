/* A cache over the drives of a fleet: room for what a process that serves keeps while it does, such as keys and values
 * of attention. Made when serving begins and gone when it ends, on every drive that has a share; no commit and no
 * digest sees it. What has one key lies on one drive, whichever its number says.
 *
 * Units: bytes in whole pages. Ownership: buffers are borrowed until the completion. Threading: put and get from any
 * thread; what has completed is what a later get sees. Errors come from the drives: -ENOSPC where the key's drive is
 * full, SHORE_EMISSING for what was never put, or freed; SHORE_ECORRUPT for what came back with other bytes. */
#ifndef SHORE_DRIVE_FLEET_FLEET_CACHE_H
#define SHORE_DRIVE_FLEET_FLEET_CACHE_H

#include "drive/function.h"

struct shore__fleet_cache;

/* What such a cache takes at most of this process's memory: of the arena of the fleet, where it has one, so that the
 * arena's plan has a row of so much beside shore_fleet_memory_bytes(). */
uint64_t shore__fleet_cache_memory_bytes(const struct shore_fleet_options *options, uint64_t bytes,
                                         uint32_t page_bytes);

/* bytes: of all drives together, shared out as the state is; page_bytes: a power of two, 4,096 to 1 MiB. Closed before
 * its fleet. Errors: as of shore__cache_file_make(); then no drive has one. */
int shore__fleet_cache_open(struct shore_fleet *fleet, uint64_t bytes, uint32_t page_bytes,
                            struct shore__fleet_cache **out, struct shore_diag *diag);
/* What it holds at most: whole pages on each drive. */
uint64_t shore__fleet_cache_bytes(const struct shore__fleet_cache *cache);
/* Place in the fleet of the drive that has a key. */
uint32_t shore__fleet_cache_drive(const struct shore__fleet_cache *cache, const struct shore__cache_key *key);
/* Bytes [start, start + bytes) of a key, whole pages. After a put that failed, these are freed or put again. */
int shore__fleet_cache_put(struct shore__fleet_cache *cache, const struct shore__cache_key *key, uint64_t start,
                           uint64_t bytes, const void *src, struct shore_completion done);
int shore__fleet_cache_get(struct shore__fleet_cache *cache, const struct shore__cache_key *key, uint64_t start,
                           uint64_t bytes, void *dst, struct shore_completion done);
/* All that a key has; SHORE__CACHE_ANY as layer and head: all of its sequence, on all drives. Synchronous. */
int shore__fleet_cache_free(struct shore__fleet_cache *cache, const struct shore__cache_key *key,
                            struct shore_diag *diag);
/* Removes it from every drive, whatever fails. Synchronous. */
int shore__fleet_cache_close(struct shore__fleet_cache *cache, struct shore_diag *diag);

#endif
