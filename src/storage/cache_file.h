/* A cache file: room beside a volume for data that need not outlive the process, such as keys and values of attention.
 * It is not part of the volume: no commit, digest or snapshot includes it, and the next process reads nothing of it.
 * Its first page says what it is and which fleet owns it. It is locked while in use; one without a lock is stale, and
 * is replaced. */
#ifndef SHORE_STORAGE_CACHE_FILE_H
#define SHORE_STORAGE_CACHE_FILE_H

#include "storage/blockio.h"

#define SHORE__CACHE_FILE_HEAD SHORE__IO_ALIGN /* where its bytes begin */

/* bytes: behind the first page; preallocated. Errors: SHORE_EBUSY (another process uses it), SHORE_EEXISTS (another
 * thing has its name), -ENOSPC, -ENOTSUP (the volume is a device, which has nothing beside it). */
int shore__cache_file_make(const char *volume, const uint64_t fleet_id[2], uint64_t bytes, enum shore_io io,
                           struct shore__file *out, struct shore_diag *diag);
/* Closes and removes it. Harmless on a file that was never made. */
void shore__cache_file_remove(struct shore__file *file);
/* Removes the one that a killed process left beside a volume, if there is one. */
void shore__cache_file_sweep(const char *volume);

#endif
