/* A plan, while it is made and afterwards. classes.c finds the classes of tensors, fates.c lays out and sums what was
 * chosen for them, order.c and search.c choose. */
#ifndef SHORE_PLAN_PLAN_H
#define SHORE_PLAN_PLAN_H

#include "plan/program.h"

/* Tensors of a class: see struct shore_tensor. All that are there whatever the budget are one class. */
struct shore__class {
    const struct shore_tensor *like; /* the first that was added */
    uint32_t first, n; /* plan->order[first .. first + n), those first that are kept first; or plan->spread */
    uint32_t reads;    /* of each, in a step */
    bool made;         /* by the step */
    bool decides;      /* others exist only with it, or without it */
};

/* What a class gets. */
struct shore__share {
    size_t kept, full;  /* so many stay, and so many of these in full */
    size_t host, moved; /* so many after them go to the host, and so many after these move; for others: see the ways */
    size_t more;        /* of an amount: bytes beyond the least. Of buffers: how many, as far as something passes */
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
    uint64_t moved; /* if it moves: how many of its group move before it */
};

/* What passes through the buffers of a group. */
struct shore__passing {
    uint32_t number;               /* of the program */
    uint32_t buffers;              /* class of its buffers; SHORE__NO_ROW: none */
    size_t passing, moved;         /* tensors that move; to the drives */
    uint64_t passing_bytes, bytes; /* of the largest that moves; of the largest */
};

struct shore__simulation;
struct shore_plan {
    const struct shore_program *program;
    struct shore_plan_options options;
    struct shore__lifetime *live; /* by tensor, like the next two */
    struct shore__fate *fate;
    uint32_t *group_of;       /* in group[]; SHORE__NO_ROW: none */
    uint32_t *order, *spread; /* tensors by class; the same where some of a class move */
    struct shore__class *class;
    struct shore__share *share, *least; /* by class; least: of the least plan */
    struct shore__passing *group;
    uint32_t nclasses, ngroups;
    struct shore__simulation *simulation; /* of the fates as they are now; its times */
    struct shore_plan_times times;
    struct shore__region_list rows;
    struct shore__bytes limit;  /* what may be spent now */
    bool (*accepts)(void *ctx); /* NULL, or whether what was raised now may stay */
    void *accepts_ctx;
    struct shore__bytes minimum, comfortable, total;
    uint64_t place_minimum[SHORE_PLACES], place_total[SHORE_PLACES];
};

/* classes.c: finds classes and groups. Errors: -ENOMEM. */
int shore__classes_open(struct shore_plan *plan, struct shore_diag *diag);
/* The ways that a tensor has on this machine. */
unsigned shore__class_ways(const struct shore_plan *plan, const struct shore__class *k);
/* Whether it is an amount; how many bytes it can have beyond the least. */
static inline uint64_t shore__class_amount(const struct shore__class *k) {
    const struct shore_tensor *t = k->like;
    return !t->ways && !t->buffers && t->full_bytes > t->bytes ? t->full_bytes - t->bytes : 0;
}

/* Simulates what is laid out, with what a step waits so that drives do not write too much. */
void shore__plan_simulate(struct shore_plan *plan);
/* The same, after more work was added to its program. Errors: -ENOMEM. */
int shore__plan_time(struct shore_plan *plan, struct shore_diag *diag);

/* Lays out the shares, and returns the bytes above the limit. ctx: the plan. */
uint64_t shore__plan_excess(void *ctx);
/* Lays out what the fates say. */
void shore__plan_lay_out(struct shore_plan *plan);
/* The budget that a place counts against: its own or SHORE__SHARED. */
uint32_t shore__plan_budget(const struct shore_plan *plan, enum shore_place place);
/* Bytes of the tensor alone, if it stays. */
uint64_t shore__tensor_bytes(const struct shore_tensor *t, bool full);

/* order.c: the shares that need least memory, with everything that is required for any budget, which is plan->minimum.
 * Then memory up to the limit goes where an order of thumb says, or to one policy's activations first. moves: by the
 * order and by the policy that moves, what can be computed again does, if it fits. And the budgets that keep
 * everything. */
void shore__order_least(struct shore_plan *plan);
void shore__order_spend(struct shore_plan *plan, enum shore_policy policy, bool moves);
/* Whether a step computes longer than its drives work, whatever moves. */
bool shore__plan_outlasts(const struct shore_plan *plan);
struct shore__bytes shore__order_comfortable(struct shore_plan *plan);
/* Raises the shares further, in that order, each as far as it fits and plan->accepts. */
void shore__order_fill(struct shore_plan *plan);

/* search.c: shares within the limit with the shortest simulated step. Returns false if there is no memory. */
bool shore__search(struct shore_plan *plan);
/* Whether a step of the first plan takes less time, or as much with less work. */
bool shore__plan_is_shorter(const struct shore_plan *a, const struct shore_plan *b);

#endif
