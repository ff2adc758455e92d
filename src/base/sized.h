/* Structs of the public API that start with their size, so that a program and the library may come from different
 * versions: members that one side does not know are zero. */
#ifndef SHORE_BASE_SIZED_H
#define SHORE_BASE_SIZED_H

#include <stddef.h>

#include "longshore/error.h"

/* Copies a caller's struct into ours, zeroes the rest, and sets its size to ours_bytes. name: the struct's. Errors:
 * -EINVAL (no size, or nonzero members that only a newer library knows). */
int shore__sized_in(void *ours, size_t ours_bytes, const void *given, const char *name, struct shore_diag *diag);

/* Fills a caller's struct up to its size, which stays. Zeroes members that ours does not have. Errors: -EINVAL (no
 * size: nothing is written). */
int shore__sized_out(void *given, const void *ours, size_t ours_bytes);

#endif
