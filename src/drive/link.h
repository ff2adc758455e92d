/* Counters of the host link: the only place that counts bytes between host and drives. */
#ifndef SHORE_DRIVE_LINK_H
#define SHORE_DRIVE_LINK_H

#include "longshore/state.h"

/* "in" is to the drives. */
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

/* Classes of bytes that a fetch brings. */
static inline enum shore__link_class shore__link_of_fetch(enum shore_fetch_kind kind) {
    return kind == SHORE_FETCH_BF16 || kind == SHORE_FETCH_MASTER            ? SHORE__LINK_OUT_PARAMS
           : kind == SHORE_FETCH_SPILLED || kind == SHORE_FETCH_SPILLED_BF16 ? SHORE__LINK_OUT_GRADIENTS
                                                                             : SHORE__LINK_OUT_STATE;
}

/* Counts bytes to or from one drive of the fleet. Skips drives that count for themselves (SHORE__DRIVE_COUNTS_LINK),
 * whose ledger says what really crossed, including frames. */
void shore__link_count(struct shore_fleet *fleet, uint32_t drive, enum shore__link_class what, uint64_t bytes);
void shore__link_ledger(const struct shore_fleet *fleet, struct shore_ledger *out);

#endif
