#include "drive/planes.h"

#include "drive/moment_tiles.h"

#define ELEM_BYTES(bytes) ((bytes)*SHORE_SEGMENT_ELEMS)

void shore__planes_make(const struct shore_layout *layout, const struct shore_fleet_options *o,
                        uint32_t plane_bytes[SHORE_PLANE_COUNT]) {
    unsigned stored = shore_optimizer_planes(o->optimizer, o->with_momentum);
    plane_bytes[SHORE_PLANE_HI] = ELEM_BYTES(2);
    plane_bytes[SHORE_PLANE_LO] = ELEM_BYTES(2);
    uint32_t moment = shore__moments_segment_bytes(layout, o->moments);
    plane_bytes[SHORE_PLANE_M] = stored & 1u << SHORE_PLANE_M ? moment : 0;
    plane_bytes[SHORE_PLANE_V] = stored & 1u << SHORE_PLANE_V ? moment : 0;
    plane_bytes[SHORE_PLANE_R] = o->residual ? ELEM_BYTES(2) : 0;
}

unsigned shore__planes_resting(enum shore_moments moments) {
    /* only V's code of 0 is 0 */
    return 1u << SHORE_PLANE_HI | 1u << SHORE_PLANE_LO | (moments == SHORE_MOMENTS_FP32 ? 0 : 1u << SHORE_PLANE_M);
}

size_t shore__state_segment_bytes(const uint32_t plane_bytes[SHORE_PLANE_COUNT]) {
    size_t bytes = 0;
    for (int p = 0; p < SHORE_PLANE_COUNT; p++)
        bytes += plane_bytes[p];
    return bytes;
}

size_t shore__fetch_segment_bytes(const uint32_t plane_bytes[SHORE_PLANE_COUNT], enum shore_fetch_kind kind) {
    switch (kind) {
    case SHORE_FETCH_BF16:
    case SHORE_FETCH_R:
    case SHORE_FETCH_SPILLED_BF16:
        return ELEM_BYTES(2);
    case SHORE_FETCH_STATE:
        return shore__state_segment_bytes(plane_bytes);
    default:
        return ELEM_BYTES(4);
    }
}
