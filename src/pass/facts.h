/* Facts that a plan is made from, gathered once: the model, the step, the machine and the drives. A plan depends on
 * facts and a budget alone. */
#ifndef SHORE_PASS_FACTS_H
#define SHORE_PASS_FACTS_H

#include "base/units.h"
#include "longshore/plan.h"
#include "longshore/state.h"
#include "model/model.h"
#include "pass/batches.h"

struct shore__facts {
    const struct shore__model *model;
    const struct shore_machine *machine; /* NULL: assumed */
    struct shore__batch_shape batch;     /* of a step */

    /* of compute, as it describes itself */
    enum shore__mode mode;
    enum shore_precision products; /* what it multiplies in */
    int threads;
    /* workspace: the least it needs; packed: to keep a layer's weights packed */
    uint64_t workspace_bytes, packed_bytes;
    uint64_t heap_bytes;    /* that products may allocate beside the workspace; 0: none do */
    bool products_allocate; /* those of this batch do */
    bool one_memory;        /* the device uses the host's memory */
    /* of places that have a budget of their own, such as a device's memory; 0: none */
    uint64_t place_bytes[SHORE_PLACES];

    /* of the drives */
    struct shore_fleet_options drives; /* as the run opens them, without the bytes that the plan gives them */
    bool scratch;                      /* they keep scratch; false for memory that stands in for a drive */
    bool remote;                       /* at least one is behind a network */
    uint64_t ring_bytes_most;          /* of an emulated machine; 0: no limit */
    uint32_t host_buffers_most;        /* of an emulated machine; 0: no limit */

    /* of the settings */
    bool compressed, gradient_bf16, host_update, samples;
    bool never_speculates; /* updates begin once the norm is known */
    uint32_t tokens;       /* of the tokenizer, as far as one is named */
    enum shore__when offload, gather;
    enum shore_policy policy;
    double compress;               /* share of the gradients' elements that are sent, if they are compressed */
    uint64_t compression_bytes;    /* memory that compression takes */
    uint64_t trace_bytes;          /* memory that a trace takes */
    uint64_t written_per_day_most; /* bytes that all drives together may write in a day; 0: any */

    bool gathers; /* of a plan: forward fetches the rows of the embedding that the batch looks up */
};

#define SHORE__GATHER_TIED "--gather on changes nothing: the embedding is tied to the head, which reads all of it"
/* Whether forward may gather rows: a tied embedding comes for the head, and the package has it whole. */
static inline bool shore__may_gather(const struct shore__facts *f) {
    return f->gather != SHORE__OFF && !f->model->arch.tied;
}

/* Whether the embedding's gradient leaves as the rows that were looked up. What compression selects from is the whole
 * table, as what waits on the drives for an update on the host; and learned positions lie in its block. */
static inline bool shore__sends_rows(const struct shore__facts *f) {
    return f->gathers && !f->compressed && !f->host_update && !f->model->arch.learned_positions &&
           !shore__model_rests(f->model, 0);
}

#endif
