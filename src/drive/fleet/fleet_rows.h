/* Rows of a table that lies in a fleet's scratch. */
#ifndef SHORE_DRIVE_FLEET_FLEET_ROWS_H
#define SHORE_DRIVE_FLEET_FLEET_ROWS_H

#include "drive/fleet/fleet.h"

/* Row r of `bytes` lies in stripe r / per_stripe of scratch, at r % per_stripe rows: none lies in two stripes. */
struct shore__scratch_rows {
    unsigned function; /* SHORE__GATHER_SCRATCH, _SCATTER, _SCATTER_ADD */
    uint32_t bytes, per_stripe, kind;
    const uint32_t *row; /* in any order, also repeated: put in order, added in order before they go to the drives */
    uint32_t count;
    void *values; /* in the order of row[]: gathered into, put, or (fp32) added */
};
static inline uint32_t shore__rows_per_stripe(uint32_t bytes) {
    return SHORE__SCRATCH_STRIPE_BYTES / bytes;
}
/* Ownership: row and values are borrowed until the completion. */
int shore__fleet_scratch_rows(struct shore_fleet *f, const struct shore__scratch_rows *rows,
                              struct shore_completion done);

#endif
