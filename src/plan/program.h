/* A program as described: operations in order, tensors, and which operations make, read and free them. */
#ifndef SHORE_PLAN_PROGRAM_H
#define SHORE_PLAN_PROGRAM_H

#include "longshore/plan.h"
#include "plan/regions.h"

enum shore__use_kind { SHORE__MAKES, SHORE__READS, SHORE__FREES, SHORE__CHANGES };
struct shore__use {
    enum shore__use_kind kind;
    uint32_t operation, tensor;
};

struct shore__cost {
    enum shore_lane lane;
    uint32_t operation, drive;
    uint64_t work;
};

struct shore__computes {
    uint32_t operation;
    struct shore_computing what;
};

struct shore_program {
    const char **op; /* names of the operations */
    struct shore_tensor *tensor;
    struct shore__use *use;
    struct shore__cost *cost;
    struct shore__computes *computes;
    uint32_t nops, ntensors, nuses, ncosts, ncomputes;
    struct shore_diag wrong; /* for the planner to report; rc: 0, or its code */
    int rc;
};

/* Checks that the description is complete; writes lifetimes, by tensor, to live. Errors: those of
 * shore_plan_open(). */
int shore__program_check(const struct shore_program *program, struct shore__lifetime *live, struct shore_diag *diag);

/* Seconds that computing takes: as measured, or by the machine's rates (NULL: assumed). */
double shore__computing_seconds(const struct shore_computing *computing, const struct shore_machine *machine);

/* Bytes that a step moves of a tensor, one way, if it moves. */
static inline uint64_t shore__moved_bytes(const struct shore_tensor *t) {
    if (t->moved_bytes == UINT64_MAX) return 0;
    return t->moved_bytes ? t->moved_bytes : t->bytes;
}

/* Work behind all operations in a lane; of a drive's lane, of this drive, or of all together. */
#define SHORE__ALL_DRIVES UINT32_MAX
uint64_t shore__program_work(const struct shore_program *program, enum shore_lane lane, uint32_t drive);

#endif
