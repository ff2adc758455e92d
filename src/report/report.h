/* What a step reports: the metrics line of RUN/metrics.jsonl, and the progress line that people watch. Formats into
 * the caller's memory; prints nothing.
 */
#ifndef SHORE_REPORT_REPORT_H
#define SHORE_REPORT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/units.h"

/* What crossed the host link, by class. */
struct shore__link_bytes {
    uint64_t gradients, compressed, parameters, activations, state, control;
};

/* Where an emulated machine's time goes: seconds for which its parts were busy; of drives, the busiest of each kind. */
enum shore__busy_of {
    SHORE__BUSY_GPU,
    SHORE__BUSY_LINK,
    SHORE__BUSY_READ,
    SHORE__BUSY_WRITE,
    SHORE__BUSY_MIXED, /* both */
    SHORE__BUSY_COMPUTE,
    SHORE__BUSY_HOST_UPDATE,
    SHORE__BUSY_COUNT
};
extern const char *const shore__busy_names[SHORE__BUSY_COUNT];
struct shore__busy {
    double seconds[SHORE__BUSY_COUNT];
};

/* Where one step's time and bytes went; reported after its commit. */
struct shore__step_report {
    uint64_t step;                        /* from 1 */
    double loss, grad_norm, lr, val_loss; /* val_loss NaN: not measured */
    double dropped_energy;                /* share of the gradients' that compression has left out; NaN: none */
    uint64_t tokens;
    double step_seconds, compute_seconds, wait_seconds, commit_seconds;
    uint32_t replays;
    bool speculated, skipped;
    struct shore__link_bytes link;
    bool emulated; /* its time is that of another machine: see --emulate */
    struct shore__busy busy;
    uint64_t drive_read_bytes, drive_write_bytes, resident_bytes;
    const char *slow_drive; /* one that holds the others up; NULL: none. Valid as long as its fleet */
    double slow_factor;     /* how much longer than they it works */
};

#define SHORE__METRICS_LINE_BYTES 2000u

/* One JSON object, without a line break: it is appended to metrics.jsonl and kept in the record of the step. Numbers
 * have 9 significant digits; what is not finite is null. Returns its length, or -ENOSPC. */
int shore__metrics_line(const struct shore__step_report *report, char *out, size_t bytes);

/* Which of several drives holds the others up: placed by speed, all work equally long, and this one takes half as long
 * again. Smoothed over steps; a drive is named only if the step waits for drives at all. */
struct shore__slowness {
    uint32_t ndrives;
    uint64_t *last_ns; /* by drive; private */
    double *smooth;    /* seconds a step */
    uint32_t steps;
};
int shore__slowness_init(struct shore__slowness *s, uint32_t ndrives);
void shore__slowness_fini(struct shore__slowness *s);
/* busy_ns: of each drive, since its fleet was opened. Returns the drive, or -1. */
int shore__slowness_step(struct shore__slowness *s, const uint64_t *busy_ns, double step_seconds, double *factor);

/* State of the progress line: what it needs to know beside the step itself. */
struct shore__progress {
    uint64_t last_step;    /* that this start goes to */
    uint64_t budget_bytes; /* 0: none */
    uint64_t steps;        /* that were seen; this and what follows is private */
    double smooth_seconds; /* a step's time, smoothed */
    double mean_norm;      /* of the gradients, smoothed; 0: none yet */
    uint64_t logged_ns;
};
void shore__progress_init(struct shore__progress *p, uint64_t last_step, uint64_t budget_bytes);
/* How many times the gradients' norm is above its running mean if that is far, 50 times or more; otherwise 0. Takes the
 * norm in. */
double shore__progress_jump(struct shore__progress *p, double norm);
/* A log takes a line for this step at this time: the first that is seen, the last, and after each pace. */
bool shore__progress_due(struct shore__progress *p, const struct shore__pace *pace, uint64_t step, uint64_t now_ns);
/* Takes a step in and writes the line that shows it, always terminated. Returns out. */
const char *shore__progress_line(struct shore__progress *p, const struct shore__step_report *report, char *out,
                                 size_t bytes);

#endif
