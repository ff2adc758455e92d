/* Programs and plans of our models: a training step, and passes that only read. src/plan itself knows no model. */
#ifndef SHORE_PASS_DESCRIBE_H
#define SHORE_PASS_DESCRIBE_H

#include "pass/facts.h"
#include "pass/pages.h"
#include "plan/budget.h"
#include "plan/plan.h"

/* A plan of training: which memory holds what. Every choice trades memory for bytes moved or recomputed; none changes a
 * bit of the result. */
struct shore__train_plan {
    struct shore_program *program;
    struct shore_plan *plan;
    uint32_t lowest;       /* layer down to which backward is computed */
    uint32_t input, inner; /* tensors: its input; inner activations of unit 0 of the last layer */
    uint32_t pieces, logits, table, host, workspace, drives, holes; /* and these; UINT32_MAX: there is none */
    size_t units;                                                   /* of the batch */
    size_t head_units;                                              /* that go through the head at once */
    size_t kept_logits; /* tiles (slice, unit) of the logits that stay until backward */
    uint32_t gradient_buffers;
    uint32_t host_buffers, host_segments; /* chunks of updates on the host at a time, and segments of each */
    bool gathers;                         /* forward gathers the rows that it looks up: see lookups.h */
    bool hold_table_gradient;             /* the table's gradient stays in memory; otherwise its slices go to scratch */
    uint64_t ring_bytes;                  /* of the fleet */
    uint64_t fleet_bytes;                 /* of the fleet, rings and all */
    uint64_t workspace_bytes;             /* of compute, with or without room for packed weights */
    uint64_t hole_bytes;                  /* freed memory that the heap may keep; otherwise 0 */
};

/* Memory and disk that a run needs. minimum: the smallest budget that works, the sum of everything at its smallest. */
struct shore__needs {
    uint64_t minimum_bytes, comfortable_bytes; /* comfortable: enough to keep everything */
    uint64_t disk_bytes;
    /* (layer, unit) pairs: all; those whose inner activations stay in memory_bytes; those on the drives */
    uint64_t pairs, kept_pairs, offloaded_pairs;
};

/* Drives' buffers: as memory is left for them, or, where a machine knows how much slower drives are with the least,
 * as wanted or the least. */
enum shore__ring { SHORE__RING_IF_LEFT, SHORE__RING_WANTED, SHORE__RING_LEAST };

/* How a step is described that can be described in several ways. */
struct shore__step_way {
    size_t head_units; /* units that go through the head at once */
    bool moves;        /* inner activations that the drives have room for are not computed again: --offload on */
    bool gathers;      /* rows of the embedding, instead of its slices */
    enum shore__ring ring;
};

/* Makes the program of a step, with the numbers of its tensors; and reads from its plan what it gives them. */
int shore__step_describe(const struct shore__facts *f, struct shore__step_way how, struct shore__train_plan *out,
                         struct shore_diag *diag);
void shore__step_read_fates(const struct shore__facts *f, struct shore__step_way how, struct shore__train_plan *out);

/* Plans training within a budget. The caller closes the plan, whatever is returned. needs NULL: refuses a budget below
 * the minimum. Otherwise needs is filled in any case, and a budget that is too small gives no plan. */
int shore__plan_training(const struct shore__facts *f, uint64_t budget, struct shore__train_plan *out,
                         struct shore__needs *needs, struct shore_diag *diag);
void shore__train_plan_close(struct shore__train_plan *plan);

/* The fate of the input of a layer (layers + 1: of the head), and of a unit's inner activations. Layers below the
 * model's lowest have none. */
const struct shore__fate *shore__plan_input(const struct shore__train_plan *plan, uint32_t layer);
const struct shore__fate *shore__plan_inner(const struct shore__facts *f, const struct shore__train_plan *plan,
                                            uint32_t layer, size_t unit);

/* Bytes of one (layer, unit) pair that goes to scratch, and of one layer's inputs that stay or go there. */
uint64_t shore__plan_offload_bytes(const struct shore__facts *f);
uint64_t shore__plan_boundary_bytes(const struct shore__facts *f);

/* Number of (layer, unit) pairs that backward computes. */
uint64_t shore__plan_pairs(const struct shore__facts *f);

/* Offset in scratch of slice i of a tied table's gradient, and of the nth offloaded pair's inner activations. */
uint64_t shore__plan_scratch_slice(const struct shore__facts *f, uint32_t slice);
uint64_t shore__plan_scratch_inner(const struct shore__facts *f, size_t nth);
/* Fills the options that create and open the drives of such a run: with its scratch, and with the plan's rings if there
 * is a plan. */
void shore__plan_fleet_options(const struct shore__facts *f, const struct shore__train_plan *plan,
                               struct shore_fleet_options *out);

/* The process of such a run. */
struct shore__process shore__facts_process(const struct shore__facts *f);

/* Bytes of the new volumes of such a run. */
uint64_t shore__plan_disk_bytes(const struct shore__facts *f);
/* f->offload; but off, if the plan may choose and the drives have less room than offloading needs. */
enum shore__when shore__plan_offload_within(const struct shore__facts *f, uint64_t room_bytes);

/* One slot is computed in while the other moves. */
#define SHORE__OFFLOAD_SLOTS 2u

/* ---- passes that only read --------------------------------------------------------------------------------------- */

struct shore__infer_plan {
    struct shore_program *program;
    struct shore_plan *plan;
    uint64_t buffers_bytes, reserve_bytes;
};

/* Plans a pass that only reads, within a budget: the pages, WORKSPACE, X, and the rows of a batch, or GENERATION of so
 * many bytes. The caller closes the plan, whatever is returned. resident_bytes: of the process so far. Errors:
 * SHORE_EBUDGET with "minimum SIZE". */
int shore__plan_reading(const struct shore__facts *f, uint64_t generation_bytes, uint64_t resident_bytes,
                        uint64_t budget, struct shore__infer_plan *out, struct shore_diag *diag);
void shore__infer_plan_close(struct shore__infer_plan *plan);

#endif
