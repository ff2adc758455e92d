/* A plan, while it is made and afterwards. fates.c lays out and sums what the rules (rules.c) have chosen. */
#ifndef SHORE_PLAN_PLAN_H
#define SHORE_PLAN_PLAN_H

#include "plan/program.h"

/* The choice of the rules: how many tensors of each role get memory. */
struct shore__choice {
    size_t layers, tables, lookups; /* the first so many stay */
    size_t inputs;                  /* the last so many stay */
    /* the first so many stay; full_inner of them with the parts that are cheap to recompute */
    size_t inner, full_inner;
    size_t moved_inner;        /* so many after these move */
    size_t logits, head_units; /* logits: the first so many stay; head_units: units that go through the head at once */
    size_t page_buffers, piece_buffers;
    size_t host_buffers, host_segments;
    size_t pool, gradients, spare; /* bytes beyond the least */
    bool held, drives, workspace, holes;
};

#define SHORE__NO_ROW UINT32_MAX

struct shore__fate {
    enum shore_way way;
    bool full;
    uint32_t row;   /* its row, if laid out, or SHORE__NO_ROW */
    uint64_t bytes; /* of one */
    uint64_t count; /* 0: it does not exist */
    uint64_t at;    /* its offset in the row */
    uint64_t moved; /* if it moves: how many of its role move before it */
};

struct shore_plan {
    const struct shore_program *program;
    struct shore_plan_options options;
    struct shore__lifetime *live; /* by tensor */
    struct shore__fate *fate;     /* by tensor */
    size_t count[SHORE_ROLES];    /* of tensors */
    struct shore__choice choice;
    struct shore__region_list rows;
    uint64_t minimum_bytes, comfortable_bytes, total_bytes;
};

/* Lays out the choice, and returns the total bytes. ctx: the plan. */
uint64_t shore__plan_sum(void *ctx);
/* Overrides the fate of a tensor, lays everything out again, and returns the total bytes. */
void shore__plan_set(struct shore_plan *plan, uint32_t tensor, enum shore_way way, bool full);
uint64_t shore__plan_lay_out(struct shore_plan *plan);
/* Bytes of the tensor alone, if it stays. */
uint64_t shore__tensor_bytes(const struct shore_tensor *t, bool full);
/* The nth tensor of a role, or NULL. */
const struct shore_tensor *shore__plan_nth(const struct shore_plan *plan, enum shore_role role, size_t nth);

/* rules.c: the choice that needs least memory, with everything that is required for any budget; then memory beyond that
 * goes where it saves most; and the budget that keeps everything. plan: with its sums. */
void shore__rules_least(struct shore_plan *plan);
void shore__rules_spend(struct shore_plan *plan, uint64_t budget);
uint64_t shore__rules_comfortable(struct shore_plan *plan);
/* Whether computing takes longer than moving bytes on the drives. Rates of 0: see shore_plan_options. */
bool shore__rules_outlasts(const uint64_t cost[SHORE_LANES], double operations_per_second, double bytes_per_second);

#endif
