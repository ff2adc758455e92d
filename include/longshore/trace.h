/* A trace: what worked when in a run's last steps, as spans of lanes (longshore/lane.h), and what the time of each step
 * was charged to. RUN/trace.spans holds it; docs/run-directory.md describes the file.
 *
 *     shore_trace_open("RUN", 10, fleet, &trace, &diag)      from here on, what the fleet and its meter do is recorded
 *     ... steps, each ended by shore_meter_end() ...
 *     shore_fleet_close(fleet); shore_trace_close(trace, &diag)
 *     shore_trace_export("RUN", "trace.json", &written, &diag)     for Perfetto or chrome://tracing
 *
 * Recording takes memory of a fixed size, and about 100 ns a span. A thread writes the file, so that no step waits for
 * it.
 */
#ifndef LONGSHORE_TRACE_H
#define LONGSHORE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"
#include "longshore/state.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHORE_TRACE_STEPS_MOST 1000u

struct shore_trace;

/* Bytes of memory that a trace of so many drives takes. Threading: any. */
uint64_t shore_trace_memory_bytes(uint32_t ndrives);

/* Begins to record. run: the directory of the file, which the first step replaces. steps: how many of the last steps
 * are kept, 1 to SHORE_TRACE_STEPS_MOST. fleet: with nothing under way. Ownership: borrows the fleet; the trace is the
 * caller's, who closes the fleet first. Threading: one thread at a time; a forked child does nothing with it. Errors:
 * -EINVAL (steps), -ENOMEM. */
int shore_trace_open(const char *run, uint32_t steps, struct shore_fleet *fleet, struct shore_trace **out,
                     struct shore_diag *diag);
/* Goes on with a fleet of the same drives that was opened anew, with nothing under way. NULL trace: nothing. */
void shore_trace_follow(struct shore_trace *trace, struct shore_fleet *fleet);
/* Writes what is left, and ends. NULL is allowed. Errors: the first one of writing the file, after which nothing more
 * was written; the trace is closed in any case. */
int shore_trace_close(struct shore_trace *trace, struct shore_diag *diag);

struct shore_trace_written {
    size_t size;                    /* set by the caller: sizeof(struct shore_trace_written) */
    uint64_t first_step, last_step; /* that the trace holds; some between them may be missing */
    uint64_t merged;                /* spans that became one with others, because a step had too many */
};
/* Writes the trace of a run as JSON in Chrome's format: complete or not at all; it replaces a trace alone. Also of a
 * run in use. Threading: any. Errors: SHORE_EMISSING (no such run, or it has no trace), SHORE_EINPUT (the trace is
 * damaged), SHORE_EEXISTS (something else is at `to`), SHORE_EFORMAT (it is none, or a later version's), -EINVAL
 * (written->size), those of writing. */
int shore_trace_export(const char *run, const char *to, struct shore_trace_written *written, struct shore_diag *diag);

#ifdef __cplusplus
}
#endif

#endif
