/* Programs of our models (src/plan knows none): a training step, and passes that only read. And their plans, in the
 * words of those who train and read.
 */
#ifndef SHORE_PASS_DESCRIBE_H
#define SHORE_PASS_DESCRIBE_H

#include "pass/facts.h"
#include "pass/pages.h"
#include "plan/plan.h"

/* What is kept where. Every choice trades memory for bytes moved or computed again; none changes a bit of the result.
 */
struct shore__train_plan {
    struct shore_program *program;
    struct shore_plan *plan;  /* its table says what becomes of each tensor, its choice how many get memory */
    uint32_t input, inner;    /* tensors of the input of layer 1; of unit 0 of the last layer */
    size_t units;             /* of the batch */
    bool hold_table_gradient; /* the table's gradient in memory; otherwise its slices go to scratch */
    size_t moved_inner;       /* (layer, unit) pairs whose inner activations scratch has room for */
    uint64_t ring_bytes;      /* of the fleet */
    uint64_t workspace_bytes; /* of compute, with room for packed weights or without */
    uint64_t hole_bytes;      /* in the heap, if it may keep what is freed; otherwise 0 */
    uint64_t fleet_bytes, buffers_bytes, reserve_bytes, total_bytes;
};

/* What a run needs. minimum: the least budget that works, the sum of everything at its smallest. */
struct shore__needs {
    uint64_t minimum_bytes, comfortable_bytes; /* comfortable: everything kept */
    uint64_t disk_bytes;
    /* a layer and a unit each; how many keep their inner activations in memory_bytes, and how many more on the drives
     */
    uint64_t pairs, kept_pairs, offloaded_pairs;
};

/* The plan for a budget (the caller closes it, whatever is returned). needs NULL: less than the minimum is refused;
 * otherwise what is needed, whatever that is, and no plan where it is too little. */
int shore__plan_training(const struct shore__facts *f, uint64_t budget, struct shore__train_plan *out,
                         struct shore__needs *needs, struct shore_diag *diag);
void shore__train_plan_close(struct shore__train_plan *plan);

/* Sets what becomes of a unit's inner activations, or of the input of a layer, instead of what the rules chose. */
void shore__plan_set_inner(const struct shore__facts *f, struct shore__train_plan *plan, uint32_t layer, size_t unit,
                           enum shore_way way, bool full);
void shore__plan_set_input(const struct shore__facts *f, struct shore__train_plan *plan, uint32_t layer,
                           enum shore_way way);

/* What becomes of the input of a layer (layers + 1: of the head); of a unit's inner activations. */
const struct shore__fate *shore__plan_input(const struct shore__train_plan *plan, uint32_t layer);
const struct shore__fate *shore__plan_inner(const struct shore__facts *f, const struct shore__train_plan *plan,
                                            uint32_t layer, size_t unit);

/* Of a (layer, unit) pair on its way to scratch; and of the inputs of a layer that stay, or go there. */
uint64_t shore__plan_offload_bytes(const struct shore__facts *f);
uint64_t shore__plan_boundary_bytes(const struct shore__facts *f);

/* Where scratch holds slice i of a tied table's gradient, and inner activations (of the nth pair that is offloaded).
 */
uint64_t shore__plan_scratch_slice(const struct shore__facts *f, uint32_t slice);
uint64_t shore__plan_scratch_inner(const struct shore__facts *f, size_t nth);
/* How the drives of such a run are made and opened: with that scratch; with the plan's rings, if there is a plan. */
void shore__plan_fleet_options(const struct shore__facts *f, const struct shore__train_plan *plan,
                               struct shore_fleet_options *out);

/* Bytes of new volumes of such a run. */
uint64_t shore__plan_disk_bytes(const struct shore__facts *f);
/* f->offload; or off, where it is left to the plan and drives with so much room have none for all that it takes. */
enum shore__when shore__plan_offload_within(const struct shore__facts *f, uint64_t room_bytes);

/* Inner activations are computed in one slot while another is on its way. */
#define SHORE__OFFLOAD_SLOTS 2u

/* ---- passes that only read ----------------------------------------------------------------------------------------
 */

struct shore__infer_plan {
    struct shore_program *program;
    struct shore_plan *plan;
    uint64_t buffers_bytes, reserve_bytes;
};

/* The plan for a budget (the caller closes it, whatever is returned): the pages, WORKSPACE, X, and the rows of a batch,
 * or GENERATION of so many bytes. resident_bytes: of the process so far. Errors: SHORE_EBUDGET with "minimum SIZE". */
int shore__plan_reading(const struct shore__facts *f, uint64_t generation_bytes, uint64_t resident_bytes,
                        uint64_t budget, struct shore__infer_plan *out, struct shore_diag *diag);
void shore__infer_plan_close(struct shore__infer_plan *plan);

#endif
