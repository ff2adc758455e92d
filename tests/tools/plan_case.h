/* What decides a plan, in words that no shape of src/plan changes; and the narrow function between the two.
 *
 * plan_rows.c draws cases and hashes their rows. plan_of.c is written for the src/plan of its own commit: whoever
 * changes that changes plan_of.c with it, and nothing else here, so that rows of two commits can be compared.
 */
#ifndef TESTS_TOOLS_PLAN_CASE_H
#define TESTS_TOOLS_PLAN_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/state.h"
#include "model/model.h"

struct plan_case {
    struct shore__arch arch;
    size_t sequences, seq_len;
    bool reading; /* evaluation, or generation of so many positions, instead of training */
    size_t positions;

    enum shore__mode mode;
    int threads;
    uint64_t workspace_bytes, packed_bytes;
    bool one_memory;

    const char *const *drives; /* which nobody opens */
    uint32_t ndrives;
    enum shore_optimizer optimizer;
    enum shore_moments moments;
    bool in_ram, remote, emulated;
    uint64_t ring_bytes_most;
    uint32_t host_buffers_most;
    double operations_per_second, drive_bytes_per_second;

    bool compressed, gradient_bf16, host_update, samples;
    int offload; /* 0: off, 1: on, 2: left to the plan */
    uint64_t compression_bytes, resident_bytes;
};

/* A row of a plan that has been laid out. */
struct plan_row {
    const char *name;
    uint32_t index, kind; /* kind: 0 of the device, 1 pinned, 2 plain */
    uint64_t bytes;
    uint32_t from, to;
    uint64_t offset;
};

struct plan_sums {
    uint64_t minimum, comfortable, disk, pairs, kept_pairs, offloaded_pairs; /* of a training, at any budget */
    uint64_t rings, fleet, buffers, reserve, holes, workspace;               /* of the plan for the budget */
};

/* Plans the case and hands each row to row(); returns what the plan returned (SHORE_EBUDGET: no rows, and of a training
 * the sums that are there at any budget). */
int plan_of(const struct plan_case *x, uint64_t budget, struct plan_sums *sums,
            void (*row)(void *ctx, const struct plan_row *row), void *ctx);

#endif
