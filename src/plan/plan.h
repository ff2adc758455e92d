/* A plan, while it is made and afterwards. fates.c lays out and sums what the rules (rules.c) have chosen. */
#ifndef SHORE_PLAN_PLAN_H
#define SHORE_PLAN_PLAN_H

#include "plan/head.h"
#include "plan/program.h"

/* What passes through buffers whose number the rules choose: parameters, in the host's pages and in slots of a device,
 * and pieces of gradient. */
enum shore__passing { SHORE__PAGES, SHORE__SLOTS, SHORE__PIECES, SHORE__PASSING };

/* The choice of the rules: how many tensors of each role get memory. */
struct shore__choice {
    size_t layers, tables, lookups; /* the first so many stay */
    size_t inputs;                  /* the last so many stay */
    /* the first so many stay; full_inner of them with the parts that are cheap to recompute */
    size_t inner, full_inner;
    size_t moved_inner;        /* so many after these move */
    size_t logits, head_units; /* logits: the first so many stay; head_units: units that go through the head at once */
    size_t buffers[SHORE__PASSING];
    size_t host_buffers, host_segments;
    size_t pool, gradients, spare; /* bytes beyond the least */
    bool held, drives, workspace, holes;
};

/* Bytes by budget: of each place that has one of its own, and of all others together. */
enum { SHORE__SHARED = SHORE_PLACES, SHORE__BUDGETS };
struct shore__bytes {
    uint64_t of[SHORE__BUDGETS];
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
    struct shore__head head;
    struct shore__lifetime *live; /* by tensor */
    struct shore__fate *fate;     /* by tensor */
    size_t count[SHORE__ROLES];   /* of tensors */
    struct shore__choice choice;
    struct shore__region_list rows;
    struct shore__bytes limit; /* what the rules may spend now */
    struct shore__bytes minimum, comfortable, total;
    uint64_t place_minimum[SHORE_PLACES], place_total[SHORE_PLACES];
};

/* Lays out the choice, and returns the bytes above the limit. ctx: the plan. */
uint64_t shore__plan_excess(void *ctx);
/* Lays out what the fates say. */
void shore__plan_lay_out(struct shore_plan *plan);
/* The budget that a place counts against: its own or SHORE__SHARED. */
uint32_t shore__plan_budget(const struct shore_plan *plan, enum shore_place place);
/* What passes through these buffers, if tensors of a role do; SHORE__PASSING: what has no number of its own. */
enum shore__passing shore__passing(const struct shore_plan *plan, enum shore_role role,
                                   const struct shore_tensor *buffers);
/* Bytes of the tensor alone, if it stays. */
uint64_t shore__tensor_bytes(const struct shore_tensor *t, bool full);
/* The nth tensor of a role, or NULL. */
const struct shore_tensor *shore__plan_nth(const struct shore_plan *plan, enum shore_role role, size_t nth);

/* rules.c: the choice that needs least memory, with everything that is required for any budget, which is plan->minimum;
 * then memory up to the limit goes where it saves most; and the budgets that keep everything. */
void shore__rules_least(struct shore_plan *plan);
void shore__rules_spend(struct shore_plan *plan);
struct shore__bytes shore__rules_comfortable(struct shore_plan *plan);
/* Whether so many operations take longer than moving so many bytes on the drives. Rates of 0: see
 * shore_plan_options. */
bool shore__rules_outlasts(uint64_t operations, uint64_t bytes, double operations_per_second, double bytes_per_second);

#endif
