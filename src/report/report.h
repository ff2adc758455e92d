/* Reports of steps: the metrics line of RUN/metrics.jsonl, and the progress line on the terminal. Formats into the
 * caller's memory; prints nothing. */
#ifndef SHORE_REPORT_REPORT_H
#define SHORE_REPORT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/units.h"
#include "longshore/lane.h"

/* Bytes that crossed the host link, by class. */
struct shore__link_bytes {
    uint64_t gradients, compressed, parameters, activations, state, control;
};

/* Busy times of an emulated machine's lanes, in seconds; for drives, the busiest of each kind, and for the link the
 * busier direction, under LINK_IN. */
struct shore__busy {
    double seconds[SHORE_LANES];
};
/* The lanes that it has. */
#define SHORE__BUSY_LANES 7
extern const enum shore_lane shore__busy_lanes[SHORE__BUSY_LANES];

/* Time and bytes of one step, reported after its commit. */
struct shore__step_report {
    uint64_t step;                        /* from 1 */
    double loss, grad_norm, lr, val_loss; /* val_loss NaN: not measured */
    double dropped_energy; /* share of the gradients' energy that compression left out; NaN: no compression */
    uint64_t tokens;
    double step_seconds, compute_seconds, wait_seconds, commit_seconds;
    uint32_t replays;
    bool speculated, skipped;
    struct shore__link_bytes link;
    bool emulated; /* the times are another machine's: see --emulate */
    struct shore__busy busy;
    uint64_t drive_read_bytes, drive_write_bytes, resident_bytes;
    const char *slow_drive; /* a drive that holds up the others; NULL: none. Valid as long as its fleet */
    double slow_factor;     /* how much longer it works than the others */
};

#define SHORE__METRICS_LINE_BYTES 2000u

/* Formats one JSON object without a line break, which is appended to metrics.jsonl and kept in the step's record.
 * Numbers have 9 significant digits; those that are not finite are null. Returns the length, or -ENOSPC. */
int shore__metrics_line(const struct shore__step_report *report, char *out, size_t bytes);

/* Finds the drive that holds up the others. Placed by speed, all drives work equally long; this one takes half as long
 * again. Smoothed over steps. A drive is named only if the step waits for drives at all. */
struct shore__slowness {
    uint32_t ndrives;
    uint64_t *last_ns; /* by drive; private */
    double *smooth;    /* seconds per step */
    uint32_t steps;
};
int shore__slowness_init(struct shore__slowness *s, uint32_t ndrives);
void shore__slowness_fini(struct shore__slowness *s);
/* busy_ns: of each drive since its fleet was opened. Returns the drive, or -1. */
int shore__slowness_step(struct shore__slowness *s, const uint64_t *busy_ns, double step_seconds, double *factor);

/* State of the progress line beside the step itself. */
struct shore__progress {
    uint64_t last_step;    /* of this start */
    uint64_t budget_bytes; /* 0: none */
    uint64_t steps;        /* steps seen; this and the fields below are private */
    double smooth_seconds; /* a step's time, smoothed */
    double mean_norm;      /* smoothed norm of the gradients; 0: none yet */
    uint64_t logged_ns;
};
void shore__progress_init(struct shore__progress *p, uint64_t last_step, uint64_t budget_bytes);
/* Takes in the gradients' norm. Returns its ratio to its running mean if that is 50 or more, otherwise 0. */
double shore__progress_jump(struct shore__progress *p, double norm);
/* Whether a log gets a line for this step now: the first step seen, the last, and one after each pace. */
bool shore__progress_due(struct shore__progress *p, const struct shore__pace *pace, uint64_t step, uint64_t now_ns);
/* Takes in a step, and writes its progress line, always terminated. Returns out. */
const char *shore__progress_line(struct shore__progress *p, const struct shore__step_report *report, char *out,
                                 size_t bytes);

#endif
