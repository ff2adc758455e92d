/* Layouts inside the fleet. */
#ifndef SHORE_DRIVE_LAYOUT_H
#define SHORE_DRIVE_LAYOUT_H

#include <errno.h>

#include "longshore/state.h"

/* Far above any model, far below overflow of a byte count. */
#define SHORE__BLOCK_ELEMS_MAX (UINT64_C(1) << 46)

/* Ownership: the copy is the caller's; shore_layout_free(). */
int shore__layout_copy(const struct shore_layout *layout, struct shore_layout **out);

#endif
