#include <assert.h>

#include "longshore/lane.h"

const char *shore_lane_name(enum shore_lane lane) {
#define NAME(lane, name) name,
    static const char *const names[SHORE_LANES] = {SHORE_LANE_LIST(NAME)};
#undef NAME
    assert((unsigned)lane < SHORE_LANES);
    return names[lane];
}
