/* A plan while it is made, and when it is there. fates.c lays out and sums what the rules (rules.c) have chosen. */
#ifndef SHORE_PLAN_PLAN_H
#define SHORE_PLAN_PLAN_H

#include "plan/program.h"

/* What the rules choose: how many tensors of each role get memory. */
struct shore__choice {
    size_t layers, tables, lookups; /* the first ones stay */
    size_t inputs;                  /* the last ones do */
    size_t inner, full_inner;       /* the first ones stay; of these, with what is cheap to compute again */
    size_t moved_inner;             /* so many after them move */
    size_t logits, head_units;      /* the first ones stay; so many units go through the head at once */
    size_t page_buffers, piece_buffers;
    size_t host_buffers, host_segments;
    size_t pool, gradients, spare; /* bytes beyond the least */
    bool held, drives, workspace, holes;
};

#define SHORE__NO_ROW UINT32_MAX

struct shore__fate {
    enum shore_way way;
    bool full;
    uint32_t row;   /* of those that were laid out, or SHORE__NO_ROW */
    uint64_t bytes; /* of one */
    uint64_t count; /* 0: it is not there */
    uint64_t at;    /* in its row */
    uint64_t moved; /* of what moves: so many of its role move before it */
};

struct shore_plan {
    const struct shore_program *program;
    struct shore_plan_options options;
    struct shore__lifetime *live; /* by tensor */
    struct shore__fate *fate;     /* the same */
    size_t count[SHORE_ROLES];    /* of tensors */
    struct shore__choice choice;
    struct shore__region_list rows;
    uint64_t minimum_bytes, comfortable_bytes, total_bytes;
};

/* Lays out what was chosen, and sums; returns the total. ctx: the plan. */
uint64_t shore__plan_sum(void *ctx);
/* Sets what becomes of a tensor instead; then lays all of it out anew, and returns the total. */
void shore__plan_set(struct shore_plan *plan, uint32_t tensor, enum shore_way way, bool full);
uint64_t shore__plan_lay_out(struct shore_plan *plan);
/* What the tensor takes by itself, where it stays. */
uint64_t shore__tensor_bytes(const struct shore_tensor *t, bool full);
/* The nth tensor of a role, or NULL. */
const struct shore_tensor *shore__plan_nth(const struct shore_plan *plan, enum shore_role role, size_t nth);

/* rules.c: what needs least, with what must be so whatever the budget; memory beyond that goes where it saves most; the
 * budget from which on everything is kept. plan: with its sums. */
void shore__rules_least(struct shore_plan *plan);
void shore__rules_spend(struct shore_plan *plan, uint64_t budget);
uint64_t shore__rules_comfortable(struct shore_plan *plan);
/* Whether so many operations take longer than so many bytes that drives move. Rates of 0: see shore_plan_options. */
bool shore__rules_outlasts(uint64_t operations, uint64_t bytes, double operations_per_second, double bytes_per_second);

#endif
