/* A step as a program, and the plan of it: what is kept in a budget of memory, what is computed again, what moves to
 * the drives and back, and where it all lies.
 *
 *     program = shore_program_new()
 *     each operation of the step, in order:  shore_program_operation()
 *     each tensor:  shore_program_tensor(), and who shore_program_makes(), _reads() and _frees() it
 *     shore_plan_open(program, &options, &plan, &diag): SHORE_EBUDGET names the least budget
 *     shore_plan_tensor(plan, tensor, &fate): kept, computed again or moved; its place
 *
 * A tensor that no operation makes is there before the step, and one that none frees outlives it: rows that are not in
 * use at the same time may share a place. The plan knows no model: tensors have roles, and rules of thumb
 * (src/plan/rules.c) say in which order the roles get memory that is left. No choice changes a bit of what is computed.
 *
 * Units: bytes; operations of a processor. Threading: one thread at a time.
 */
#ifndef LONGSHORE_PLAN_H
#define LONGSHORE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shore_program;
struct shore_plan;

enum shore_lane {
    SHORE_LANE_COMPUTE, /* its cost: multiplications and additions */
    SHORE_LANE_DRIVES,  /* bytes moved */
    SHORE_LANES
};

struct shore_operation {
    size_t size;                /* sizeof(struct shore_operation) */
    const char *name;           /* for messages. Ownership: outlives the program */
    uint64_t cost[SHORE_LANES]; /* in each lane */
};

/* What memory a tensor lies in. */
enum shore_place {
    SHORE_PLACE_DEVICE,
    SHORE_PLACE_PINNED, /* the host's, for transfers */
    SHORE_PLACE_PLAIN,  /* the host's */
    SHORE_PLACE_BOTH,   /* of the device and pinned, between which it is moved */
    SHORE_PLACE_OWN     /* its maker's own: it is counted, and has no place here */
};

/* What becomes of a tensor. */
enum shore_way {
    SHORE_WAY_NONE = 0,  /* it is not there */
    SHORE_WAY_KEEP = 1,  /* it stays */
    SHORE_WAY_AGAIN = 2, /* it is computed again */
    SHORE_WAY_MOVE = 4   /* it moves to the drives and back, through buffers of its group */
};

/* What a tensor is to a step. Order matters within a role: the first ones are kept first, but for inputs, which are
 * kept from the last one on. */
enum shore_role {
    SHORE_ROLE_FIXED,     /* there whatever the budget; a row of a front end's own, by name */
    SHORE_ROLE_DRIVES,    /* what the drives take: at least, or all that is of use (full_bytes) */
    SHORE_ROLE_WORKSPACE, /* of operations: at least, or with room that makes them faster (full_bytes) */
    SHORE_ROLE_HOLES,     /* what a process may leave unused: only where there is much more than the minimum */
    SHORE_ROLE_LAYER,     /* parameters: stay, or come through buffers; of a layer */
    SHORE_ROLE_TABLE,     /* the same, read in the turn of each unit */
    SHORE_ROLE_LOOKUP,    /* the same, of which a step reads a few rows */
    SHORE_ROLE_INPUT,     /* what a layer begins with: stays, or moves */
    SHORE_ROLE_INNER, /* what else forward leaves for backward: stays (full_bytes: with what is cheap to compute again),
                       * moves, or is computed again */
    SHORE_ROLE_LOGITS, /* the same of the last layer, up to most of them: so many stay until the end of the operation */
    SHORE_ROLE_HELD,   /* a gradient that is added to all over the step: stays, or moves in pieces */
    SHORE_ROLE_PIECE,  /* a gradient that is made in a buffer, and moves */
    SHORE_ROLE_HOST,   /* of updates on the host: for each segment of a chunk */
    SHORE_ROLE_POOL,   /* that activations pass through: an eighth of the budget, from bytes up to full_bytes */
    SHORE_ROLE_GRADIENTS, /* gradients that wait: from bytes up to full_bytes, as far as there is room */
    SHORE_ROLE_SPARE,     /* the same, of what is left in the end */
    SHORE_ROLE_BUFFERS, /* what tensors of a group pass through: least to most of them, each as large as the largest */
    SHORE_ROLES
};

struct shore_tensor {
    size_t size;         /* sizeof(struct shore_tensor) */
    const char *name;    /* for messages. Ownership: outlives the program */
    uint32_t key, index; /* of its row: consecutive tensors of one key and index share one, side by side */
    enum shore_role role;
    enum shore_place place;
    unsigned ways;        /* enum shore_way, or-ed: what may become of it; 0: it stays */
    uint32_t group;       /* whose buffers it passes through, where it moves; of buffers: theirs. 0: none */
    uint64_t bytes;       /* of one */
    uint64_t full_bytes;  /* see its role; 0: as bytes */
    uint64_t again;       /* operations that computing it again takes */
    uint32_t least, most; /* of buffers, and of what is counted: how many */
    bool there;           /* of buffers: the index-th of those that a device has, for tensors that stay, too */
    bool grows;           /* its row takes what is idle around it */
    uint64_t with;        /* 1 + a tensor: it is there only where that one stays */
    uint64_t without;     /* the same: only where it does not */
};

/* NULL: out of memory. Ownership: the caller's, for shore_program_free(). */
struct shore_program *shore_program_new(void);
/* Ownership: no plan of it is still open. NULL is allowed. */
void shore_program_free(struct shore_program *program);

/* Adds an operation; returns its number, from 0 on. What is wrong with it is said by shore_plan_open(). */
uint32_t shore_program_operation(struct shore_program *program, const struct shore_operation *operation);
/* Adds a tensor; as shore_program_operation(). */
uint32_t shore_program_tensor(struct shore_program *program, const struct shore_tensor *tensor);
/* The operation makes the tensor, which is not there before. */
void shore_program_makes(struct shore_program *program, uint32_t operation, uint32_t tensor);
/* The operation reads the tensor. */
void shore_program_reads(struct shore_program *program, uint32_t operation, uint32_t tensor);
/* The operation is the last that has the tensor: of one step or, where it comes before the one that makes it, of the
 * next. */
void shore_program_frees(struct shore_program *program, uint32_t operation, uint32_t tensor);

struct shore_plan_options {
    size_t size;           /* sizeof(struct shore_plan_options) */
    uint64_t memory_bytes; /* the budget */
    const char *what;      /* for the message: "this model". NULL: "this program" */
    bool one_memory;       /* the device's is the host's: all places but one's own are of one stretch */
    /* of the machine: which of two ways takes less time. 0: as a processor of some cores, and one fast drive */
    double operations_per_second, drive_bytes_per_second;
    /* of a head that goes over a table: units of the step; and whether each may have its own turn over it where its
     * gradient is held */
    uint32_t units;
    bool head_apart;
    uint64_t moved_most; /* inner tensors that drives have room for */
};

struct shore_plan_sums {
    size_t size;                /* sizeof(struct shore_plan_sums) */
    uint64_t minimum_bytes;     /* the least budget: of everything at its smallest */
    uint64_t comfortable_bytes; /* the budget from which on everything is kept */
    uint64_t total_bytes;       /* of this plan: no more than the budget */
    uint64_t placed_bytes;      /* of these: what has places, by which memory can be taken */
};

/* Plans the program. Ownership: *out is the caller's, for shore_plan_close(), also where the budget is too little
 * (SHORE_EBUDGET): it then has the sums of the least plan. The program outlives it. Errors: SHORE_EBUDGET, with
 * "minimum SIZE"; -EINVAL (a program with a cycle, a tensor that is read before it is made or after it was freed, or
 * that is made twice; a size that overflows), -ENOMEM: then *out is NULL. */
int shore_plan_open(const struct shore_program *program, const struct shore_plan_options *options,
                    struct shore_plan **out, struct shore_diag *diag);
/* NULL is allowed. */
void shore_plan_close(struct shore_plan *plan);

/* Ownership: out is the caller's, with its size set. */
void shore_plan_sums(const struct shore_plan *plan, struct shore_plan_sums *out);

struct shore_fate {
    size_t size; /* sizeof(struct shore_fate) */
    enum shore_way way;
    bool full; /* with what is cheap to compute again, or all that is of use */
    uint64_t bytes,
        count; /* of one; how many there are of buffers and what is counted (otherwise 1, or 0: not there) */
    enum shore_place place;
    uint64_t offset;      /* in the stretch of its place: of what stays and has a place */
    uint32_t first, last; /* operations between which it lies there; last before first: over the end of the step */
    uint64_t moved;       /* of what moves: so many of its role move before it */
};
/* What becomes of a tensor. Ownership: out is the caller's, with its size set. Errors: -EINVAL (no such tensor; no
 * size). */
int shore_plan_tensor(const struct shore_plan *plan, uint32_t tensor, struct shore_fate *out);

/* Where the nth of buffers lies, from 0 on, in the stretch of its place: not always behind the one before. Errors:
 * -EINVAL (no such buffer, or none that has a place). */
int shore_plan_buffer(const struct shore_plan *plan, uint32_t tensor, uint64_t nth, uint64_t *offset);

#ifdef __cplusplus
}
#endif

#endif
