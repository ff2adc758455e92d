/* The host link: the one place where what crosses between host and drives is counted. */
#ifndef SHORE_DRIVE_LINK_H
#define SHORE_DRIVE_LINK_H

#include "longshore/state.h"

/* "in" goes to the drives. */
enum shore__link_class {
    SHORE__LINK_IN_GRADIENTS,
    SHORE__LINK_IN_COMPRESSED,
    SHORE__LINK_OUT_PARAMS,
    SHORE__LINK_ACTIVATIONS,
    SHORE__LINK_IN_STATE,
    SHORE__LINK_OUT_STATE,
    SHORE__LINK_OUT_GRADIENTS,
    SHORE__LINK_CONTROL,
    SHORE__LINK_CLASSES
};

/* What a fetch brings. */
static inline enum shore__link_class shore__link_of_fetch(enum shore_fetch_kind kind) {
    return kind == SHORE_FETCH_BF16 || kind == SHORE_FETCH_MASTER            ? SHORE__LINK_OUT_PARAMS
           : kind == SHORE_FETCH_SPILLED || kind == SHORE_FETCH_SPILLED_BF16 ? SHORE__LINK_OUT_GRADIENTS
                                                                             : SHORE__LINK_OUT_STATE;
}

/* For what goes to or comes from one drive of the fleet. Drives that count for themselves (SHORE__DRIVE_COUNTS_LINK)
 * are left out: their ledger says what really crossed, frames included. */
void shore__link_count(struct shore_fleet *fleet, uint32_t drive, enum shore__link_class what, uint64_t bytes);
void shore__link_ledger(const struct shore_fleet *fleet, struct shore_ledger *out);

#endif
