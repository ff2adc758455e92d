/* A recorder of spans: which lane worked when, and what the time of the thread that steps was charged to. It has a
 * fixed size. Who records never waits: while the recorder is nearly full, spans of a lane become one, with the gaps
 * between them. A thread takes what was recorded after each step (report/trace.c).
 *
 * A lane works on one thing at a time: a span begins when the one before it in its lane has ended, if it waited for
 * that. So spans of a lane never overlap. */
#ifndef SHORE_DRIVE_RECORDER_H
#define SHORE_DRIVE_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/lane.h"

#define SHORE__NO_DRIVE UINT32_MAX /* of a lane that is no drive's */

enum shore__span_kind { SHORE__SPAN_LANE, SHORE__SPAN_CHARGE, SHORE__SPAN_STEP, SHORE__SPAN_KINDS };

struct shore__work_span {
    uint64_t begin_ns, end_ns; /* by shore__now_ns() */
    uint64_t amount;           /* bytes of a lane, the number of a step */
    uint32_t drive;            /* of a lane; or SHORE__NO_DRIVE */
    uint16_t kind, what;       /* what: the lane, or the charge */
};

struct shore__recorder;

/* Ownership: outlives each fleet that records into it. */
int shore__recorder_open(uint32_t ndrives, struct shore__recorder **out);
void shore__recorder_close(struct shore__recorder *r);
size_t shore__recorder_bytes(uint32_t ndrives);

/* When something begins that will be recorded, by shore__now_ns(). NULL: 0. */
uint64_t shore__recorder_clock(const struct shore__recorder *r);
/* A lane has worked. amount: in bytes, 0: unknown. NULL: nothing. Threading: any. */
void shore__recorder_worked(struct shore__recorder *r, enum shore_lane lane, uint32_t drive, uint64_t begin_ns,
                            uint64_t end_ns, uint64_t amount);
/* The thread that steps did or waited for this (a shore_charge). NULL: nothing. */
void shore__recorder_charged(struct shore__recorder *r, unsigned charge, uint64_t begin_ns, uint64_t end_ns);
/* A step has ended: what was recorded can be taken. NULL: nothing. */
void shore__recorder_stepped(struct shore__recorder *r, uint64_t step, uint64_t begin_ns, uint64_t end_ns);

/* Spans that were recorded together, in no order; at least one of them is a step. */
struct shore__recorded {
    const struct shore__work_span *spans;
    uint32_t count, steps;
    uint64_t lost; /* spans for which there was no room, or which became one with others */
};
/* Waits for a step. The spans are valid until the next call. False: the recorder is closing, and nothing is left. */
bool shore__recorder_take(struct shore__recorder *r, struct shore__recorded *out);
/* The above waits no more. */
void shore__recorder_end(struct shore__recorder *r);

struct shore_fleet;
/* Everything that the fleet does from now on is recorded, with nothing under way. recorder outlives the fleet; NULL: no
 * more. */
void shore__fleet_set_recorder(struct shore_fleet *fleet, struct shore__recorder *recorder);
/* NULL: nothing is recorded. fleet: may be NULL. */
struct shore__recorder *shore__fleet_recorder(const struct shore_fleet *fleet);

#endif
