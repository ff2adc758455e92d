/* Structs of the public API that begin with their size, so that a program may be built with an older or a newer header
 * than the library: members that one side does not know are zero. */
#ifndef SHORE_BASE_SIZED_H
#define SHORE_BASE_SIZED_H

#include <stddef.h>

#include "longshore/error.h"

/* Copies what a caller has filled into ours, of which the rest is zeroed, and whose size becomes ours_bytes. name: of
 * the struct. Errors: -EINVAL (no size, or members that are not 0 and that only a newer library knows). */
int shore__sized_in(void *ours, size_t ours_bytes, const void *given, const char *name, struct shore_diag *diag);

/* Fills a caller's struct, as far as it reaches; its size stays, and what ours has not is zeroed. Errors: -EINVAL (no
 * size: nothing is written). */
int shore__sized_out(void *given, const void *ours, size_t ours_bytes);

#endif
