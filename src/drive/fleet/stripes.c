#include "drive/fleet/stripes.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Divides `whole` by weights. Cumulative rounding makes the parts add up. */
static void divide(uint64_t whole, const uint64_t *weights, uint32_t ndrives, uint64_t *parts) {
    unsigned __int128 sum = 0, upto = 0;
    uint64_t given = 0;
    for (uint32_t d = 0; d < ndrives; d++)
        sum += weights[d];
    for (uint32_t d = 0; d < ndrives; d++) {
        upto += sum ? weights[d] : 1;
        unsigned __int128 all = sum ? sum : ndrives;
        uint64_t end = (uint64_t)((upto * whole * 2 + all) / (all * 2));
        parts[d] = end - given;
        given = end;
    }
    assert(given == whole);
}

uint64_t shore__stripes_share(uint64_t bytes, const uint64_t *weights, uint32_t ndrives, uint64_t *counts) {
    uint64_t stripes = (bytes + SHORE__SCRATCH_STRIPE_BYTES - 1) / SHORE__SCRATCH_STRIPE_BYTES;
    uint64_t repeats = (stripes + SHORE__STRIPES_PERIOD - 1) / SHORE__STRIPES_PERIOD;
    uint64_t period = repeats ? (stripes + repeats - 1) / repeats : 0;
    if (counts) {
        divide(period, weights, ndrives, counts);
        for (uint32_t d = 0; d < ndrives; d++)
            counts[d] *= repeats;
    }
    return period * repeats;
}

static uint64_t divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Gives each place to the drive that is furthest behind its share. */
static void mix(struct shore__stripes *s, uint32_t ndrives, int64_t *behind) {
    for (uint32_t at = 0; at < s->period; at++) {
        uint32_t best = 0;
        for (uint32_t d = 0; d < ndrives; d++) {
            behind[d] += s->each[d];
            if (behind[d] > behind[best]) best = d;
        }
        behind[best] -= s->period;
        s->drive[at] = best;
    }
    memset(behind, 0, ndrives * sizeof *behind);
    for (uint32_t at = 0; at < s->period; at++)
        s->local[at] = (uint32_t)behind[s->drive[at]]++;
}

int shore__stripes_make(const uint64_t *counts, uint32_t ndrives, struct shore__stripes *out) {
    uint64_t repeats = 0, total = 0;
    for (uint32_t d = 0; d < ndrives; d++) {
        repeats = divisor(repeats, counts[d]);
        total += counts[d];
    }
    *out = (struct shore__stripes){.total = total};
    if (!total) return 0;
    if (total / repeats > UINT32_MAX / 8) return -ENOMEM;
    out->period = (uint32_t)(total / repeats);
    out->drive = calloc(out->period, sizeof *out->drive);
    out->local = calloc(out->period, sizeof *out->local);
    out->each = calloc(ndrives, sizeof *out->each);
    int64_t *behind = calloc(ndrives, sizeof *behind);
    int rc = out->drive && out->local && out->each && behind ? 0 : -ENOMEM;
    for (uint32_t d = 0; !rc && d < ndrives; d++)
        out->each[d] = (uint32_t)(counts[d] / repeats);
    if (!rc) mix(out, ndrives, behind);
    free(behind);
    if (rc) shore__stripes_free(out);
    return rc;
}

void shore__stripes_free(struct shore__stripes *s) {
    free(s->drive);
    free(s->local);
    free(s->each);
    *s = (struct shore__stripes){0};
}
