/* Metrics of steps: where the time and the bytes of each went, and the line that says so.
 *
 *     shore_meter_open(fleet, &meter, &diag)
 *     shore_meter_begin(meter)                     the first step begins
 *     each step: fill loss, norm, ... of a report; shore_meter_end(meter, &report); shore_metrics_line(&report, ...)
 *
 * docs/outputs.md has the meaning of each key of a line.
 *
 * Threading: one thread at a time.
 */
#ifndef LONGSHORE_METRICS_H
#define LONGSHORE_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"
#include "longshore/state.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shore_step_report {
    size_t size;                /* set by the caller: sizeof(struct shore_step_report) */
    uint64_t step;              /* from 1 */
    double loss, grad_norm, lr; /* null in the line if they are not finite */
    double val_loss;            /* of validation data; NaN: not measured */
    double dropped_energy;      /* share of the gradients' energy that compression left out; NaN: no compression */
    uint64_t tokens;            /* 0: not known */
    uint32_t replays;
    bool speculated, skipped;
    bool emulated; /* the times are another machine's */
    /* of its lanes; for drives, the busiest of each kind, and for the link the busier direction, under LINK_IN */
    double busy_seconds[SHORE_LANES];
    /* filled by shore_meter_end() */
    double step_seconds, compute_seconds, wait_seconds, commit_seconds;
    struct shore_ledger ledger; /* what the fleet's counted in the step */
    uint64_t resident_bytes;    /* of the process, at the end */
    const char *slow_drive;     /* a drive that holds up the others; NULL: none. Ownership: the fleet's */
    double slow_factor;         /* how much longer it works than the others */
    double
        paced_seconds; /* part of step_seconds: the step was held back, so that drives write less a day; the caller's */
};

struct shore_meter;

/* Ownership: borrows the fleet; the meter is the caller's, for shore_meter_close(). Errors: -ENOMEM. */
int shore_meter_open(struct shore_fleet *fleet, struct shore_meter **out, struct shore_diag *diag);
/* NULL is allowed. */
void shore_meter_close(struct shore_meter *meter);
/* Begins a step: what was counted so far belongs to none. */
void shore_meter_begin(struct shore_meter *meter);
/* Ends the step, and begins the next. Errors: -EINVAL (report->size). */
int shore_meter_end(struct shore_meter *meter, struct shore_step_report *report);

/* Writes a step's line: one JSON object without a line break. Numbers have 9 significant digits. Returns its length, as
 * snprintf() does: the text is cut off if that is not below bytes. Threading: any. Errors: -EINVAL (report->size). */
int shore_metrics_line(const struct shore_step_report *report, char *out, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
