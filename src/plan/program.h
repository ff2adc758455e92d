/* A program as described: operations in order, tensors, and which operations make, read and free them. */
#ifndef SHORE_PLAN_PROGRAM_H
#define SHORE_PLAN_PROGRAM_H

#include "longshore/plan.h"
#include "plan/regions.h"

enum shore__use_kind { SHORE__MAKES, SHORE__READS, SHORE__FREES };
struct shore__use {
    enum shore__use_kind kind;
    uint32_t operation, tensor;
};

struct shore_program {
    struct shore_operation *op;
    struct shore_tensor *tensor;
    struct shore__use *use;
    uint32_t nops, ntensors, nuses;
    struct shore_diag wrong; /* for the planner to report; rc: 0, or its code */
    int rc;
};

/* Checks that the description is complete; writes lifetimes, by tensor, to live. Errors: those of shore_plan_open(). */
int shore__program_check(const struct shore_program *program, struct shore__lifetime *live, struct shore_diag *diag);

/* Adds the cost of all operations. */
void shore__program_cost(const struct shore_program *program, uint64_t cost[SHORE_LANES]);

#endif
