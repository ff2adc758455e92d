/* Models at random, for the tests of plans: one seed, which is printed, and a stream of numbers for each case. */
#ifndef TESTS_UNIT_PLAN_RANDOM_MODELS_H
#define TESTS_UNIT_PLAN_RANDOM_MODELS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/plan/random_arch.h"

static struct shore__model *random_model(uint64_t *draw) {
    struct shore__arch arch = random_arch(draw);
    struct shore__model *m = NULL;
    assert_int_equal(shore__model_make(&arch, &m, NULL), 0);
    return m;
}

#endif
