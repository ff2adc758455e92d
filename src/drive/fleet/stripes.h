/* Stripes of scratch: which drive holds which, in proportion to their shares and evenly mixed, so that any run of
 * stripes keeps all drives busy in that proportion. */
#ifndef SHORE_DRIVE_FLEET_STRIPES_H
#define SHORE_DRIVE_FLEET_STRIPES_H

#include <stdint.h>

#define SHORE__SCRATCH_STRIPE_BYTES (1024u * 1024u)
#define SHORE__STRIPES_PERIOD 1024u /* the pattern repeats after so many stripes at most */

struct shore__stripes {
    uint64_t total;
    uint32_t period;
    uint32_t *drive, *local; /* of each stripe of a period: its drive, and its number there */
    uint32_t *each;          /* by drive: stripes in a period */
};

/* Number of stripes that each drive gets, of those that hold `bytes`, by weights (all 0: equally). Returns their sum,
 * which is rounded up by at most a thousandth. counts may be NULL. */
uint64_t shore__stripes_share(uint64_t bytes, const uint64_t *weights, uint32_t ndrives, uint64_t *counts);

/* The pattern for these numbers of stripes per drive. 0 or -ENOMEM. */
int shore__stripes_make(const uint64_t *counts, uint32_t ndrives, struct shore__stripes *out);
void shore__stripes_free(struct shore__stripes *s);

static inline uint32_t shore__stripes_find(const struct shore__stripes *s, uint64_t number, uint64_t *local) {
    uint32_t at = (uint32_t)(number % s->period), drive = s->drive[at];
    *local = number / s->period * s->each[drive] + s->local[at];
    return drive;
}

#endif
