/* What the heuristics ask of a plan while they change it (training.c sums, heuristics.c decides).
 */
#ifndef SHORE_PLAN_TRAINING_SUM_H
#define SHORE_PLAN_TRAINING_SUM_H

#include "plan/training.h"

struct shore__sizing {
    const struct shore__facts *f;
    struct shore__train_plan *plan;
    struct shore__region_list *rows; /* of the plan as it was summed last */
};

/* Lays the plan's rows out and fills its sums; returns the total. ctx: a struct shore__sizing. */
uint64_t shore__plan_sum(void *ctx);

/* (Layer, unit) pairs whose inner activations scratch is given room for. */
size_t shore__plan_offloaded_most(const struct shore__facts *f);
/* The plan that needs least, with what must be so whatever the budget. */
void shore__plan_least(struct shore__sizing *z, struct shore__train_plan *plan);
/* Memory beyond that goes where it saves most. plan: the least, with its sums. */
void shore__plan_spend(struct shore__sizing *z, struct shore__train_plan *plan, uint64_t budget);
/* The budget from which on everything is kept. */
uint64_t shore__plan_comfortable(struct shore__sizing *z, const struct shore__train_plan *least);

/* Fills plan->lending and adds its rows to those of the plan, which have been laid out; the sums stay. */
void shore__plan_lend(struct shore__sizing *z);

/* Pieces of gradient that a step makes. */
uint32_t shore__plan_pieces(const struct shore__facts *f, bool hold_table_gradient);

#endif
