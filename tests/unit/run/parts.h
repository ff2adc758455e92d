/* A run that several processes have a part of each. Here one process has them all: their locks are their own. */
#ifndef SHORE_TESTS_RUN_PARTS_H
#define SHORE_TESTS_RUN_PARTS_H

#include "unit/run/of_program.h"

enum { VOLUMES_MOST = 8, PART_BYTES = 1 << 16 };

/* As the package names them: several in one directory, for ranks that share it. */
static inline const char *const *volumes_in(const char *directory, uint32_t n) {
    static char path[VOLUMES_MOST][256];
    static const char *volumes[VOLUMES_MOST];
    for (uint32_t v = 0; v < n; v++) {
        snprintf(path[v], sizeof path[v], "%s/longshore-a-0c0ffee1.rank%u.volume", directory, v);
        volumes[v] = path[v];
    }
    return volumes;
}

/* Rank r of R has [r*V/R, (r+1)*V/R). */
struct mine {
    bool of[VOLUMES_MOST];
};
static inline struct mine mine_of(uint32_t rank, uint32_t ranks, uint32_t volumes) {
    struct mine mine = {{false}};
    for (uint32_t v = rank * volumes / ranks; v < (rank + 1) * volumes / ranks; v++)
        mine.of[v] = true;
    return mine;
}

static inline int create_part(const char *path, const char *const *volumes, uint32_t nvolumes, uint32_t rank,
                              uint32_t ranks, bool overwrite, struct shore_run **out, struct shore_diag *diag) {
    const struct mine mine = mine_of(rank, ranks, nvolumes);
    struct shore_fleet_options options = fleet_of_program(volumes, nvolumes);
    struct shore_layout *layout = layout_of_program();
    options.mine = mine.of;
    options.overwrite = overwrite;
    const struct shore_run_making how = {
        .size = sizeof how, .fleet = &options, .program = program_text, .keeps = rank == 0};
    int rc = shore_run_create(path, layout, shapes_of_program, TENSORS, &how, out, diag);
    shore_layout_free(layout);
    return rc;
}

static inline int open_part(const char *path, uint32_t nvolumes, uint32_t rank, uint32_t ranks, const char *moved,
                            struct shore_run **out, struct shore_diag *diag) {
    const struct mine mine = mine_of(rank, ranks, nvolumes);
    const struct shore_run_opening how = {
        .size = sizeof how, .mine = mine.of, .keeps = rank == 0, .moved = &moved, .nmoved = moved ? 1 : 0};
    return shore_run_open(path, &how, out, diag);
}

static inline int fill_run(struct shore_run *run, struct shore_diag *diag) {
    const struct shore_layout *layout = shore_run_layout(run);
    int rc = 0;
    for (uint32_t b = 0; rc == 0 && b < BLOCKS; b++) {
        const struct shore_layout_block *block = &layout->blocks[b];
        float *values = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, block->padded_elems * sizeof *values);
        assert_non_null(values);
        fill_block(block, b, values);
        rc = shore_fleet_init_block(shore_run_fleet(run), b, 0, block->segments, values, NULL, NULL, diag);
        free(values);
    }
    return rc;
}

/* Updates and begins to commit the next step. All gradients are 1. who: goes into the blob, after the step before. */
static inline int begin_step(struct shore_run *run, uint64_t who, struct shore_diag *diag) {
    const uint64_t blob[] = {step_of(run), who};
    const struct shore_commit commit = {
        .size = sizeof commit, .step = blob[0] + 1, .blob = blob, .blob_bytes = sizeof blob};
    char metrics[64];
    snprintf(metrics, sizeof metrics, "{\"loss\": %u}", (unsigned)commit.step);
    int rc = update_run(run, diag);
    return rc ? rc : shore_run_commit(run, &commit, metrics, diag);
}

#endif
