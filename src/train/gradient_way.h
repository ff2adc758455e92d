/* When a segment of a tied table's gradient is complete, where the table is held in memory. All other gradients are
 * complete with their piece. */
#ifndef SHORE_TRAIN_GRADIENT_WAY_H
#define SHORE_TRAIN_GRADIENT_WAY_H

#include <stdbool.h>
#include <stdint.h>

/* A moment of backward: the lookups of so many units have been added; or all has. */
#define ALL_LOOKED_UP UINT32_MAX

/* Whether it is complete since this moment. due: units whose lookups it waits for; early: it was complete before. */
static inline bool shore__segment_is_new(uint32_t due, bool early, uint32_t looked_up) {
    return looked_up == ALL_LOOKED_UP ? !early : due == looked_up;
}

#endif
