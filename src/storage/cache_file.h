/* A cache file: room beside a volume for what need not outlive a process, such as keys and values of attention. It is
 * not part of the volume: no commit, no digest and no snapshot sees it, and nothing in it is read by the next process.
 * Its first page says what it is and of which fleet; it is locked as long as somebody uses it, so that one without a
 * lock is stale, and is replaced. */
#ifndef SHORE_STORAGE_CACHE_FILE_H
#define SHORE_STORAGE_CACHE_FILE_H

#include "storage/blockio.h"

#define SHORE__CACHE_FILE_HEAD SHORE__IO_ALIGN /* where its bytes begin */

/* bytes: behind the first page; preallocated. Errors: SHORE_EBUSY (another process has it), SHORE_EEXISTS (something
 * else is called so), -ENOSPC, -ENOTSUP (the volume is a device, which has nothing beside it). */
int shore__cache_file_make(const char *volume, const uint64_t fleet_id[2], uint64_t bytes, enum shore_io io,
                           struct shore__file *out, struct shore_diag *diag);
/* Closes it, and removes it. Harmless on a file that was never made. */
void shore__cache_file_remove(struct shore__file *file);
/* Removes one that a killed process has left beside a volume, if there is one. */
void shore__cache_file_sweep(const char *volume);

#endif
