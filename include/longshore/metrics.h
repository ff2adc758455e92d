/* Metrics of steps: where the time and the bytes of each went, and the line that says so.
 *
 *     shore_meter_open(fleet, &meter, &diag)
 *     shore_meter_begin(meter)                     the first step begins
 *     each step: shore_meter_charge(meter, SHORE_CHARGE_FORWARD), ...
 *                fill loss, norm, ... of a report; shore_meter_end(meter, &report); shore_metrics_line(&report, ...)
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

/* What the time of the thread that steps is charged to, each with its name in metrics. At each moment it is one of
 * them: what the thread does, or what it waits for. */
#define SHORE_CHARGE_LIST(X)                                                                                    \
    X(SHORE_CHARGE_BETWEEN, "before_forward") /* since the last step: what the script does, batches, samples */ \
    X(SHORE_CHARGE_FORWARD, "forward")                                                                          \
    X(SHORE_CHARGE_AGAIN, "again") /* forward, computed again in backward */                                    \
    X(SHORE_CHARGE_BACKWARD, "backward")                                                                        \
    X(SHORE_CHARGE_UPDATE, "update") /* on this host: the norm, updates, what else comes after backward */      \
    X(SHORE_CHARGE_BUS, "bus")       /* copies to and from a device */                                          \
    X(SHORE_CHARGE_LINK, "link")     /* bytes between the host and the drives */                                \
    X(SHORE_CHARGE_DRIVE, "drive")   /* the drives themselves */                                                \
    X(SHORE_CHARGE_COMMIT, "commit")

enum shore_charge {
#define SHORE_CHARGE_ENUM(charge, name) charge,
    SHORE_CHARGE_LIST(SHORE_CHARGE_ENUM)
#undef SHORE_CHARGE_ENUM
        SHORE_CHARGES
};

/* A charge's name. Threading: any. */
const char *shore_charge_name(enum shore_charge charge);

struct shore_step_report {
    size_t size;                /* set by the caller: sizeof(struct shore_step_report) */
    uint64_t step;              /* from 1 */
    double loss, grad_norm, lr; /* null in the line if they are not finite */
    double val_loss;            /* of validation data; NaN: not measured; infinity: measured, and not finite */
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
    double charge_seconds[SHORE_CHARGES]; /* they add up to step_seconds; by shore_meter_end() */
    double mfu;                           /* share of the machine's rate of products; 0: not known */
    uint64_t uncounted_tokens;            /* of `tokens`, those that do not count in the loss */
};

struct shore_meter;

/* Ownership: borrows the fleet; the meter is the caller's, for shore_meter_close(). Errors: -ENOMEM. */
int shore_meter_open(struct shore_fleet *fleet, struct shore_meter **out, struct shore_diag *diag);
/* NULL is allowed. */
void shore_meter_close(struct shore_meter *meter);
/* Begins a step on the calling thread: what was counted so far belongs to none. Time is charged to
 * SHORE_CHARGE_BETWEEN. */
void shore_meter_begin(struct shore_meter *meter);
/* From now on the time of the thread that began the step is charged to this, apart from its waits for the fleet, which
 * the library charges by itself. Returns what it was charged to. Costs one look at the clock. Of another thread, or
 * with NULL, nothing happens. */
enum shore_charge shore_meter_charge(struct shore_meter *meter, enum shore_charge charge);
/* The calling thread steps from here on, in place of the one before, which waits for it or has ended, and its time is
 * charged to this: where frameworks run parts of a step in threads of their own. Returns what was charged before. With
 * NULL, nothing happens. */
enum shore_charge shore_meter_turn(struct shore_meter *meter, enum shore_charge charge);
/* shore_wait() for a request to the fleet. Of the thread that steps, the time counts as a wait for this lane. NULL is
 * allowed. Threading: any. Errors: the request's. */
int shore_meter_wait(struct shore_meter *meter, enum shore_lane lane, struct shore_wait *wait, struct shore_diag *diag);
/* Ends the step, and begins the next, which goes on with the same charge. Errors: -EINVAL (report->size). */
int shore_meter_end(struct shore_meter *meter, struct shore_step_report *report);

/* Writes a step's line: one JSON object without a line break. Numbers have 9 significant digits. Returns its length, as
 * snprintf() does: the text is cut off if that is not below bytes. Threading: any. Errors: -EINVAL (report->size). */
int shore_metrics_line(const struct shore_step_report *report, char *out, size_t bytes);

/* Writes what each drive of this process did in the step that ended last: a line of RUN/drives.jsonl, in the same form.
 * paths: with the drives' paths. "{}" before a step has ended. Returns its length, as above. Errors: none. */
int shore_meter_drives_line(const struct shore_meter *meter, bool paths, char *out, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
