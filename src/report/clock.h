/* The clock of a step: charges each moment of the thread that steps to one thing. Its waits for the fleet are charged
 * by what held them up.
 *
 * Threading: the thread that began the step, or has taken it. Calls of others change nothing. */
#ifndef SHORE_REPORT_CLOCK_H
#define SHORE_REPORT_CLOCK_H

#include "drive/counters.h"
#include "longshore/metrics.h"

struct shore__clock;

/* Ownership: borrows the fleet, whose waits it follows until either is closed. Errors: -ENOMEM. */
int shore__clock_open(struct shore_fleet *fleet, struct shore__clock **out);
/* NULL is allowed. */
void shore__clock_close(struct shore__clock *clock);
/* A step begins on this thread, between two steps. */
void shore__clock_begin(struct shore__clock *clock, uint64_t now_ns);
/* Ends the step, and begins the next with the same charge. Fills seconds, which add up to the step's. */
void shore__clock_end(struct shore__clock *clock, uint64_t now_ns, double seconds[SHORE_CHARGES]);
/* From now on time is charged to this. Returns what it was charged to. */
enum shore_charge shore__clock_charge(struct shore__clock *clock, enum shore_charge charge);
/* The calling thread steps from here on, in place of the one before, which runs no step then. */
void shore__clock_take(struct shore__clock *clock);
/* Whether the calling thread is the one that steps. */
bool shore__clock_is_mine(const struct shore__clock *clock);

#endif
