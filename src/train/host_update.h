/* Update on the host (--update host), as ZeRO-Infinity does it, for comparison. State and spilled gradients come over
 * the link, all threads update them, and they go back. While one chunk is computed, the next is read and the previous
 * one is written. A chunk takes its segments from all drives in turn, so that all drives work on it. The bits equal
 * those of UPDATE on the drives. */
#ifndef SHORE_TRAIN_HOST_UPDATE_H
#define SHORE_TRAIN_HOST_UPDATE_H

#include "longshore/state.h"

struct shore__host_update {
    uint64_t base_step, attempt;
    enum shore_gradient_form form; /* of the spilled gradients */
    float coefficient;
    const struct shore_hyper *groups;
    uint32_t ngroups, stride; /* groups of a block begin so many behind those of the one before it */
    /* Where a segment's new parameters go; NULL: nowhere. Called from several threads. */
    void *(*params_at)(void *ctx, uint32_t block, uint32_t segment);
    void *ctx;
    /* Buffers of chunk_segments each, in memory. 1 is the least; 2 read ahead; 3 also write behind. */
    uint32_t buffers, chunk_segments;
    void *memory; /* shore__host_update_bytes() long */
};

#define SHORE__HOST_BUFFERS_MOST 4u

uint64_t shore__host_update_bytes(size_t state_segment_bytes, uint32_t buffers, uint32_t chunk_segments);

/* Updates every segment of the fleet from its spilled gradients, and waits until all is written. Errors: those of
 * shore_fleet_update() and shore_fleet_fetch(). */
int shore__host_update_run(struct shore_fleet *fleet, const struct shore__host_update *how, struct shore_diag *diag);

#endif
