#include <assert.h>

#include "longshore/lane.h"

static const struct words {
    const char *name, *work, *bound;
} lanes[SHORE_LANES + 1] = {
#define WORDS(lane, name, work, bound) [lane] = {name, work, bound},
    SHORE_LANE_LIST(WORDS)
#undef WORDS
        [SHORE_LANES] = {"max_writes_per_day", "waiting", "the limit of writes a day"},
};

static const struct words *of(enum shore_lane lane) {
    assert((unsigned)lane <= SHORE_LANES);
    return &lanes[lane];
}

const char *shore_lane_name(enum shore_lane lane) {
    return of(lane)->name;
}

const char *shore_lane_work(enum shore_lane lane) {
    return of(lane)->work;
}

const char *shore_lane_bound(enum shore_lane lane) {
    return of(lane)->bound;
}
