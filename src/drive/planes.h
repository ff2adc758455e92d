/* The planes that a fleet stores, and their bytes per segment. */
#ifndef SHORE_DRIVE_PLANES_H
#define SHORE_DRIVE_PLANES_H

#include "longshore/state.h"

/* plane_bytes: of one segment; 0: not stored. Layout and options alone decide, never the placement. */
void shore__planes_make(const struct shore_layout *layout, const struct shore_fleet_options *options,
                        uint32_t plane_bytes[SHORE_PLANE_COUNT]);

/* Bit mask of the planes that are not zero where nothing was ever updated. */
unsigned shore__planes_resting(enum shore_moments moments);

/* A state image: the stored planes of one segment in a row, in plane order. */
size_t shore__state_segment_bytes(const uint32_t plane_bytes[SHORE_PLANE_COUNT]);

/* Bytes that a fetch delivers for a segment. */
size_t shore__fetch_segment_bytes(const uint32_t plane_bytes[SHORE_PLANE_COUNT], enum shore_fetch_kind kind);

/* Whether the kind reads spilled gradients. */
static inline bool shore__fetch_is_spilled(enum shore_fetch_kind kind) {
    return kind == SHORE_FETCH_SPILLED || kind == SHORE_FETCH_SPILLED_BF16;
}
static inline enum shore_gradient_form shore__fetch_form(enum shore_fetch_kind kind) {
    return kind == SHORE_FETCH_SPILLED_BF16 ? SHORE_GRADIENT_BF16 : SHORE_GRADIENT_FP32;
}

#endif
