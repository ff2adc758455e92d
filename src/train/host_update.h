/* --update host: the update on the host, as ZeRO-Infinity does it, for comparison. State and spilled gradients come
 * over the link, are updated by all threads, and go back: the next chunk is read and the one before is written while
 * one is computed. Chunks take their segments from all drives in turn, so that all of them work on each. Gives the
 * same bits as UPDATE beside the drives. */
#ifndef SHORE_TRAIN_HOST_UPDATE_H
#define SHORE_TRAIN_HOST_UPDATE_H

#include "longshore/state.h"

struct shore__host_update {
    uint64_t base_step, attempt;
    enum shore_gradient_form form; /* of the spilled gradients */
    float coefficient;
    const struct shore_hyper *groups;
    uint32_t ngroups;
    /* Where the new parameters of a segment go; NULL: nowhere. Called from several threads. */
    void *(*params_at)(void *ctx, uint32_t block, uint32_t segment);
    void *ctx;
    /* buffers of chunk_segments each, from memory: at least 1 (2: read ahead; 3: write behind too) */
    uint32_t buffers, chunk_segments;
    void *memory; /* shore__host_update_bytes() */
};

#define SHORE__HOST_BUFFERS_MOST 4u

uint64_t shore__host_update_bytes(size_t state_segment_bytes, uint32_t buffers, uint32_t chunk_segments);

/* Updates every segment of the fleet from the gradients that were spilled; returns when all is written. waited_ns: time
 * without anything to compute. Errors: as of shore_fleet_update() and shore_fleet_fetch(). */
int shore__host_update_run(struct shore_fleet *fleet, const struct shore__host_update *how, uint64_t *waited_ns,
                           struct shore_diag *diag);

#endif
