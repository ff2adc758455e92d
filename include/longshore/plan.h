/* A step as a program, and its plan: which tensors a budget of memory keeps, which are computed again, which move to
 * the drives and back, and where they all lie.
 *
 *     program = shore_program_new()
 *     each operation of the step, in order:  shore_program_operation()
 *         its computing:                     shore_program_computes()
 *         work behind it, in other lanes:    shore_program_costs(), _changes()
 *     each tensor:                           shore_program_tensor()
 *         its operations:                    shore_program_makes(), _reads(), _frees()
 *     shore_plan_open(program, &options, &plan, &diag)      SHORE_EBUDGET names the least budget
 *     shore_plan_tensor(plan, tensor, &fate)                kept, computed again or moved; its place
 *     shore_plan_times(plan, &times)                        how long a step takes
 *
 * A tensor that no operation makes is there before the step; a tensor that no operation frees outlives it. Rows that
 * are not in use at the same time may share a place. The plan knows no model: what a tensor is to a step follows from
 * its members and from the operations that use it. No choice changes a bit of what is computed.
 *
 * Time. Operations compute one after the other. One starts when the one before has ended, what it reads is there, and
 * what it makes has room.
 * - What no operation makes and moves comes from the drives before each operation that reads it: into a buffer of its
 *   group, as soon as one is free. If it stays, the update behind an operation sends it there. On the host, what may
 *   only move stays where each of its group has a buffer of its own.
 * - What is made, moves and is read later leaves behind its maker, and comes back before its readers, through its
 *   group's buffers. Several tensors of a group are used one after the other.
 * - What is made, moves and is never read (a piece of gradient) holds its buffer until the work behind its maker
 *   took it.
 * - Work behind operations: what the next step needs first goes first. Its readers wait for what it changes.
 * - The commit follows the work behind the last operation. The next step overlaps it until the first operation that
 *   makes a piece of gradient.
 * An operation without any work takes no time, and nothing comes for it: what happens between some steps is rare.
 *
 * Units: bytes; of an operation's work: those of lane.h. Threading: one thread at a time.
 */
#ifndef LONGSHORE_PLAN_H
#define LONGSHORE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"
#include "longshore/lane.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shore_program;
struct shore_plan;
struct shore_machine;

/* What memory a tensor lies in. */
enum shore_place {
    SHORE_PLACE_DEVICE,
    SHORE_PLACE_PINNED, /* the host's, for transfers */
    SHORE_PLACE_PLAIN,  /* the host's */
    SHORE_PLACES,
    SHORE_PLACE_BOTH = SHORE_PLACES /* device and pinned; it is moved between them */
};

/* What becomes of a tensor. */
enum shore_way {
    SHORE_WAY_NONE = 0,  /* it does not exist */
    SHORE_WAY_KEEP = 1,  /* it stays */
    SHORE_WAY_AGAIN = 2, /* it is computed again */
    SHORE_WAY_MOVE = 4,  /* it moves to the drives and back, through its group's buffers */
    SHORE_WAY_HOST = 8   /* a device's: it moves to the host's pinned memory and back */
};

/* Tensors with the same key, ways, place and buffers are of one class: the plan says how many of a class stay. Of a
 * class, those that are made later are kept first, and otherwise those that were added first; activations that may move
 * and can be computed again (`again`) lie evenly over the step, whatever their ways.
 *
 * A tensor is one of these:
 * - it has ways: it stays, or one of them becomes of it. A parameter is there before the step (no operation makes it)
 *   and comes before each operation that reads it; an activation is made, leaves, and comes back before it is read
 *   again; a piece of gradient is made by the step, moves, and is not read.
 * - `buffers`: what moves of its group passes through them.
 * - an amount: full_bytes is more than bytes, and it has no ways. What it has beyond bytes saves time.
 * - otherwise it is there whatever the budget. */
struct shore_tensor {
    size_t size;         /* sizeof(struct shore_tensor) */
    const char *name;    /* for messages. Ownership: outlives the program */
    uint32_t key, index; /* of its row: consecutive tensors with one key and index share a row, side by side */
    enum shore_place place;
    bool own;             /* its maker allocates it: it is counted in its place, but has no offset there */
    unsigned ways;        /* possible fates: enum shore_way, or-ed; 0: it stays */
    uint32_t group;       /* the group of its buffers, if it moves; of buffers: their group. 0: none */
    uint64_t bytes;       /* of one */
    uint64_t full_bytes;  /* of an amount: the most that is useful. With ways: also with what is cheap to compute again.
                             0: as bytes */
    uint64_t moved_bytes; /* that a step moves of it, one way, if it moves; 0: bytes. UINT64_MAX: none */
    uint64_t margin;      /* of an amount: it exists only where the budget is so far above the minimum */
    bool whole;           /* of an amount: all of it or the least, and nothing between */
    enum shore_lane saves_lane; /* of an amount: where what it has saves work; */
    double saves;               /* so many units of work a step for a byte; of SHORE_LANE_COMPUTE: seconds. 0: it saves
                                   what no lane counts */
    uint32_t again;             /* 1 + the operation whose computing is repeated for what does not stay; 0: none */
    uint32_t again_parts; /* of so many parts of that operation's computing, this tensor, or all of an amount, is one;
                             0: 1 */
    bool buffers;         /* what moves of its group passes through: least to most of them, each as large as the largest
                             tensor */
    uint32_t least, most; /* of buffers */
    bool there;           /* of buffers: the index-th of a device's buffers, also for tensors that stay */
    bool grows;           /* its row takes the idle memory around it */
    uint64_t with;        /* 1 + a tensor: this one exists only if that one stays */
    uint64_t without;     /* the same: only if that one does not stay */
};

/* Makes an empty program. NULL: out of memory. Ownership: the caller's, for shore_program_free(). */
struct shore_program *shore_program_new(void);
/* Frees a program. Ownership: no plan of it is still open. NULL is allowed. */
void shore_program_free(struct shore_program *program);

/* Adds an operation; returns its number, from 0 on. shore_plan_open() reports its errors. name: for messages.
 * Ownership: the name outlives the program. */
uint32_t shore_program_operation(struct shore_program *program, const char *name);
/* Adds to the work behind an operation, for which no operation of this step waits: the way of a gradient, and the
 * update that it makes. lane: any but SHORE_LANE_COMPUTE, which shore_program_computes() is for; in SHORE_LANE_COMMIT,
 * bytes written in the end. drive: of a drive's lane, which drive of the fleet; otherwise 0. Units of work: see lane.h.
 */
void shore_program_costs(struct shore_program *program, uint32_t operation, enum shore_lane lane, uint32_t drive,
                         uint64_t work);

/* Computing of an operation. */
struct shore_computing {
    size_t size; /* sizeof(struct shore_computing) */
    enum shore_work_kind kind;
    enum shore_precision precision;
    uint64_t work;  /* 2 for each multiplication with its addition; of SHORE_WORK_ROWS: bytes */
    uint64_t rows;  /* of a product; 0: of any number */
    double seconds; /* what was measured, which counts instead of work; 0: nothing was */
};
/* Adds to what an operation computes. */
void shore_program_computes(struct shore_program *program, uint32_t operation, const struct shore_computing *computing);
/* The work behind an operation changes the tensor on the drives: what reads it in the next step waits for it. */
void shore_program_changes(struct shore_program *program, uint32_t operation, uint32_t tensor);

/* Adds a tensor; otherwise as shore_program_operation(). */
uint32_t shore_program_tensor(struct shore_program *program, const struct shore_tensor *tensor);
/* The operation makes the tensor, which does not exist before. */
void shore_program_makes(struct shore_program *program, uint32_t operation, uint32_t tensor);
/* The operation reads the tensor. */
void shore_program_reads(struct shore_program *program, uint32_t operation, uint32_t tensor);
/* The operation is the last one with the tensor: in the same step or, if it comes before the operation that makes the
 * tensor, in the next. */
void shore_program_frees(struct shore_program *program, uint32_t operation, uint32_t tensor);

/* Who chooses: the planner, or for comparison one policy for all activations, as far as it fits. */
enum shore_policy {
    SHORE_POLICY_PLANNED,
    SHORE_POLICY_KEEP,  /* all stay */
    SHORE_POLICY_AGAIN, /* all are computed again */
    SHORE_POLICY_MOVE,  /* all move to the drives */
    SHORE_POLICY_ORDER, /* by an order of thumb: what keeps the drives busy, then what saves most in a byte */
    SHORE_POLICIES
};

struct shore_plan_options {
    size_t size;           /* sizeof(struct shore_plan_options) */
    uint64_t memory_bytes; /* the budget of all places that have none of their own */
    /* of a place: a budget of its own, beside memory_bytes. 0: none */
    uint64_t place_bytes[SHORE_PLACES];
    const char *what; /* for the message: "this model". NULL: "this program" */
    bool one_memory; /* device and host share memory: all places are one stretch, SHORE_PLACE_DEVICE, with one budget */
    enum shore_policy policy;
    /* its rates decide what takes less time. NULL: some cores, and one fast drive. Ownership: outlives the plan */
    const struct shore_machine *machine;
    double written_bytes_per_day_most; /* by all drives together: steps wait as long as it needs; 0: no limit */
};

struct shore_plan_sums {
    size_t size; /* sizeof(struct shore_plan_sums) */
    /* of the places that have no budget of their own, together */
    uint64_t minimum_bytes;     /* the least memory_bytes: everything at its smallest */
    uint64_t comfortable_bytes; /* the least memory_bytes with which everything is kept */
    uint64_t total_bytes;       /* of this plan: at most memory_bytes */
    uint64_t placed_bytes;      /* of all places: rows with offsets, the memory to map */
    /* of each place */
    uint64_t place_minimum_bytes[SHORE_PLACES], place_total_bytes[SHORE_PLACES];
    uint64_t too_little; /* budgets below their minimum: 1 << place, or-ed; 1 << SHORE_PLACES: memory_bytes */
};

/* The budget to use: the one asked for, or for 0 half of the machine's memory, at most comfortable (0: unknown) and at
 * least minimum. Units: bytes. The memory is that of the control group where its limit is less. Errors: SHORE_EBUDGET
 * for a budget that is more than this memory, or less than minimum. */
int shore_budget(uint64_t asked, uint64_t minimum, uint64_t comfortable, uint64_t *budget, struct shore_diag *diag);

/* Whether this processor has instructions for products of bf16. Without them, bf16 is slower than fp32. Threading:
 * any. */
bool shore_multiplies_bf16(void);

/* Plans the program: so that a step takes as little time as the budgets allow, by simulation on the machine that the
 * options name. The same everywhere. Ownership: *out is the caller's, for shore_plan_close(), also if a budget is too
 * small (SHORE_EBUDGET): it then has the sums of the least plan. The program outlives it. Errors: SHORE_EBUDGET, with
 * "minimum SIZE" for each budget that is too small, and the place's name if it is a place's own; or if a step alone
 * writes more than the drives may in a day; -EINVAL (a program with a cycle, a tensor that is read before it is made or
 * after it was freed, or that is made twice; a size that overflows; a place's budget where memory is one), -ENOMEM:
 * then *out is NULL. */
int shore_plan_open(const struct shore_program *program, const struct shore_plan_options *options,
                    struct shore_plan **out, struct shore_diag *diag);
/* NULL is allowed. */
void shore_plan_close(struct shore_plan *plan);

/* Ownership: out is the caller's, with its size set. */
void shore_plan_sums(const struct shore_plan *plan, struct shore_plan_sums *out);

struct shore_fate {
    size_t size; /* sizeof(struct shore_fate) */
    enum shore_way way;
    bool full;             /* also with what is cheap to compute again, or with all that is useful */
    uint64_t bytes, count; /* bytes of one; how many there are of buffers (otherwise 1, or 0: it does not exist) */
    enum shore_place place;
    uint64_t offset;      /* in the stretch of its place, if it stays and has one */
    uint32_t first, last; /* the operations from first to last during which it lies there; last before first: over the
                             end of the step */
    uint64_t moved;       /* if it moves: how many of its group move before it */
};
/* Says what becomes of a tensor. Ownership: out is the caller's, with its size set. Errors: -EINVAL (no such tensor; no
 * size). */
int shore_plan_tensor(const struct shore_plan *plan, uint32_t tensor, struct shore_fate *out);

/* Says where the nth buffer lies, from 0 on, in the stretch of its place: not always behind the one before. Errors:
 * -EINVAL (no such buffer, or none with a place). */
int shore_plan_buffer(const struct shore_plan *plan, uint32_t tensor, uint64_t nth, uint64_t *offset);

/* How long a step takes, once steps follow each other, and what it moves. */
struct shore_plan_times {
    size_t size;                      /* sizeof(struct shore_plan_times) */
    double step_seconds;              /* with what steps wait for written_bytes_per_day_most */
    double lane_seconds[SHORE_LANES]; /* of work; of drives: the busiest one's. None is above step_seconds */
    enum shore_lane bound;            /* the lane with most work; SHORE_LANES if steps wait for that limit */
    uint64_t drive_read_bytes, drive_write_bytes, link_bytes;
    /* of tensors that operations make and later ones read: that stay, are computed again, and move */
    uint64_t kept_bytes, again_bytes, moved_bytes;
};
/* Ownership: out is the caller's, with its size set. Errors: -EINVAL (no size). */
int shore_plan_times(const struct shore_plan *plan, struct shore_plan_times *out);
/* Says when an operation begins and ends, in seconds after the last operation of the step before. Errors: -EINVAL (no
 * such operation). */
int shore_plan_operation(const struct shore_plan *plan, uint32_t operation, double *begin, double *end);

/* The table for people that `longshore plan` prints, in lines of at most 80 columns. figures: a JSON object with the
 * keys of `longshore plan --json` (docs/outputs.md); those that are absent count as 0. Ownership: the text is the
 * caller's, for free(). Threading: any. Errors: NULL (no such JSON; out of memory). */
char *shore_plan_table(const char *figures);

#ifdef __cplusplus
}
#endif

#endif
