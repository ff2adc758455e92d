/* Reports of steps: the progress line on the terminal, and the drive that holds up the others. The metrics line of
 * RUN/metrics.jsonl is longshore/metrics.h's. Formats into the caller's memory; prints nothing. */
#ifndef SHORE_REPORT_REPORT_H
#define SHORE_REPORT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/units.h"
#include "longshore/metrics.h"

/* The lanes that an emulated machine can limit, and metrics have busy times of. */
#define SHORE__BUSY_LANES 7
extern const enum shore_lane shore__busy_lanes[SHORE__BUSY_LANES];

/* "of a step of 1.4 s: drive 61 %, backward 25 %, forward 14 %": the mean of so many steps' charges, the longest first,
 * as far as they come to a percent. Returns out, empty if nothing was charged. */
const char *shore__charges_text(const double seconds[SHORE_CHARGES], uint64_t steps, char *out, size_t bytes);

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
/* Takes in the gradients' norm. Returns its ratio to its running mean if that is 50 or more, otherwise 0. */
double shore__progress_jump(struct shore__progress *p, double norm);
/* Whether a log gets a line for this step now: the first step seen, the last, and one after each pace. */
bool shore__progress_due(struct shore__progress *p, const struct shore__pace *pace, uint64_t step, uint64_t now_ns);
/* Takes in a step, and writes its progress line, always terminated. Returns out. */
const char *shore__progress_line(struct shore__progress *p, const struct shore_step_report *report, char *out,
                                 size_t bytes);

#endif
