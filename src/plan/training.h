/* The plan of a training step: what stays in memory, what is computed again, what goes to the drives' scratch.
 */
#ifndef SHORE_PLAN_TRAINING_H
#define SHORE_PLAN_TRAINING_H

#include "plan/facts.h"
#include "plan/pages.h"

/* What idle memory holds between a layer's backward and its next forward, so that the next forward pass need not wait
 * for what backward hands over last: the table, and the first layers. */
struct shore__lending {
    uint32_t later;               /* layers 1 .. later: their matrices' gradients are computed after the lookups */
    uint32_t after;               /* the layer whose backward is followed by lending; 0: none */
    uint32_t layers;              /* layers 1 .. layers are lent pages (or stay) */
    uint32_t first_slice, slices; /* and these slices of block 0 */
    uint32_t states, most_states; /* segments of the table whose state is read ahead; of so many that are wanted */
};

/* What is kept where. Every choice trades memory for bytes moved or computed again; none changes a bit of the result.
 */
struct shore__train_plan {
    size_t units; /* of the batch */
    struct shore__residency residency;
    size_t gradient_buffers;  /* pieces of gradient in memory at once */
    bool hold_table_gradient; /* tied: the table's gradient in memory; otherwise its slices go to scratch */
    size_t kept_boundaries;   /* inputs of the last layers (and of the head) that stay in memory */
    size_t kept_inner;        /* (layer, unit) pairs that keep inner activations, but for the cheap ones */
    size_t full_inner;        /* of these, pairs that keep the cheap ones too */
    size_t offloaded_inner;   /* more pairs, whose inner activations scratch has room for */
    size_t head_units;        /* units that go through the head at once */
    size_t kept_logits;       /* of these, (slice, unit) pairs whose logits stay for backward */
    size_t host_buffers;      /* of --update host: chunks in memory at once */
    size_t host_segments;     /* the same: segments of a chunk */
    bool read_ahead;          /* state of the table is */
    struct shore__lending lending;
    uint64_t ring_bytes;      /* of the fleet */
    uint64_t workspace_bytes; /* of compute, with room for packed weights or without */
    uint64_t hole_bytes;      /* in the heap, if it may keep what is freed; otherwise 0 */
    uint64_t fleet_bytes, buffers_bytes, reserve_bytes, total_bytes; /* results */
};

/* What a run needs. minimum: the least budget that works, the sum of everything at its smallest. */
struct shore__needs {
    uint64_t minimum_bytes, comfortable_bytes; /* comfortable: everything kept */
    uint64_t disk_bytes;
    /* a layer and a unit each; how many keep their inner activations in memory_bytes, and how many more on the drives
     */
    uint64_t pairs, kept_pairs, offloaded_pairs;
};

/* The plan for a budget, and its rows, laid out (opened here; the caller closes them, whatever is returned). needs
 * NULL: less than the minimum is refused; otherwise what is needed, whatever that is, and no plan where it is too
 * little. */
int shore__plan_training(const struct shore__facts *f, uint64_t budget, struct shore__train_plan *out,
                         struct shore__region_list *rows, struct shore__needs *needs, struct shore_diag *diag);

/* Bytes of the first `pairs` kept inner activations, from the last layer's on. */
uint64_t shore__plan_kept_bytes(const struct shore__facts *f, const struct shore__train_plan *plan, size_t pairs);
/* Of a (layer, unit) pair on its way to scratch; and of the inputs of a layer that stay, or go there. */
uint64_t shore__plan_offload_bytes(const struct shore__facts *f);
uint64_t shore__plan_boundary_bytes(const struct shore__facts *f);
/* What a unit of a layer leaves whose matrices' gradients wait; and a segment's state. */
uint64_t shore__plan_later_bytes(const struct shore__facts *f);
uint64_t shore__plan_state_bytes(const struct shore__facts *f);

/* Where scratch holds the input of layer l, slice i of a tied table's gradient, and inner activations (of the nth
 * pair that is offloaded). */
uint64_t shore__plan_scratch_boundary(const struct shore__facts *f, uint32_t layer);
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

#endif
