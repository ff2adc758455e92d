/* Lanes as buckets: each serves what is asked of it in order, at its rate. The emulation of another machine takes its
 * time from them by the clock (run/emulation/tempo.h), and the simulation of a step by its events (simulate.h). */
#ifndef SHORE_PLAN_LANES_H
#define SHORE_PLAN_LANES_H

#include "longshore/lane.h"

/* Times in seconds. */
struct shore__bucket {
    double each; /* seconds for a unit of work; 0: no limit */
    double free; /* when everything asked for so far will be served */
    double busy; /* total time of serving */
};

static inline double shore__rate_each(double per_second) {
    return per_second > 0 ? 1 / per_second : 0;
}

/* Returns when work that is asked for now will be served. Time in which nothing was asked for is lost. */
static inline double shore__bucket_serve(struct shore__bucket *b, double now, double work) {
    double seconds = work * b->each;
    if (seconds <= 0) return now;
    b->free = (b->free > now ? b->free : now) + seconds;
    b->busy += seconds;
    return b->free;
}

/* The same of a lane of a drive, or of the host: reads and writes of a drive also take what both have together. */
static inline double shore__lane_serve(struct shore__bucket lane[SHORE_LANES], enum shore_lane which, double now,
                                       double work) {
    double over = shore__bucket_serve(&lane[which], now, work), mixed = now;
    if (which == SHORE_LANE_DRIVE_READ || which == SHORE_LANE_DRIVE_WRITE)
        mixed = shore__bucket_serve(&lane[SHORE_LANE_DRIVE_MIXED], now, work);
    return over > mixed ? over : mixed;
}

#endif
