/* Lifetimes as a reader counts them, phase by phase: what layouts are checked by. */
#ifndef TESTS_UNIT_PLAN_LIFETIMES_H
#define TESTS_UNIT_PLAN_LIFETIMES_H

#include "plan/regions.h"

static bool live_in(const struct shore__region *row, uint32_t phases, uint32_t phase) {
    for (uint32_t p = row->live.from;; p = (p + 1) % phases) {
        if (p == phase) return true;
        if (p == row->live.to) return false;
    }
}

#endif
