/* Counters of a fleet: the only place that counts bytes between host and drives, and the time that callers wait for
 * them. A counter is a member of struct shore_ledger. */
#ifndef SHORE_DRIVE_COUNTERS_H
#define SHORE_DRIVE_COUNTERS_H

#include <stddef.h>

#include "longshore/state.h"

#define SHORE__COUNTER(member) (offsetof(struct shore_ledger, member) / sizeof(uint64_t))
#define SHORE__COUNTERS (sizeof(struct shore_ledger) / sizeof(uint64_t)) /* the first one, its size, is none */

static inline uint64_t *shore__counter(struct shore_ledger *ledger, size_t counter) {
    return (uint64_t *)(void *)ledger + counter;
}

/* The counter of bytes that a fetch brings. */
static inline size_t shore__counter_of_fetch(enum shore_fetch_kind kind) {
    return kind == SHORE_FETCH_BF16 || kind == SHORE_FETCH_MASTER            ? SHORE__COUNTER(link_out_params)
           : kind == SHORE_FETCH_SPILLED || kind == SHORE_FETCH_SPILLED_BF16 ? SHORE__COUNTER(link_out_gradients)
                                                                             : SHORE__COUNTER(link_out_state);
}

/* Counts bytes to or from one drive of the fleet. Skips drives that count for themselves (SHORE__DRIVE_COUNTS_LINK),
 * whose ledger says what really crossed, including frames. */
void shore__fleet_count(struct shore_fleet *fleet, uint32_t drive, size_t counter, uint64_t bytes);

/* Bytes that a drive of the fleet has read and written since it was opened. */
uint64_t shore__fleet_read(const struct shore_fleet *fleet, uint32_t drive);
uint64_t shore__fleet_written(const struct shore_fleet *fleet, uint32_t drive);
/* Whether it is a drive of this process. */
bool shore__fleet_owns(const struct shore_fleet *fleet, uint32_t drive);

/* shore_fleet_info(), as a value. */
struct shore_fleet_info shore__fleet_info(const struct shore_fleet *fleet);

/* For how long the lanes between host and drives, and those of drives, have worked until now, by drive, as far as that
 * is known: of an emulated machine all that it limits, otherwise the links of drives on other hosts. Returns false, and
 * leaves ns, if nothing is. */
bool shore__fleet_worked(const struct shore_fleet *fleet, uint64_t (*ns)[SHORE_LANES]);

/* Follows the waits of callers, on the threads that wait. A wait for a commit ends as one for UPDATE where the drives
 * were still working on it, and then as one for the commit, both since the same time. */
struct shore__wait_watch {
    void (*begins)(struct shore__wait_watch *watch, uint64_t now_ns);
    void (*ended)(struct shore__wait_watch *watch, enum shore_lane lane, uint64_t since_ns, uint64_t now_ns);
    void (*over)(struct shore__wait_watch *watch); /* the fleet closes, or gets another watch */
};
/* The fleet has one watch, or NULL. */
void shore__fleet_set_wait_watch(struct shore_fleet *fleet, struct shore__wait_watch *watch);

/* A caller is about to wait for the fleet. Returns when that is, by shore__now_ns(). */
uint64_t shore__fleet_waits(struct shore_fleet *fleet);
/* Counts that a caller has waited for a lane of the fleet since then. NULL, here and above: counts nothing. */
void shore__fleet_waited(struct shore_fleet *fleet, enum shore_lane lane, uint64_t since_ns);
/* shore_wait(), counted. */
int shore__fleet_wait(struct shore_fleet *fleet, enum shore_lane lane, struct shore_wait *wait,
                      struct shore_diag *diag);
/* How long callers have waited for all lanes so far. */
uint64_t shore__fleet_waits_ns(const struct shore_fleet *fleet);

#endif
