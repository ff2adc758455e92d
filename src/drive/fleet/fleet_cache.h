/* A cache over the drives of a fleet, for data of a serving process that need not outlive it, such as keys and values
 * of attention. It exists from the start to the end of serving, on every drive that has a share. No commit or digest
 * includes it. Everything with one key lies on one drive, which the key's number decides.
 *
 * Units: bytes in whole pages. Ownership: buffers are borrowed until the completion. Threading: put and get from any
 * thread; a get sees every put that has completed. Errors come from the drives: -ENOSPC: the key's drive is full;
 * SHORE_EMISSING: never put, or freed; SHORE_ECORRUPT: other bytes came back. */
#ifndef SHORE_DRIVE_FLEET_FLEET_CACHE_H
#define SHORE_DRIVE_FLEET_FLEET_CACHE_H

#include "drive/function.h"

struct shore__fleet_cache;

/* The most memory that such a cache takes in this process. It comes from the fleet's arena, if there is one, so the
 * arena's plan needs a row for it beside shore_fleet_memory_bytes(). */
uint64_t shore__fleet_cache_memory_bytes(const struct shore_fleet_options *options, uint64_t bytes,
                                         uint32_t page_bytes);

/* bytes: on all drives together, shared out like the state; page_bytes: a power of two, 4,096 to 1 MiB. Close it before
 * its fleet. Errors: those of shore__cache_file_make(); then no drive has a cache. */
int shore__fleet_cache_open(struct shore_fleet *fleet, uint64_t bytes, uint32_t page_bytes,
                            struct shore__fleet_cache **out, struct shore_diag *diag);
/* Its capacity: whole pages on each drive. */
uint64_t shore__fleet_cache_bytes(const struct shore__fleet_cache *cache);
/* Place in the fleet of a key's drive. */
uint32_t shore__fleet_cache_drive(const struct shore__fleet_cache *cache, const struct shore__cache_key *key);
/* Bytes [start, start + bytes) of a key, in whole pages. After a failed put, free or put them again. */
int shore__fleet_cache_put(struct shore__fleet_cache *cache, const struct shore__cache_key *key, uint64_t start,
                           uint64_t bytes, const void *src, struct shore_completion done);
int shore__fleet_cache_get(struct shore__fleet_cache *cache, const struct shore__cache_key *key, uint64_t start,
                           uint64_t bytes, void *dst, struct shore_completion done);
/* Frees all pages of a key; with SHORE__CACHE_ANY as layer and head, those of its whole sequence on all drives.
 * Synchronous. */
int shore__fleet_cache_free(struct shore__fleet_cache *cache, const struct shore__cache_key *key,
                            struct shore_diag *diag);
/* Removes it from every drive, even if one fails. Synchronous. */
int shore__fleet_cache_close(struct shore__fleet_cache *cache, struct shore_diag *diag);

#endif
