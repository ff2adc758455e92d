/* What a plan is made of, gathered once: the model, the step, the machine and the drives as far as they decide what is
 * kept where. A plan is a function of facts and a budget alone.
 */
#ifndef SHORE_PASS_FACTS_H
#define SHORE_PASS_FACTS_H

#include "base/units.h"
#include "longshore/state.h"
#include "model/model.h"
#include "pass/batches.h"

struct shore__facts {
    const struct shore__model *model;
    struct shore__batch_shape batch; /* of a step */

    /* of compute: as it describes itself */
    enum shore__mode mode;
    int threads;
    uint64_t workspace_bytes, packed_bytes; /* at least; and to keep a layer's weights packed */
    bool one_memory;                        /* the device's is the host's */
    double operations_per_second;           /* 0: until it is measured */

    /* of the drives */
    struct shore_fleet_options drives; /* as the run opens them, but for the bytes that the plan gives them */
    double drive_bytes_per_second;     /* the same */
    bool scratch;                      /* they keep what is put there; not memory that stands in for a drive */
    bool remote;                       /* one is behind a network */
    bool emulated;                     /* their waits are another machine's */
    uint64_t ring_bytes_most;          /* of an emulated machine; 0: any number */
    uint32_t host_buffers_most;        /* the same */

    /* of what is asked for */
    bool compressed, gradient_bf16, host_update, samples;
    enum shore__when offload;
    uint64_t compression_bytes; /* what compressing takes */
};

#endif
